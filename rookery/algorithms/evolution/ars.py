"""Augmented random search (Mania et al., 2018, algorithm 2).

V1 and V2 differ in the normalization of observations, which is a setting of the workflow (`normalize_obs`); the -t
variants use an `elite_fraction` below 1.

Departures from the paper: it trains any network, not only a linear policy that starts at zero. Directions that tie for
the last elite places share their weight.
"""

import jax
import jax.numpy as jnp

from rookery.errors import InvalidInputError
from rookery.evolution.fitness import weights_by_rank
from rookery.evolution.gaussian import GaussianOptimizer, GaussianState
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, pytree_field
from rookery.workflows.evolution.workflow import ECWorkflow


class ARSHyperparameters(Hyperparameters):
    """The hyper-parameters of ARS; at least one direction is used."""

    learning_rate: Scalar = number(0.02, low=0.0, help="step size")
    noise_std: Scalar = number(0.03, low=1e-9, help="standard deviation of individuals around their mean")
    elite_fraction: Scalar = number(
        0.5, low=0.0, high=1.0, help="fraction of the directions that the mean follows: the best"
    )


class ARS(GaussianOptimizer):
    """Moves the mean along the best random directions; individuals 2i and 2i + 1 are an opposite pair."""

    hyperparameters: ARSHyperparameters = pytree_field(default_factory=ARSHyperparameters)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.population_size % 2:
            raise InvalidInputError(
                f"population_size={self.population_size} must be even: every direction is tried both ways."
            )

    @property
    def group_size(self) -> int:
        return 2

    def init(self, params: Params, key: Key) -> GaussianState:
        return GaussianState(**self.common_fields(params, key), mean=params)

    def std(self, state: GaussianState) -> Params:
        return jax.tree.map(lambda _: state.hyperparameters.noise_std, state.mean)

    def update(self, state: GaussianState, fitness: Array, key: Key) -> GaussianState:
        hyperparameters = state.hyperparameters
        pairs = fitness.reshape(-1, 2)
        num_directions = pairs.shape[0]
        num_elites = jnp.maximum(jnp.round(hyperparameters.elite_fraction * num_directions), 1.0)
        places = jnp.arange(num_directions, dtype=jnp.float32)
        weights = weights_by_rank(
            jnp.max(pairs, axis=1), jnp.where(places < num_elites, 1.0 / num_elites, 0.0)
        )  # line 6; weights sum to 1
        return_mean = jnp.sum(weights * jnp.mean(pairs, axis=1))
        return_std = jnp.sqrt(jnp.sum(weights * jnp.mean((pairs - return_mean) ** 2, axis=1)))
        scale = hyperparameters.noise_std * jnp.where(return_std > 0.0, return_std, 1.0)
        # Both individuals of a pair hold its direction, with opposite signs: each gets half of the difference.
        half = weights * (pairs[:, 0] - pairs[:, 1]) / (2.0 * scale)
        direction = self.weighted_sum(jnp.stack([half, -half], axis=1).reshape(-1), self.deviations(state))
        return state.replace(mean=self.moved(state.mean, hyperparameters.learning_rate, direction))  # line 7

    def report(self, state: GaussianState) -> dict[str, Array]:
        return {"step_size": state.hyperparameters.noise_std}


class ARSWorkflow(ECWorkflow):
    """Augmented random search."""

    agent_name = "ars"
    is_same_on_devices = True
    optimizer_class = ARS
