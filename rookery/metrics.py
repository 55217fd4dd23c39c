"""Metrics of training and evaluation."""

from collections.abc import Mapping
from typing import Self

import jax.numpy as jnp

from rookery.types import Array, PyTreeData, PyTreeDict


class EvaluateMetric(PyTreeData):
    """Return (sum of possibly discounted rewards) and number of steps of each episode."""

    episode_returns: Array
    episode_lengths: Array

    def summary(self, prefix: str) -> dict[str, Array]:
        """Return the metrics of these episodes for a record."""
        return {
            f"{prefix}mean_reward": jnp.mean(self.episode_returns),
            f"{prefix}std_reward": jnp.std(self.episode_returns),
            f"{prefix}mean_ep_length": jnp.mean(self.episode_lengths.astype(jnp.float32)),
        }


class Mean(PyTreeData):
    """A mean as total and weight.

    Means are combined by adding them leaf by leaf, so the device reduces a run of any length to one mean per metric.
    """

    total: Array
    weight: Array

    @classmethod
    def of(cls, value: Array, weight: Array | float = 1.0) -> Self:
        """Return the mean of a value with this weight."""
        weight = jnp.asarray(weight, jnp.float32)
        return cls(total=jnp.where(weight > 0, value.astype(jnp.float32) * weight, 0.0), weight=weight)

    @classmethod
    def where(cls, mask: Array, values: Array) -> Self:
        """Return the mean of the values where the mask is 1."""
        mask = mask.astype(bool)
        chosen = jnp.where(mask, values.astype(jnp.float32), 0.0)
        return cls(total=jnp.sum(chosen), weight=jnp.sum(mask, dtype=jnp.float32))

    @property
    def value(self) -> Array:
        """The mean; NaN without samples."""
        return self.total / self.weight


def values_of(metrics: Mapping[str, Mean]) -> PyTreeDict:
    """Return the value of every mean."""
    return PyTreeDict({name: mean.value for name, mean in metrics.items()})
