"""Augmented random search (Mania et al., 2018, algorithm 2).

V1 and V2 differ in the normalization of observations, which is a setting of the workflow (`normalize_obs`); the -t
variants use an `elite_fraction` below 1.

Departures from the paper: any network may be trained, not only a linear policy that starts at zero; equally good
directions at the border of the elites share its places.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from rookery.errors import InvalidInputError
from rookery.evolution import ECState, EvoOptimizer
from rookery.evolution.fitness import weights_by_rank
from rookery.hyperparameters import Hyperparameters, Scalar
from rookery.types import Array, Key, Params, pytree_field
from rookery.workflows.evolution import ECWorkflow
from rookery.workflows.generations import ECConfig


class ARSHyperparameters(Hyperparameters):
    """The numbers of ARS; of the directions the `elite_fraction`, and at least one, are used."""

    RANGES: ClassVar = {
        "learning_rate": (0.0, float("inf")),
        "noise_std": (1e-9, float("inf")),
        "elite_fraction": (0.0, 1.0),
    }

    learning_rate: Scalar = 0.02
    noise_std: Scalar = 0.03
    elite_fraction: Scalar = 0.5


class ARSState(ECState):
    """The mean of the population to come."""

    mean: Params


class ARS(EvoOptimizer):
    """Follows the best of some random directions, each tried both ways: individuals 2i and 2i + 1 are opposites."""

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

    def init(self, params: Params, key: Key) -> ARSState:
        return ARSState(**self.common_fields(params, key), mean=params)

    def sample(self, state: ARSState, key: Key) -> Params:
        noise_std = state.hyperparameters.noise_std

        def make(noise: Params) -> Params:
            return jax.tree.map(lambda mean, noise: mean + noise_std * noise, state.mean, noise)

        return self.individuals(make, state.mean, key, mirrored=True)

    def update(self, state: ARSState, fitness: Array, key: Key) -> ARSState:
        hyperparameters = state.hyperparameters
        pairs = fitness.reshape(-1, 2)
        num_directions = pairs.shape[0]
        num_elites = jnp.maximum(jnp.round(hyperparameters.elite_fraction * num_directions), 1.0)
        places = jnp.arange(num_directions, dtype=jnp.float32)
        weights = weights_by_rank(
            jnp.max(pairs, axis=1), jnp.where(places < num_elites, 1.0 / num_elites, 0.0)
        )  # line 6; they add up to 1
        return_mean = jnp.sum(weights * jnp.mean(pairs, axis=1))
        return_std = jnp.sqrt(jnp.sum(weights * jnp.mean((pairs - return_mean) ** 2, axis=1)))
        scale = hyperparameters.noise_std * jnp.where(return_std > 0.0, return_std, 1.0)
        # Both individuals of a pair hold its direction, with opposite signs: each takes half of the difference.
        half = weights * (pairs[:, 0] - pairs[:, 1]) / (2.0 * scale)
        deviations = jax.tree.map(lambda asked, mean: asked - mean[None], state.asked, state.mean)
        direction = self.weighted_sum(jnp.stack([half, -half], axis=1).reshape(-1), deviations)
        mean = jax.tree.map(
            lambda mean, step: mean + hyperparameters.learning_rate * step, state.mean, direction
        )  # line 7
        return state.replace(mean=mean)

    def center(self, state: ARSState) -> Params:
        return state.mean

    def report(self, state: ARSState) -> dict[str, Array]:
        return {"step_size": state.hyperparameters.noise_std}


@dataclass(frozen=True)
class ARSConfig(ECConfig):
    """The shapes of ARS."""


class ARSWorkflow(ECWorkflow):
    """Augmented random search."""

    agent_name = "ars"
    config_class = ARSConfig
    hyperparameters_class = ARSHyperparameters
    optimizer_class = ARS
