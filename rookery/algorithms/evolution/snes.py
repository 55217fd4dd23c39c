"""Separable natural evolution strategies (Schaul et al., 2011; Wierstra et al., 2014, algorithm 6).

Departures from the paper: individuals of equal fitness share their utilities.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rookery.evolution.fitness import weights_by_rank
from rookery.evolution.gaussian import GaussianOptimizer, GaussianState
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, pytree_field
from rookery.workflows.evolution.workflow import ECWorkflow


class SNESHyperparameters(Hyperparameters):
    """The hyper-parameters of SNES."""

    initial_std: Scalar = number(
        0.1, low=1e-9, schedule=False, help="first standard deviation of individuals around their mean"
    )
    learning_rate: Scalar = number(1.0, low=0.0, help="step size of the mean")
    std_learning_rate: Scalar | None = number(
        None, low=0.0, help="of the standard deviations; null: (3 + log d) / (5 sqrt d) for d parameters"
    )


class SNESState(GaussianState):
    """The distribution of the next population."""

    std: Params


class SNES(GaussianOptimizer):
    """Follows the natural gradient of the fitness of a Gaussian with a diagonal covariance."""

    hyperparameters: SNESHyperparameters = pytree_field(default_factory=SNESHyperparameters)

    def init(self, params: Params, key: Key) -> SNESState:
        common = self.common_fields(params, key)
        initial_std = common["hyperparameters"].initial_std
        std = jax.tree.map(lambda mean: jnp.full_like(mean, initial_std), params)
        return SNESState(**common, mean=params, std=std)

    def std(self, state: SNESState) -> Params:
        return state.std

    def update(self, state: SNESState, fitness: Array, key: Key) -> SNESState:
        hyperparameters = state.hyperparameters
        std_learning_rate = hyperparameters.std_learning_rate
        if std_learning_rate is None:
            std_learning_rate = default_std_learning_rate(sum(leaf.size for leaf in jax.tree.leaves(state.mean)))
        weights = weights_by_rank(fitness, jnp.asarray(utilities(self.population_size)))
        noise = jax.tree.map(lambda deviation, std: deviation / std[None], self.deviations(state), state.std)
        mean_gradient = self.weighted_sum(weights, noise)
        std_gradient = self.weighted_sum(weights, jax.tree.map(lambda noise: noise**2 - 1.0, noise))
        mean = jax.tree.map(
            lambda mean, std, gradient: mean + hyperparameters.learning_rate * std * gradient,
            state.mean,
            state.std,
            mean_gradient,
        )
        # Where rounding removes the noise, the deviation shrinks in every generation; 0 would give 0 / 0.
        std = jax.tree.map(
            lambda std, gradient: jnp.maximum(
                std * jnp.exp(std_learning_rate / 2.0 * gradient), jnp.finfo(std.dtype).tiny
            ),
            state.std,
            std_gradient,
        )
        return state.replace(mean=mean, std=std)

    def report(self, state: SNESState) -> dict[str, Array]:
        return {"step_size": jnp.mean(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(state.std)]))}


def utilities(population_size: int) -> np.ndarray:
    """Return the weights of the ranks, best first; they sum to 0 (Wierstra et al., 2014, section 3.1)."""
    places = np.arange(1, population_size + 1)
    utility = np.maximum(0.0, math.log(population_size / 2 + 1) - np.log(places))
    return (utility / utility.sum() - 1.0 / population_size).astype(np.float32)


def default_std_learning_rate(num_dims: int) -> float:
    """Return the learning rate of the standard deviations in `num_dims` dimensions (Wierstra et al., 2014, table 1)."""
    return (3.0 + math.log(num_dims)) / (5.0 * math.sqrt(num_dims))


class SNESWorkflow(ECWorkflow):
    """Separable natural evolution strategies."""

    agent_name = "snes"
    is_same_on_devices = True
    optimizer_class = SNES
