"""OpenAI's evolution strategy: a gradient estimated from a Gaussian population (Salimans et al., 2017).

Departures from the paper: none in the method; equal fitness shares its ranks, and the noise is drawn anew instead of
being read from a table.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import optax

from rookery.errors import InvalidInputError, unknown_name
from rookery.evolution import ECState, EvoOptimizer
from rookery.evolution.fitness import fitness_shaping
from rookery.hyperparameters import Hyperparameters, Scalar
from rookery.types import Array, Key, Params, pytree_field
from rookery.workflows.evolution import ECWorkflow
from rookery.workflows.generations import ECConfig

ASCENTS = {"adam": optax.scale_by_adam(), "sgd": optax.identity()}


class OpenESHyperparameters(Hyperparameters):
    """The numbers of OpenES."""

    RANGES: ClassVar = {
        "learning_rate": (0.0, float("inf")),
        "noise_std": (1e-9, float("inf")),
        "weight_decay": (0.0, 1.0),
    }

    learning_rate: Scalar = 0.01
    noise_std: Scalar = 0.05
    weight_decay: Scalar = 0.0


class OpenESState(ECState):
    """The mean of the population to come, and what the ascent remembers."""

    mean: Params
    ascent_state: Any


class OpenES(EvoOptimizer):
    """Follows the estimated gradient of the mean fitness of a Gaussian population."""

    hyperparameters: OpenESHyperparameters = pytree_field(default_factory=OpenESHyperparameters)
    mirrored: bool = pytree_field(static=True, default=True)
    fitness_shaping: str = pytree_field(static=True, default="centered_ranks")
    optimizer: str = pytree_field(static=True, default="adam")

    def __post_init__(self) -> None:
        super().__post_init__()
        fitness_shaping(self.fitness_shaping)
        if self.optimizer not in ASCENTS:
            raise unknown_name("optimizer", self.optimizer, ASCENTS)
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

    def sample(self, state: OpenESState, key: Key) -> Params:
        noise_std = state.hyperparameters.noise_std

        def make(noise: Params) -> Params:
            return jax.tree.map(lambda mean, noise: mean + noise_std * noise, state.mean, noise)

        return self.individuals(make, state.mean, key, self.mirrored)

    def update(self, state: OpenESState, fitness: Array, key: Key) -> OpenESState:
        hyperparameters = state.hyperparameters
        weights = fitness_shaping(self.fitness_shaping)(fitness) / self.population_size
        deviations = jax.tree.map(lambda asked, mean: asked - mean[None], state.asked, state.mean)
        gradient = jax.tree.map(
            lambda total, mean: total / hyperparameters.noise_std**2 - hyperparameters.weight_decay * mean,
            self.weighted_sum(weights, deviations),
            state.mean,
        )  # algorithm 1, line 6
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of an integer
            steps, ascent_state = ASCENTS[self.optimizer].update(gradient, state.ascent_state)
        mean = jax.tree.map(lambda mean, step: mean + hyperparameters.learning_rate * step, state.mean, steps)
        return state.replace(mean=mean, ascent_state=ascent_state)

    def center(self, state: OpenESState) -> Params:
        return state.mean

    def report(self, state: OpenESState) -> dict[str, Array]:
        return {"step_size": state.hyperparameters.noise_std}


@dataclass(frozen=True)
class OpenESConfig(ECConfig):
    """The shapes of OpenES."""

    mirrored: bool = True
    fitness_shaping: str = "centered_ranks"
    optimizer: str = "adam"


class OpenESWorkflow(ECWorkflow):
    """OpenAI's evolution strategy."""

    agent_name = "openes"
    config_class = OpenESConfig
    hyperparameters_class = OpenESHyperparameters
    optimizer_class = OpenES
