"""Weighted means and variances: averages of losses, standardization of advantages, diagnostics.

Samples with weight 0 are ignored, even if they are NaN; a weight of 2 counts a sample twice. All variances are
population variances.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.distributed.collectives import device_axis, mean_over_devices, sum_over_devices
from rookery.errors import ShapeError
from rookery.metrics import Mean
from rookery.types import PyTreeData

MIN_STD = 1e-8
"""Added to the standard deviation that `standardize` divides by."""


class Weighted(PyTreeData):
    """Rows with weights; averages are weighted and taken over all devices."""

    weights: Array | None = None
    """0 for dead rows, 1 for the others; None if no row is dead."""

    def mean(self, values: Float[Array, "*N"]) -> Float[Array, ""]:
        """Return the weighted mean; 0 if all weights are 0.

        The mean of the results over devices is the weighted mean of the values of all devices, even if the devices have
        different total weights.
        """
        if self.weights is None:
            return jnp.mean(values)
        check_same_shape(values=values, weights=self.weights)
        counted = jnp.where(self.weights.astype(bool), values, 0.0)
        weights = self.weights.astype(values.dtype)
        return jnp.sum(weights * counted) / one_if_zero(mean_over_devices(jnp.sum(weights)))

    def standardize(self, values: Float[Array, "*N"]) -> Float[Array, "*N"]:
        """Center and scale to mean 0 and standard deviation 1; ignored values become 0.

        Equal values, or a single one, give zeros with zero gradients.
        """
        deviations, variance = self._deviations_and_variance(values)
        is_spread = variance > 0.0
        std = jnp.sqrt(jnp.where(is_spread, variance, 1.0))
        return deviations * jnp.where(is_spread, 1.0 / (std + MIN_STD), 0.0)

    def explained_variance(self, targets: Float[Array, "*N"], predictions: Float[Array, "*N"]) -> Mean:
        """Return the fraction of the variance of the targets that the predictions explain.

        1 for perfect predictions, 0 for a constant, negative for worse predictions; empty if all targets are equal.
        """
        check_same_shape(targets=targets, predictions=predictions)
        _, target_variance = self._deviations_and_variance(targets)
        _, error_variance = self._deviations_and_variance(targets - predictions)
        share = jnp.where(target_variance > 0.0, 1.0 - error_variance / one_if_zero(target_variance), jnp.nan)
        return Mean.where(jnp.isfinite(share), share)

    def _deviations_and_variance(self, values: Float[Array, "*N"]) -> tuple[Float[Array, "*N"], Float[Array, ""]]:
        """Return the deviations from the mean, 0 for ignored values, and the mean of their squares."""
        weights = jnp.ones_like(values) if self.weights is None else self.weights
        check_same_shape(values=values, weights=weights)
        counts = weights.astype(bool)
        weights = weights.astype(values.dtype)
        # Relative to the largest value, the deviations of equal values are exactly 0. Their mean is rounded, so
        # deviations from it would look like a spread.
        largest, axis = jnp.max(jax.lax.stop_gradient(values), where=counts, initial=-jnp.inf), device_axis()
        if axis is not None:
            largest = jax.lax.pmax(largest, axis)
        shifted = jnp.where(counts, values - largest, 0.0)
        total_weight = one_if_zero(sum_over_devices(jnp.sum(weights)))
        mean = sum_over_devices(jnp.sum(weights * shifted)) / total_weight
        deviations = jnp.where(counts, shifted - mean, 0.0)
        return deviations, sum_over_devices(jnp.sum(weights * deviations**2)) / total_weight


def one_if_zero(total: Float[Array, "..."]) -> Float[Array, "..."]:
    """Replace 0 by 1, to divide by the weight of an empty sum."""
    return jnp.where(total > 0.0, total, 1.0)


def check_same_shape(**arrays: Array) -> None:
    """Raise unless all arrays have the shape of the first one; there is no broadcasting."""
    first_name, first = next(iter(arrays.items()))
    for name, array in arrays.items():
        if array.shape != first.shape:
            raise ShapeError(
                f"{name} has shape {list(array.shape)}; expected that of {first_name}, {list(first.shape)}."
            )


def check_rank(rank: int, **arrays: Array | float | int) -> None:
    """Raise unless all arrays have `rank` axes."""
    for name, array in arrays.items():
        if jnp.ndim(array) != rank:
            expected = "one number: vmap over several" if rank == 0 else f"{rank} axes"
            raise ShapeError(f"{name} has shape {list(jnp.shape(array))}; expected {expected}.")
