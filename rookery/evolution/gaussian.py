"""What strategies share that draw a population around a mean, with independent Gaussian noise for each parameter."""

from abc import abstractmethod
from typing import Any

import jax

from rookery.evolution.optimizer import ECState, EvoOptimizer
from rookery.types import Array, Key, Params


class GaussianState(ECState):
    """The state of a strategy with the mean of its next population."""

    mean: Params


class GaussianOptimizer(EvoOptimizer):
    """Samples `mean + std * noise`; a strategy defines `std` and how `update` moves the mean.

    If `group_size` is 2, individuals 2i and 2i + 1 have opposite noise.
    """

    @abstractmethod
    def std(self, state: Any) -> Params:
        """Return the standard deviations: a tree like the mean, each leaf of its shape or a scalar."""

    def sample(self, state: Any, key: Key) -> Params:
        def make(noise: Params) -> Params:
            return jax.tree.map(lambda mean, std, noise: mean + std * noise, state.mean, self.std(state), noise)

        return self.individuals(make, state.mean, key, mirrored=self.group_size == 2)

    def center(self, state: Any) -> Params:
        return state.mean

    def deviations(self, state: Any) -> Params:
        """Return how far the individuals of this device lie from the mean, `[P, ...]`."""
        return jax.tree.map(lambda asked, mean: asked - mean[None], state.asked, state.mean)

    def moved(self, mean: Params, learning_rate: Array, direction: Params) -> Params:
        """Return the mean after a step of `learning_rate` in a direction."""
        return jax.tree.map(lambda mean, step: mean + learning_rate * step, mean, direction)
