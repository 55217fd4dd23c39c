"""The (mu, lambda) evolution strategy: the mean of the elites is the next mean (Rechenberg, 1973; Schwefel, 1977).

Intermediate recombination of all parents, truncation selection, and an isotropic step size that does not adapt but may
follow a schedule. Individuals that tie for the last elite places share their weight.
"""

import jax
import jax.numpy as jnp

from rookery.evolution.fitness import weights_by_rank
from rookery.evolution.gaussian import GaussianOptimizer, GaussianState
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, pytree_field
from rookery.workflows.evolution.workflow import ECWorkflow


class VanillaESHyperparameters(Hyperparameters):
    """The hyper-parameters of the (mu, lambda) strategy; mu is `elite_fraction` of the population, at least 1."""

    noise_std: Scalar = number(0.1, low=1e-9, help="standard deviation of individuals around their mean")
    elite_fraction: Scalar = number(
        0.1, low=0.0, high=1.0, help="fraction of the population whose mean is the next mean"
    )


class VanillaES(GaussianOptimizer):
    """Moves the mean of a Gaussian population to the mean of its fittest individuals."""

    hyperparameters: VanillaESHyperparameters = pytree_field(default_factory=VanillaESHyperparameters)

    def init(self, params: Params, key: Key) -> GaussianState:
        return GaussianState(**self.common_fields(params, key), mean=params)

    def std(self, state: GaussianState) -> Params:
        return jax.tree.map(lambda _: state.hyperparameters.noise_std, state.mean)

    def update(self, state: GaussianState, fitness: Array, key: Key) -> GaussianState:
        num_elites = jnp.maximum(jnp.round(state.hyperparameters.elite_fraction * self.population_size), 1.0)
        places = jnp.arange(self.population_size, dtype=jnp.float32)
        weights = weights_by_rank(fitness, jnp.where(places < num_elites, 1.0 / num_elites, 0.0))
        step = self.weighted_sum(weights, self.deviations(state))
        return state.replace(mean=jax.tree.map(jnp.add, state.mean, step))

    def report(self, state: GaussianState) -> dict[str, Array]:
        return {"step_size": state.hyperparameters.noise_std}


class VanillaESWorkflow(ECWorkflow):
    """The (mu, lambda) evolution strategy."""

    agent_name = "vanilla_es"
    is_same_on_devices = True
    optimizer_class = VanillaES
