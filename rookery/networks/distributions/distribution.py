"""The interface of action distributions.

A sample is a raw action; `action(raw)` maps it to the action for the environment. Losses use `log_prob(raw)`, which is
exact at the bounds: squashed or clipped actions are never mapped back.
"""

from abc import ABC, abstractmethod
from typing import Self

import jax.numpy as jnp

from rookery.errors import InvalidInputError
from rookery.spaces import ArraySpace, Shape, Space
from rookery.types import Action, Array, Key, PyTree, PyTreeData, pytree_field

Raw = PyTree
"""A sample of a distribution before clipping or squashing; a tree for composite spaces."""


class Distribution(PyTreeData, ABC):
    """A distribution over the actions of `space`, or a batch of them; results have the batch shape `[...]`."""

    space: Space = pytree_field(static=True)

    @property
    @abstractmethod
    def batch_shape(self) -> Shape:
        """The batch axes of the distribution."""

    @abstractmethod
    def sample(self, key: Key) -> Raw:
        """Sample one raw action per distribution; differentiable for continuous spaces."""

    @abstractmethod
    def mode(self) -> Raw:
        """Return the greedy raw action."""

    @abstractmethod
    def log_prob(self, raw: Raw) -> Array:
        """Return the log-probability (or log-density) of raw actions."""

    @abstractmethod
    def entropy(self) -> Array:
        """Return the entropy in nats."""

    @abstractmethod
    def kl_divergence(self, other: Self) -> Array:
        """Return KL(self || other) in nats; both must be of the same kind."""

    @abstractmethod
    def action(self, raw: Raw) -> Action:
        """Map a raw action to an element of `space`."""

    @abstractmethod
    def raw_of(self, action: Action) -> Raw:
        """Map an action back to a raw one; needed only for actions that were not sampled from this distribution."""

    def _check_raw(self, raw: Raw) -> None:
        self.space.check(raw, "raw action", self.batch_shape)

    def _check_same_kind(self, other: "Distribution") -> None:
        if type(self) is not type(other) or self.space != other.space:
            raise InvalidInputError(
                f"the KL divergence of {type(self).__name__} over {self.space} from {type(other).__name__} over "
                f"{other.space} is not defined: both must be of the same kind, over the same space."
            )


def sum_over_event(values: Array, space: ArraySpace) -> Array:
    """Sum over the trailing axes that belong to one action."""
    return jnp.sum(values, axis=tuple(range(values.ndim - len(space.shape), values.ndim)))
