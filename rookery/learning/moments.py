"""Weighted means and variances: averages of losses, standardization of advantages, diagnostics.

Samples with weight 0 are ignored, even if they are NaN; a weight of 2 counts a sample twice. All variances are
population variances.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from rookery.errors import ShapeError

MIN_STD = 1e-8
"""Added to the standard deviation that `standardize` divides by."""


def weighted_mean(
    values: Float[Array, "*N"], weights: Shaped[Array, "*N"] | None = None, axis_name: str | None = None
) -> Float[Array, ""]:
    """Return the weighted mean; 0 if all weights are 0.

    `axis_name` is the mapped device axis, if there is one: the mean of the results over devices is then the weighted
    mean of the values of all devices, even if the devices have different total weights.
    """
    if weights is None:
        return jnp.mean(values)
    check_same_shape(values=values, weights=weights)
    counted = jnp.where(weights.astype(bool), values, 0.0)
    weights = weights.astype(values.dtype)
    total_weight = jnp.sum(weights)
    if axis_name is not None:
        total_weight = jax.lax.pmean(total_weight, axis_name)
    return jnp.sum(weights * counted) / _one_if_zero(total_weight)


def standardize(
    values: Float[Array, "*N"],
    weights: Shaped[Array, "*N"] | None = None,
    axis_name: str | None = None,
) -> Float[Array, "*N"]:
    """Center and scale to mean 0 and standard deviation 1; ignored values become 0.

    Equal values, or a single one, give zeros with zero gradients. With `axis_name`, a mapped device axis, mean and
    standard deviation are taken over all devices.
    """
    deviations, variance = _deviations_and_variance(values, weights, axis_name)
    is_spread = variance > 0.0
    std = jnp.sqrt(jnp.where(is_spread, variance, 1.0))
    return deviations * jnp.where(is_spread, 1.0 / (std + MIN_STD), 0.0)


def explained_variance(
    targets: Float[Array, "*N"],
    predictions: Float[Array, "*N"],
    weights: Shaped[Array, "*N"] | None = None,
    axis_name: str | None = None,
) -> Float[Array, ""]:
    """Return the fraction of the variance of the targets that the predictions explain.

    1 for perfect predictions, 0 for a constant, negative for worse predictions; NaN if all targets are equal.
    """
    check_same_shape(targets=targets, predictions=predictions)
    _, target_variance = _deviations_and_variance(targets, weights, axis_name)
    _, error_variance = _deviations_and_variance(targets - predictions, weights, axis_name)
    return jnp.where(target_variance > 0.0, 1.0 - error_variance / _one_if_zero(target_variance), jnp.nan)


def check_same_shape(**arrays: Array) -> None:
    """Raise unless all arrays have the shape of the first one; there is no broadcasting."""
    first_name, first = next(iter(arrays.items()))
    for name, array in arrays.items():
        if array.shape != first.shape:
            raise ShapeError(
                f"{name} has shape {list(array.shape)}; expected that of {first_name}, {list(first.shape)}."
            )


def _deviations_and_variance(
    values: Float[Array, "*N"], weights: Shaped[Array, "*N"] | None, axis_name: str | None = None
) -> tuple[Float[Array, "*N"], Float[Array, ""]]:
    """Return the deviations from the mean, 0 for ignored values, and the mean of their squares."""
    if weights is None:
        weights = jnp.ones_like(values)
    check_same_shape(values=values, weights=weights)
    counts = weights.astype(bool)
    weights = weights.astype(values.dtype)

    def total(array: Array) -> Array:
        return jnp.sum(array) if axis_name is None else jax.lax.psum(jnp.sum(array), axis_name)

    # Relative to the largest value, the deviations of equal values are exactly 0. Their mean is rounded, so deviations
    # from it would look like a spread.
    largest = jnp.max(jax.lax.stop_gradient(values), where=counts, initial=-jnp.inf)
    if axis_name is not None:
        largest = jax.lax.pmax(largest, axis_name)
    shifted = jnp.where(counts, values - largest, 0.0)
    total_weight = _one_if_zero(total(weights))
    deviations = jnp.where(counts, shifted - total(weights * shifted) / total_weight, 0.0)
    return deviations, total(weights * deviations**2) / total_weight


def _one_if_zero(number: Float[Array, ""]) -> Float[Array, ""]:
    """Replace 0 by 1, to divide by the weight of an empty sum."""
    return jnp.where(number > 0.0, number, 1.0)
