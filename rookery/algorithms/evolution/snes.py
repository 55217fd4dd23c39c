"""Separable natural evolution strategies (Schaul et al., 2011; Wierstra et al., 2014, algorithm 6).

Departures from the paper: equals share their utilities.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery.evolution import ECState, EvoOptimizer
from rookery.evolution.fitness import weights_by_rank
from rookery.hyperparameters import Hyperparameters, Scalar
from rookery.types import Array, Key, Params, pytree_field
from rookery.workflows.evolution import ECWorkflow
from rookery.workflows.generations import ECConfig


class SNESHyperparameters(Hyperparameters):
    """The numbers of SNES; a `std_learning_rate` of None depends on the number of parameters."""

    RANGES: ClassVar = {
        "initial_std": (1e-9, float("inf")),
        "learning_rate": (0.0, float("inf")),
        "std_learning_rate": (0.0, float("inf")),
    }

    initial_std: Scalar = 0.1
    learning_rate: Scalar = 1.0
    std_learning_rate: Scalar | None = None


class SNESState(ECState):
    """The distribution of the population to come."""

    mean: Params
    std: Params


class SNES(EvoOptimizer):
    """Follows the natural gradient of the fitness of a Gaussian with a diagonal covariance."""

    hyperparameters: SNESHyperparameters = pytree_field(default_factory=SNESHyperparameters)

    def init(self, params: Params, key: Key) -> SNESState:
        common = self.common_fields(params, key)
        initial_std = common["hyperparameters"].initial_std
        std = jax.tree.map(lambda mean: jnp.full_like(mean, initial_std), params)
        return SNESState(**common, mean=params, std=std)

    def sample(self, state: SNESState, key: Key) -> Params:
        def make(noise: Params) -> Params:
            return jax.tree.map(lambda mean, std, noise: mean + std * noise, state.mean, state.std, noise)

        return self.individuals(make, state.mean, key)

    def update(self, state: SNESState, fitness: Array, key: Key) -> SNESState:
        hyperparameters = state.hyperparameters
        std_learning_rate = hyperparameters.std_learning_rate
        if std_learning_rate is None:
            std_learning_rate = default_std_learning_rate(sum(leaf.size for leaf in jax.tree.leaves(state.mean)))
        weights = weights_by_rank(fitness, jnp.asarray(utilities(self.population_size)))
        noise = jax.tree.map(
            lambda asked, mean, std: (asked - mean[None]) / std[None], state.asked, state.mean, state.std
        )
        mean_gradient = self.weighted_sum(weights, noise)
        std_gradient = self.weighted_sum(weights, jax.tree.map(lambda noise: noise**2 - 1.0, noise))
        mean = jax.tree.map(
            lambda mean, std, gradient: mean + hyperparameters.learning_rate * std * gradient,
            state.mean,
            state.std,
            mean_gradient,
        )
        # A coordinate whose noise is lost in rounding shrinks in every generation; at 0 it would divide 0 by 0.
        std = jax.tree.map(
            lambda std, gradient: jnp.maximum(
                std * jnp.exp(std_learning_rate / 2.0 * gradient), jnp.finfo(std.dtype).tiny
            ),
            state.std,
            std_gradient,
        )
        return state.replace(mean=mean, std=std)

    def center(self, state: SNESState) -> Params:
        return state.mean

    def report(self, state: SNESState) -> dict[str, Array]:
        return {"step_size": jnp.mean(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(state.std)]))}


def utilities(population_size: int) -> np.ndarray:
    """The weights of the ranks, from the best; they add up to 0 (Wierstra et al., 2014, section 3.1)."""
    places = np.arange(1, population_size + 1)
    utility = np.maximum(0.0, math.log(population_size / 2 + 1) - np.log(places))
    return (utility / utility.sum() - 1.0 / population_size).astype(np.float32)


def default_std_learning_rate(num_dims: int) -> float:
    """How fast the standard deviations of so many numbers learn (Wierstra et al., 2014, table 1)."""
    return (3.0 + math.log(num_dims)) / (5.0 * math.sqrt(num_dims))


@dataclass(frozen=True)
class SNESConfig(ECConfig):
    """The shapes of SNES."""


class SNESWorkflow(ECWorkflow):
    """Separable natural evolution strategies."""

    agent_name = "snes"
    config_class = SNESConfig
    hyperparameters_class = SNESHyperparameters
    optimizer_class = SNES
