"""Means and variances of samples of which some may be ignored: loss averages, advantage standardization, diagnostics.

Weights are 1 for a sample that counts and 0 for one to be ignored, even if it is NaN; other weights count as
repetitions. All variances are those of the population.
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
    """Average the values that count; 0 where none does.

    Under a mapped device axis, give its name: the mean of the results of all devices is then the average of all values,
    also where the devices count different numbers of them.
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

    Equal values, among them a single one, give zeros with zero gradients. Under a mapped device axis, give its name:
    mean and standard deviation are those of the values of all devices.
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
    """Return the share of the variance of the targets that the predictions account for.

    1 for perfect predictions, 0 for a constant, negative for worse than that; NaN where all targets are equal.
    """
    check_same_shape(targets=targets, predictions=predictions)
    _, target_variance = _deviations_and_variance(targets, weights, axis_name)
    _, error_variance = _deviations_and_variance(targets - predictions, weights, axis_name)
    return jnp.where(target_variance > 0.0, 1.0 - error_variance / _one_if_zero(target_variance), jnp.nan)


def check_same_shape(**arrays: Array) -> None:
    """Raise unless all arrays have the shape of the first; nothing is broadcast."""
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

    # Taken from the largest value, the deviations of equal values are exactly 0: the mean of the values themselves
    # is rounded, and would leave deviations that look like a spread.
    largest = jnp.max(jax.lax.stop_gradient(values), where=counts, initial=-jnp.inf)
    if axis_name is not None:
        largest = jax.lax.pmax(largest, axis_name)
    shifted = jnp.where(counts, values - largest, 0.0)
    total_weight = _one_if_zero(total(weights))
    deviations = jnp.where(counts, shifted - total(weights * shifted) / total_weight, 0.0)
    return deviations, total(weights * deviations**2) / total_weight


def _one_if_zero(number: Float[Array, ""]) -> Float[Array, ""]:
    """Make a divisor of a sum over nothing."""
    return jnp.where(number > 0.0, number, 1.0)
