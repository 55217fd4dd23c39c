"""The (mu, lambda) evolution strategy: the mean of the elites is the next mean (Rechenberg, 1973; Schwefel, 1977).

Intermediate recombination of all parents, truncation selection, and an isotropic step size that does not adapt by
itself but may follow a schedule. Equals at the border of the elites share its places.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from rookery.evolution import ECState, EvoOptimizer
from rookery.evolution.fitness import weights_by_rank
from rookery.hyperparameters import Hyperparameters, Scalar
from rookery.types import Array, Key, Params, pytree_field
from rookery.workflows.evolution import ECWorkflow
from rookery.workflows.generations import ECConfig


class VanillaESHyperparameters(Hyperparameters):
    """The numbers of the (mu, lambda) strategy; mu is the `elite_fraction` of the population, and at least 1."""

    RANGES: ClassVar = {"noise_std": (1e-9, float("inf")), "elite_fraction": (0.0, 1.0)}

    noise_std: Scalar = 0.1
    elite_fraction: Scalar = 0.1


class VanillaESState(ECState):
    """The mean of the population to come."""

    mean: Params


class VanillaES(EvoOptimizer):
    """Moves to the mean of the fittest of a Gaussian population."""

    hyperparameters: VanillaESHyperparameters = pytree_field(default_factory=VanillaESHyperparameters)

    def init(self, params: Params, key: Key) -> VanillaESState:
        return VanillaESState(**self.common_fields(params, key), mean=params)

    def sample(self, state: VanillaESState, key: Key) -> Params:
        noise_std = state.hyperparameters.noise_std

        def make(noise: Params) -> Params:
            return jax.tree.map(lambda mean, noise: mean + noise_std * noise, state.mean, noise)

        return self.individuals(make, state.mean, key)

    def update(self, state: VanillaESState, fitness: Array, key: Key) -> VanillaESState:
        num_elites = jnp.maximum(jnp.round(state.hyperparameters.elite_fraction * self.population_size), 1.0)
        places = jnp.arange(self.population_size, dtype=jnp.float32)
        weights = weights_by_rank(fitness, jnp.where(places < num_elites, 1.0 / num_elites, 0.0))
        deviations = jax.tree.map(lambda asked, mean: asked - mean[None], state.asked, state.mean)
        return state.replace(mean=jax.tree.map(jnp.add, state.mean, self.weighted_sum(weights, deviations)))

    def center(self, state: VanillaESState) -> Params:
        return state.mean

    def report(self, state: VanillaESState) -> dict[str, Array]:
        return {"step_size": state.hyperparameters.noise_std}


@dataclass(frozen=True)
class VanillaESConfig(ECConfig):
    """The shapes of the (mu, lambda) strategy."""


class VanillaESWorkflow(ECWorkflow):
    """The (mu, lambda) evolution strategy."""

    agent_name = "vanilla_es"
    config_class = VanillaESConfig
    hyperparameters_class = VanillaESHyperparameters
    optimizer_class = VanillaES
