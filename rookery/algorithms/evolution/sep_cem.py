"""The cross-entropy method with a diagonal covariance and extra noise that decays (Pourchot & Sigaud, 2019).

Equations (1) and (2) of CEM-RL, without its gradients. Departures from the paper: equals share their weights.
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


class SepCEMHyperparameters(Hyperparameters):
    """The numbers of the cross-entropy method.

    The extra noise is a variance: it goes from `extra_noise` to `extra_noise_end`, and in each generation the
    `extra_noise_decay` of the distance is left.
    """

    RANGES: ClassVar = {
        "initial_std": (1e-9, float("inf")),
        "elite_fraction": (0.0, 1.0),
        "extra_noise": (0.0, float("inf")),
        "extra_noise_end": (0.0, float("inf")),
        "extra_noise_decay": (0.0, 1.0),
    }

    initial_std: Scalar = 0.5
    elite_fraction: Scalar = 0.25
    extra_noise: Scalar = 1e-2
    extra_noise_end: Scalar = 1e-5
    extra_noise_decay: Scalar = 0.95


class SepCEMState(ECState):
    """The distribution of the population to come."""

    mean: Params
    variance: Params


class SepCEM(EvoOptimizer):
    """Fits a Gaussian with a diagonal covariance to the fittest of the last one's population."""

    hyperparameters: SepCEMHyperparameters = pytree_field(default_factory=SepCEMHyperparameters)

    def init(self, params: Params, key: Key) -> SepCEMState:
        common = self.common_fields(params, key)
        initial_variance = common["hyperparameters"].initial_std ** 2
        variance = jax.tree.map(lambda mean: jnp.full_like(mean, initial_variance), params)
        return SepCEMState(**common, mean=params, variance=variance)

    def sample(self, state: SepCEMState, key: Key) -> Params:
        def make(noise: Params) -> Params:
            return jax.tree.map(
                lambda mean, variance, noise: mean + jnp.sqrt(variance) * noise, state.mean, state.variance, noise
            )

        return self.individuals(make, state.mean, key)

    def update(self, state: SepCEMState, fitness: Array, key: Key) -> SepCEMState:
        weights = weights_by_rank(fitness, self._weights(state.hyperparameters.elite_fraction))
        deviations = jax.tree.map(lambda asked, mean: asked - mean[None], state.asked, state.mean)
        mean = jax.tree.map(jnp.add, state.mean, self.weighted_sum(weights, deviations))  # equation (1)
        spread = self.weighted_sum(weights, jax.tree.map(jnp.square, deviations))
        extra_noise = self._extra_noise(state)
        return state.replace(
            mean=mean, variance=jax.tree.map(lambda spread: spread + extra_noise, spread)
        )  # equation (2): deviations from the old mean

    def center(self, state: SepCEMState) -> Params:
        return state.mean

    def report(self, state: SepCEMState) -> dict[str, Array]:
        stds = [jnp.sqrt(leaf).ravel() for leaf in jax.tree.leaves(state.variance)]
        return {"step_size": jnp.mean(jnp.concatenate(stds))}

    def _weights(self, elite_fraction: Array) -> Array:
        """The weights of the ranks, from the best: log((1 + K) / i) for the K elites."""
        num_elites = jnp.maximum(jnp.round(elite_fraction * self.population_size), 1.0)
        places = jnp.arange(1, self.population_size + 1, dtype=jnp.float32)
        weights = jnp.maximum(jnp.log((1.0 + num_elites) / places), 0.0)
        return weights / jnp.sum(weights)

    def _extra_noise(self, state: SepCEMState) -> Array:
        hyperparameters = state.hyperparameters
        left = hyperparameters.extra_noise_decay ** state.generation.astype(jnp.float32)
        distance = hyperparameters.extra_noise - hyperparameters.extra_noise_end
        return hyperparameters.extra_noise_end + distance * left


@dataclass(frozen=True)
class SepCEMConfig(ECConfig):
    """The shapes of the cross-entropy method."""


class SepCEMWorkflow(ECWorkflow):
    """The cross-entropy method with a diagonal covariance."""

    agent_name = "sepcem"
    config_class = SepCEMConfig
    hyperparameters_class = SepCEMHyperparameters
    optimizer_class = SepCEM
