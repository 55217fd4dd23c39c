"""OpenAI's evolution strategy: a gradient estimated from a Gaussian population (Salimans et al., 2017).

Departures from the paper: individuals of equal fitness share their ranks, and noise is sampled in every generation
instead of read from a table.
"""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from rookery.compilation import relaxed_promotion
from rookery.configuration import setting
from rookery.errors import InvalidInputError
from rookery.evolution.fitness import FITNESS_SHAPINGS
from rookery.evolution.gaussian import GaussianOptimizer, GaussianState
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, pytree_field
from rookery.workflows.evolution.workflow import ECWorkflow

ASCENTS = {"adam": optax.scale_by_adam(), "sgd": optax.identity()}


class OpenESHyperparameters(Hyperparameters):
    """The hyper-parameters of OpenES."""

    learning_rate: Scalar = number(0.01, low=0.0, help="step size of the optimizer")
    noise_std: Scalar = number(0.05, low=1e-9, help="standard deviation of individuals around their mean")
    weight_decay: Scalar = number(0.0, low=0.0, high=1.0, help="pulls the mean to zero")
    max_deviation: Scalar | None = number(
        None, low=0.0, help="limits how far an injected individual counts, in expected distances; null: no limit"
    )


class OpenESState(GaussianState):
    """The mean of the next population and the state of the optimizer that moves it."""

    ascent_state: Any


class OpenES(GaussianOptimizer):
    """Follows the estimated gradient of the mean fitness of a Gaussian population."""

    hyperparameters: OpenESHyperparameters = pytree_field(default_factory=OpenESHyperparameters)
    mirrored: bool = setting(True, help="sample individuals in opposite pairs")
    fitness_shaping: str = setting("centered_ranks", choices=FITNESS_SHAPINGS, help="weight of an individual")
    optimizer: str = setting("adam", choices=ASCENTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mirrored and self.population_size % 2:
            raise InvalidInputError(
                f"population_size={self.population_size} must be even: a mirrored population is made of pairs."
            )

    @property
    def group_size(self) -> int:
        return 2 if self.mirrored else 1

    def init(self, params: Params, key: Key) -> OpenESState:
        ascent_state = ASCENTS[self.optimizer].init(params)
        return OpenESState(**self.common_fields(params, key), mean=params, ascent_state=ascent_state)

    def std(self, state: OpenESState) -> Params:
        return jax.tree.map(lambda _: state.hyperparameters.noise_std, state.mean)

    def update(self, state: OpenESState, fitness: Array, key: Key) -> OpenESState:
        hyperparameters = state.hyperparameters
        weights = FITNESS_SHAPINGS[self.fitness_shaping](fitness) / self.population_size
        # A division by a scalar rounds in one of two ways, as XLA decides for each program.
        inverse_variance = 1.0 / hyperparameters.noise_std**2
        gradient = jax.tree.map(
            lambda total, mean: total * inverse_variance - hyperparameters.weight_decay * mean,
            self.weighted_sum(weights, self._limited(state)),
            state.mean,
        )  # algorithm 1, line 6
        with relaxed_promotion():  # optax raises a float to the power of an integer
            steps, ascent_state = ASCENTS[self.optimizer].update(gradient, state.ascent_state)
        mean = self.moved(state.mean, hyperparameters.learning_rate, steps)
        return state.replace(mean=mean, ascent_state=ascent_state)

    def _limited(self, state: OpenESState) -> Params:
        """Return the deviations from the mean, scaled down to `max_deviation` times the expected norm of the noise."""
        deviations, hyperparameters = self.deviations(state), state.hyperparameters
        if hyperparameters.max_deviation is None:
            return deviations
        num_dims = sum(leaf.size for leaf in jax.tree.leaves(state.mean))
        limit = hyperparameters.max_deviation * hyperparameters.noise_std * math.sqrt(num_dims)
        norms = jnp.sqrt(sum(jnp.sum(leaf**2, axis=range(1, leaf.ndim)) for leaf in jax.tree.leaves(deviations)))
        scales = jnp.minimum(1.0, limit / jnp.maximum(norms, limit))
        return jax.tree.map(lambda leaf: leaf * scales.reshape(-1, *(1,) * (leaf.ndim - 1)), deviations)

    def report(self, state: OpenESState) -> dict[str, Array]:
        return {"step_size": state.hyperparameters.noise_std}


class OpenESWorkflow(ECWorkflow):
    """OpenAI's evolution strategy."""

    agent_name = "openes"
    is_same_on_devices = True
    search_space: ClassVar = {
        "noise_std": {"low": 1e-3, "high": 1.0, "scale": "log"},
        "learning_rate": {"low": 1e-4, "high": 1.0, "scale": "log"},
    }
    optimizer_class = OpenES
