"""The fast sine and cosine equal NumPy's in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs.classic.trigonometry import sin_cos, wrap_angle


@pytest.mark.parametrize("largest", [0.25, math.pi, 1000.0])
def test_sine_and_cosine_are_within_2e_7_of_the_truth(largest: float) -> None:
    angles = np.linspace(-largest, largest, 100_001, dtype=np.float32)
    sin, cos = jax.jit(sin_cos)(angles)
    np.testing.assert_allclose(sin, np.sin(angles, dtype=np.float64), rtol=0, atol=2e-7)
    np.testing.assert_allclose(cos, np.cos(angles, dtype=np.float64), rtol=0, atol=2e-7)


@pytest.mark.parametrize("peak", [0.0, math.pi / 2, math.pi, -math.pi / 2, 7.5 * math.pi])
def test_neither_is_ever_greater_than_one(peak: float) -> None:
    angles = np.linspace(peak - 1e-2, peak + 1e-2, 100_001, dtype=np.float32)
    for compute in (sin_cos, jax.jit(sin_cos)):
        sin, cos = compute(jnp.asarray(angles))
        assert jnp.abs(sin).max() <= 1.0
        assert jnp.abs(cos).max() <= 1.0


def test_the_derivative_of_the_sine_is_the_cosine_and_of_the_cosine_the_negative_sine() -> None:
    angles = np.linspace(-10, 10, 1001, dtype=np.float32)
    sin_slope = jax.vmap(jax.grad(lambda angle: sin_cos(angle)[0]))(angles)
    cos_slope = jax.vmap(jax.grad(lambda angle: sin_cos(angle)[1]))(angles)
    np.testing.assert_allclose(sin_slope, np.cos(angles, dtype=np.float64), rtol=0, atol=1e-6)
    np.testing.assert_allclose(cos_slope, -np.sin(angles, dtype=np.float64), rtol=0, atol=1e-6)


def test_an_angle_that_is_not_finite_has_no_sine() -> None:
    sin, cos = sin_cos(jnp.array([jnp.nan, jnp.inf, -jnp.inf]))
    assert jnp.isnan(sin).all()
    assert jnp.isnan(cos).all()


def test_wrapping_takes_off_whole_turns_and_nothing_else() -> None:
    angles = np.linspace(-50, 50, 10_001, dtype=np.float32)
    wrapped = np.asarray(wrap_angle(jnp.asarray(angles)), np.float64)
    num_turns = (angles.astype(np.float64) - wrapped) / (2 * np.pi)
    assert np.abs(wrapped).max() <= np.pi + 1e-5
    np.testing.assert_allclose(num_turns, np.round(num_turns), atol=1e-6)
