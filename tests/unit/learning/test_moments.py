"""Weighted means and variances against float64 NumPy, and at the borders where they could become NaN."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from rookery.distributed import DEVICE_AXIS, device_mesh
from rookery.errors import ShapeError
from rookery.learning.moments import Weighted, check_same_shape


def weighted_mean(values: jax.Array, weights: jax.Array | None = None) -> jax.Array:
    return Weighted(weights=weights).mean(values)


def standardize(values: jax.Array, weights: jax.Array | None = None) -> jax.Array:
    return Weighted(weights=weights).standardize(values)


def explained_variance(targets: jax.Array, predictions: jax.Array, weights: jax.Array | None = None) -> jax.Array:
    return Weighted(weights=weights).explained_variance(targets, predictions).value


def random_samples(*shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values with an offset, weights of which some are 0, and the same values with NaN where the weight is 0."""
    rng = np.random.default_rng(sum(shape))
    values = rng.normal(100.0, 3.0, shape).astype(np.float32)
    weights = rng.integers(0, 3, shape)
    return values, weights, np.where(weights > 0, values, np.nan).astype(np.float32)


def repeated(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.repeat(values.ravel().astype(np.float64), weights.ravel())


def standardize_in_float64(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    counted = repeated(values, weights)
    return np.where(weights > 0, (values.astype(np.float64) - counted.mean()) / counted.std(), 0.0)


@pytest.mark.parametrize("shape", [(7,), (16, 4), (5, 3, 2)])
def test_ignored_samples_may_be_nan_and_weights_count_as_repetitions(shape: tuple[int, ...]) -> None:
    values, weights, poisoned = random_samples(*shape)
    mean = jax.jit(weighted_mean)(jnp.asarray(poisoned), jnp.asarray(weights))
    np.testing.assert_allclose(mean, repeated(values, weights).mean(), rtol=1e-6)
    standardized = jax.jit(standardize)(jnp.asarray(poisoned), jnp.asarray(weights))
    np.testing.assert_allclose(standardized, standardize_in_float64(values, weights), rtol=1e-4, atol=1e-5)


def test_without_weights_every_sample_counts_once() -> None:
    values, _, _ = random_samples(64, 8)
    ones = jnp.ones(values.shape)
    np.testing.assert_allclose(weighted_mean(jnp.asarray(values)), values.astype(np.float64).mean(), rtol=1e-6)
    np.testing.assert_array_equal(standardize(jnp.asarray(values)), standardize(jnp.asarray(values), ones))
    np.testing.assert_allclose(np.std(standardize(jnp.asarray(values))), 1.0, rtol=1e-5)


def test_a_small_spread_on_a_large_offset_is_standardized_exactly() -> None:
    values = (4096.0 + np.random.default_rng(0).integers(0, 9, 10_000) / 1024.0).astype(np.float32)
    exact = values.astype(np.float64)
    actual = standardize(jnp.asarray(values))
    np.testing.assert_allclose(actual, (exact - exact.mean()) / exact.std(), rtol=1e-3, atol=1e-4)


SAMPLES_WITHOUT_SPREAD = {
    "equal": (jnp.full(1000, 1000.1), None),
    "single": (jnp.full(1, -0.3), None),
    "single that counts": (jnp.asarray([5.0, np.nan, 7.0]), jnp.asarray([0.0, 0.0, 1.0])),
    "none that counts": (jnp.asarray([5.0, np.nan, 7.0]), jnp.zeros(3)),
}


@pytest.mark.parametrize("name", SAMPLES_WITHOUT_SPREAD)
def test_samples_without_spread_become_zeros_with_zero_gradients(name: str) -> None:
    values, weights = SAMPLES_WITHOUT_SPREAD[name]
    coefficients = jnp.arange(1.0, 1.0 + len(values))
    np.testing.assert_array_equal(standardize(values, weights), jnp.zeros_like(values))
    gradient = jax.grad(lambda values: jnp.sum(coefficients * standardize(values, weights)))(values)
    np.testing.assert_array_equal(gradient, jnp.zeros_like(values))


def test_no_nan_arises_on_the_way_so_that_debug_nans_can_stay_on() -> None:
    with jax.debug_nans(True):
        for weights in (jnp.zeros(3), jnp.asarray([0.0, 1.0, 0.0]), jnp.ones(3)):
            standardize(jnp.ones(3), weights)
            weighted_mean(jnp.ones(3), weights)


def test_a_mean_of_nothing_is_zero() -> None:
    values, weights = SAMPLES_WITHOUT_SPREAD["none that counts"]
    assert weighted_mean(values, weights) == 0.0
    np.testing.assert_array_equal(jax.grad(weighted_mean)(values, weights), jnp.zeros(3))


def test_the_gradient_of_standardize_is_right_and_zero_for_ignored_samples() -> None:
    _, weights, poisoned = random_samples(9)
    coefficients = jnp.arange(9.0)

    def total(values: jax.Array) -> jax.Array:
        return jnp.sum(coefficients * standardize(values, jnp.asarray(weights)))

    gradient = jax.grad(total)(jnp.asarray(poisoned))
    exact = poisoned.astype(np.float64)

    def difference(index: int) -> float:
        step = np.where(np.arange(9) == index, 1e-5, 0.0)
        above, below = standardize_in_float64(exact + step, weights), standardize_in_float64(exact - step, weights)
        return float(np.sum(np.arange(9.0) * (above - below)) / 2e-5)

    np.testing.assert_allclose(gradient, [difference(index) for index in range(9)], rtol=1e-3, atol=1e-5)


def over_four_lanes(values: np.ndarray, weights: np.ndarray | None) -> Any:
    """Standardize `[4, N]` as four devices would, each with its row."""
    weights = None if weights is None else jnp.asarray(weights)
    return jax.vmap(standardize, axis_name=DEVICE_AXIS)(jnp.asarray(values), weights)


def test_devices_standardize_by_the_moments_of_all() -> None:
    values, weights, poisoned = random_samples(4, 50)
    values[0] += 40.0
    poisoned[0] += 40.0
    weights[2] = 0
    poisoned[2] = np.nan
    expected = standardize(jnp.asarray(values), jnp.asarray(weights))
    np.testing.assert_allclose(over_four_lanes(poisoned, weights), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(over_four_lanes(np.full((4, 50), 1000.1, np.float32), None), np.zeros((4, 50)))


def test_standardize_can_be_differentiated_inside_shard_map() -> None:
    values, _, _ = random_samples(12, 2)
    coefficients = jnp.arange(24.0).reshape(12, 2)

    def gradient(values: jax.Array, coefficients: jax.Array) -> jax.Array:
        return jax.grad(lambda values: jnp.sum(coefficients * standardize(values)))(values)

    spec = PartitionSpec(DEVICE_AXIS)
    on_mesh = jax.shard_map(gradient, mesh=device_mesh(), in_specs=(spec, spec), out_specs=spec)
    actual = jax.jit(on_mesh)(jnp.asarray(values), coefficients)
    np.testing.assert_allclose(actual, gradient(jnp.asarray(values), coefficients), rtol=1e-5, atol=1e-6)


def test_explained_variance_is_one_minus_the_share_of_the_error() -> None:
    targets, weights, poisoned = random_samples(20, 5)
    predictions = (targets + np.random.default_rng(1).normal(7.0, 1.0, targets.shape)).astype(np.float32)
    errors = repeated(targets.astype(np.float64) - predictions, weights)
    expected = 1.0 - errors.var() / repeated(targets, weights).var()
    actual = explained_variance(jnp.asarray(poisoned), jnp.asarray(predictions), jnp.asarray(weights))
    np.testing.assert_allclose(actual, expected, rtol=1e-4)


def test_explained_variance_of_perfect_constant_and_opposite_predictions() -> None:
    targets = jnp.asarray([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(explained_variance(targets, targets), 1.0)
    np.testing.assert_array_equal(explained_variance(targets, jnp.full(3, 9.0)), 0.0)
    np.testing.assert_allclose(explained_variance(targets, -targets), -3.0)


def test_the_variance_of_equal_targets_cannot_be_explained() -> None:
    assert np.isnan(explained_variance(jnp.full(1000, 1000.1), jnp.arange(1000.0)))


@pytest.mark.parametrize("function", [weighted_mean, standardize, explained_variance])
def test_a_trailing_axis_of_one_is_an_error_when_traced(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the tests add to every call is switched off: the function is on its own, as it is for users.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    samples, column = jnp.ones(4), jnp.ones((4, 1))
    jax.eval_shape(function, samples, samples)
    with jax.numpy_rank_promotion("allow"), pytest.raises(ShapeError, match=r"has shape \[4, 1\]; expected .* \[4\]"):
        jax.eval_shape(function, samples, column)


def test_the_error_names_the_array_of_another_shape() -> None:
    with pytest.raises(ShapeError, match=r"^c has shape \[4, 1\]; expected that of a, \[4\]\.$"):
        check_same_shape(a=jnp.ones(4), b=jnp.ones(4), c=jnp.ones((4, 1)))
