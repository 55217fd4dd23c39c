"""The cross-entropy method with a diagonal covariance and decaying extra noise (Pourchot & Sigaud, 2019).

Equations (1) and (2) of CEM-RL, without its gradients. Departures from the paper: individuals of equal fitness share
their weights.
"""

import jax
import jax.numpy as jnp

from rookery.evolution.fitness import weights_by_rank
from rookery.evolution.gaussian import GaussianOptimizer, GaussianState
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, pytree_field
from rookery.workflows.evolution.workflow import ECWorkflow


class SepCEMHyperparameters(Hyperparameters):
    """The hyper-parameters of the cross-entropy method.

    The extra noise is a variance. It decays exponentially from `extra_noise` to `extra_noise_end`.
    """

    initial_std: Scalar = number(
        0.5, low=1e-9, schedule=False, help="first standard deviation of individuals around their mean"
    )
    elite_fraction: Scalar = number(
        0.25, low=0.0, high=1.0, help="fraction of the population that the next distribution is fitted to"
    )
    spread_factor: Scalar = number(
        1.0, low=0.0, help="factor of the variance of the elites; the code of CEM-RL has 1 / number of elites"
    )
    extra_noise: Scalar = number(1e-2, low=0.0, help="added to the variances at first; prevents their collapse")
    extra_noise_end: Scalar = number(1e-5, low=0.0, help="added to the variances in the end")
    extra_noise_decay: Scalar = number(
        0.95, low=0.0, high=1.0, help="fraction of the distance between the two that is left after a generation"
    )


class SepCEMState(GaussianState):
    """The distribution of the next population."""

    variance: Params


class SepCEM(GaussianOptimizer):
    """Fits a Gaussian with a diagonal covariance to the fittest individuals of the population."""

    hyperparameters: SepCEMHyperparameters = pytree_field(default_factory=SepCEMHyperparameters)

    def init(self, params: Params, key: Key) -> SepCEMState:
        common = self.common_fields(params, key)
        initial_variance = common["hyperparameters"].initial_std ** 2
        variance = jax.tree.map(lambda mean: jnp.full_like(mean, initial_variance), params)
        return SepCEMState(**common, mean=params, variance=variance)

    def std(self, state: SepCEMState) -> Params:
        return jax.tree.map(jnp.sqrt, state.variance)

    def update(self, state: SepCEMState, fitness: Array, key: Key) -> SepCEMState:
        weights = weights_by_rank(fitness, self._weights(state.hyperparameters.elite_fraction))
        deviations = self.deviations(state)
        mean = jax.tree.map(jnp.add, state.mean, self.weighted_sum(weights, deviations))  # equation (1)
        spread = self.weighted_sum(weights, jax.tree.map(jnp.square, deviations))
        factor, extra_noise = state.hyperparameters.spread_factor, self._extra_noise(state)
        return state.replace(
            mean=mean, variance=jax.tree.map(lambda spread: factor * spread + extra_noise, spread)
        )  # equation (2): deviations from the old mean

    def report(self, state: SepCEMState) -> dict[str, Array]:
        stds = [jnp.sqrt(leaf).ravel() for leaf in jax.tree.leaves(state.variance)]
        return {"step_size": jnp.mean(jnp.concatenate(stds))}

    def _weights(self, elite_fraction: Array) -> Array:
        """Return the weights of the ranks, best first: log((1 + K) / i) for the K elites."""
        num_elites = jnp.maximum(jnp.round(elite_fraction * self.population_size), 1.0)
        places = jnp.arange(1, self.population_size + 1, dtype=jnp.float32)
        weights = jnp.maximum(jnp.log((1.0 + num_elites) / places), 0.0)
        return weights / jnp.sum(weights)

    def _extra_noise(self, state: SepCEMState) -> Array:
        hyperparameters = state.hyperparameters
        left = hyperparameters.extra_noise_decay ** state.generation.astype(jnp.float32)
        distance = hyperparameters.extra_noise - hyperparameters.extra_noise_end
        return hyperparameters.extra_noise_end + distance * left


class SepCEMWorkflow(ECWorkflow):
    """The cross-entropy method with a diagonal covariance."""

    agent_name = "sepcem"
    is_same_on_devices = True
    optimizer_class = SepCEM
