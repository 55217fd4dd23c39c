"""What training and evaluation report."""

from collections.abc import Mapping
from typing import Self

import jax.numpy as jnp

from rookery.types import Array, PyTreeData, PyTreeDict


class EvaluateMetric(PyTreeData):
    """One entry per episode: the (discounted) sum of its rewards and the number of its steps."""

    episode_returns: Array
    episode_lengths: Array


class Mean(PyTreeData):
    """A mean that can still be added to: what was summed, and how many there were.

    Two are added leaf by leaf, so a run of any length is reduced on the device to one number per metric.
    """

    total: Array
    weight: Array

    @classmethod
    def of(cls, value: Array, weight: Array | float = 1.0) -> Self:
        """The mean of one value that stands for `weight` of them."""
        weight = jnp.asarray(weight, jnp.float32)
        return cls(total=jnp.where(weight > 0, value.astype(jnp.float32) * weight, 0.0), weight=weight)

    @classmethod
    def where(cls, mask: Array, values: Array) -> Self:
        """The mean of the values at which the mask is 1."""
        mask = mask.astype(bool)
        chosen = jnp.where(mask, values.astype(jnp.float32), 0.0)
        return cls(total=jnp.sum(chosen), weight=jnp.sum(mask, dtype=jnp.float32))

    @property
    def value(self) -> Array:
        """The mean; NaN if there was nothing to average."""
        return self.total / self.weight


def values_of(metrics: Mapping[str, Mean]) -> PyTreeDict:
    """Return the value of every mean."""
    return PyTreeDict({name: mean.value for name, mean in metrics.items()})
