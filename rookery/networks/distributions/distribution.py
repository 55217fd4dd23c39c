"""What every distribution over actions can do.

A sample is in the distribution's own coordinates, called raw; `action(raw)` maps it to what the environment gets.
Losses use `log_prob(raw)`, so no squashed or clipped action is ever mapped back: it is exact at the bounds.
"""

from abc import ABC, abstractmethod
from typing import Any, Self

import jax.numpy as jnp

from rookery.errors import InvalidInputError
from rookery.spaces import ArraySpace, Shape, Space
from rookery.types import Array, Key, PyTreeData, pytree_field

Raw = Any
"""An action, or a tree of them for a composite space, in the coordinates of its distribution."""


class Distribution(PyTreeData, ABC):
    """A distribution over the actions of `space`, or a batch of them; results have the batch's shape `[...]`."""

    space: Space = pytree_field(static=True)

    @property
    @abstractmethod
    def batch_shape(self) -> Shape:
        """The leading axes: one distribution for each."""

    @abstractmethod
    def sample(self, key: Key) -> Raw:
        """Draw one raw action from each distribution; differentiable where the space is continuous."""

    @abstractmethod
    def mode(self) -> Raw:
        """Return the raw action to take when not exploring."""

    @abstractmethod
    def log_prob(self, raw: Raw) -> Array:
        """Return the log-probability (or log-density) of raw actions."""

    @abstractmethod
    def entropy(self) -> Array:
        """Return the entropy in nats."""

    @abstractmethod
    def kl_divergence(self, other: Self) -> Array:
        """Return KL(self || other) in nats, for another distribution of the same kind."""

    @abstractmethod
    def action(self, raw: Raw) -> Any:
        """Map a raw action to the element of `space` that the environment gets."""

    @abstractmethod
    def raw_of(self, action: Any) -> Raw:
        """Map an action that was chosen elsewhere back to a raw one; what this distribution chose needs no way back."""

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
