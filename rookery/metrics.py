"""Metrics of training and evaluation."""

from collections.abc import Mapping
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.two_float import TwoFloat
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
    """A mean as total and weight. Means are combined by adding them leaf by leaf."""

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

    def add(self, other: Self) -> Self:
        """Combine two means."""
        return jax.tree.map(jnp.add, self, other)

    def over_members(self) -> Self:
        """Combine the means `[P]` of a population; those that are not finite do not count."""
        is_finite = jnp.isfinite(self.total)
        return jax.tree.map(lambda leaf: jnp.sum(jnp.where(is_finite, leaf, 0.0)), self)

    def since_record(self) -> "RunningMean":
        """Start a running mean with this one."""
        return RunningMean(total=TwoFloat.of(self.total), weight=TwoFloat.of(self.weight))


class RunningMean(PyTreeData):
    """The mean over all iterations since the last record.

    A sum in one float would stop growing: after 2^24 episodes, another one would not change their number.
    """

    total: TwoFloat
    weight: TwoFloat

    def add(self, mean: Mean) -> Self:
        """Include the mean of another iteration."""
        return self.replace(
            total=self.total.add(TwoFloat.of(mean.total)), weight=self.weight.add(TwoFloat.of(mean.weight))
        )

    def value_of(self, seed_index: int) -> float | None:
        """Return the mean of a seed, on the host; None without samples."""
        total, weight = (_exact(number, seed_index) for number in (self.total, self.weight))
        return total / weight if weight > 0 else None


class Latest(PyTreeData):
    """A value that a record shows as it is at that moment, such as the size of an archive."""

    value: Array
    is_known: Array

    @classmethod
    def of(cls, value: Array) -> Self:
        """Make the metric of a value; one that is not finite is left out of the record."""
        return cls(value=value.astype(jnp.float32), is_known=jnp.isfinite(value))

    def since_record(self) -> Self:
        """Start with this value."""
        return self

    def add(self, later: Self) -> Self:
        """Return the later value, if it is known."""
        return jax.tree.map(lambda old, new: jnp.where(later.is_known, new, old), self, later)

    def over_members(self) -> Self:
        """Return the mean of the known values `[P]` of a population."""
        num_known = jnp.sum(self.is_known, dtype=jnp.float32)
        total = jnp.sum(jnp.where(self.is_known, self.value, 0.0))
        return self.replace(value=total / jnp.maximum(num_known, 1.0), is_known=num_known > 0)

    def value_of(self, seed_index: int) -> float | None:
        """Return the value of a seed, on the host; None if it is unknown."""
        is_known = np.ravel(self.is_known)[seed_index]
        return float(np.ravel(self.value)[seed_index]) if is_known else None


Metrics = Mapping[str, Mean | Latest]
"""The metrics of one iteration."""
RunningMetrics = dict[str, RunningMean | Latest]
"""The metrics since the last record."""


def accumulate(running: RunningMetrics, metrics: Metrics) -> RunningMetrics:
    """Add the metrics of an iteration to those since the last record."""
    return {name: running[name].add(metric) for name, metric in metrics.items()}  # type: ignore[arg-type]


def running_shapes(metrics: Metrics) -> RunningMetrics:
    """Return the shapes of the metrics since the last record, given those of an iteration."""
    return jax.eval_shape(lambda metrics: {name: metric.since_record() for name, metric in metrics.items()}, metrics)


def values_of(metrics: Mapping[str, Mean | Latest]) -> PyTreeDict:
    """Return the value of every metric."""
    return PyTreeDict({name: metric.value for name, metric in metrics.items()})


def values_of_seed(metrics: RunningMetrics, seed_index: int) -> dict[str, float]:
    """Return the metrics of a seed that have a value, on the host."""
    values = {name: metric.value_of(seed_index) for name, metric in metrics.items()}
    return {name: value for name, value in values.items() if value is not None}


def _exact(number: TwoFloat, seed_index: int) -> float:
    return float(np.ravel(number.high)[seed_index]) + float(np.ravel(number.low)[seed_index])
