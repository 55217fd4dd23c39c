"""What strategies share that draw a population around a mean, with independent Gaussian noise for each parameter."""

from abc import abstractmethod
from functools import partial
from typing import Any

import jax

from rookery.evolution.optimizer import ECState, EvoOptimizer, make_groups
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
        make_fn = partial(_perturbed, state.mean, self.std(state))
        return self.individuals(make_fn, state.mean, key, mirrored=self.group_size == 2)

    def recipe(self, state: Any) -> tuple[Params, Params] | None:
        """Return the mean and the standard deviations; None if a strategy samples in its own way."""
        samples_like_this = type(self).sample is GaussianOptimizer.sample
        return (state.mean, self.std(state)) if samples_like_this else None

    def sample_some(self, recipe: tuple[Params, Params], key: Key, first: Array, count: int) -> Params:
        mean, std = recipe
        size = self.group_size
        # One more than needed: `first` may be the second of a pair, and XLA rounds differently in batches of one.
        num_groups = (count - 1) // size + 2
        made = make_groups(partial(_perturbed, mean, std), mean, key, first // size, num_groups, mirrored=size == 2)
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first % size, count), made)

    def center(self, state: Any) -> Params:
        return state.mean

    def deviations(self, state: Any) -> Params:
        """Return how far the individuals of this device lie from the mean, `[P, ...]`."""
        return jax.tree.map(lambda asked, mean: asked - mean[None], state.asked, state.mean)

    def moved(self, mean: Params, learning_rate: Array, direction: Params) -> Params:
        """Return the mean after a step of `learning_rate` in a direction."""
        return jax.tree.map(lambda mean, step: mean + learning_rate * step, mean, direction)


def _perturbed(mean: Params, std: Params, noise: Params) -> Params:
    return jax.tree.map(lambda mean, std, noise: mean + std * noise, mean, std, noise)
