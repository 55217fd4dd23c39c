"""Compiling so that the number of neighbors does not change a bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import compilation
from rookery.compilation import batch_invariant_jit, batch_invariant_options, run_once_options
from rookery.types import Array

NUM_FEATURES = 64
FEW, MANY = 8, 512


def value(features: Array, weights: Array) -> Array:
    """One agent's output for one observation: `[64] x [64, 1]`."""
    return features @ weights


def inputs() -> tuple[Array, Array]:
    """One observation and one set of weights for each of many agents."""
    features_key, weights_key = jax.random.split(jax.random.key(0))
    return (
        jax.random.normal(features_key, (MANY, NUM_FEATURES)),
        jax.random.normal(weights_key, (MANY, NUM_FEATURES, 1)),
    )


def test_the_number_of_neighbors_does_not_change_a_bit() -> None:
    if not batch_invariant_options():
        pytest.skip("this version of XLA does not know the option")
    features, weights = inputs()
    # With a plain jax.jit (0.10, on x86) all eight differ.
    program = batch_invariant_jit(jax.vmap(value), static_argnames=())
    few, many = program(features[:FEW], weights[:FEW]), program(features, weights)
    np.testing.assert_array_equal(np.asarray(few).view(np.uint32), np.asarray(many)[:FEW].view(np.uint32))
    exact = np.einsum("nf,nfo->no", *(np.asarray(array, np.float64) for array in (features, weights)))
    np.testing.assert_allclose(many, exact, rtol=1e-5, atol=1e-5)


def test_inside_another_program_it_is_a_part_of_it() -> None:
    features, weights = inputs()
    program = batch_invariant_jit(jax.vmap(value), static_argnames=())
    outer = jax.jit(lambda *args: 2.0 * program(*args))
    np.testing.assert_allclose(outer(features, weights), 2.0 * program(features, weights), rtol=1e-4, atol=1e-4)


def test_static_arguments_stay_static_alone_and_inside_another_program() -> None:
    program = batch_invariant_jit(lambda x, num_copies: jnp.tile(x, num_copies), static_argnames=("num_copies",))
    assert program(jnp.ones(2), num_copies=3).shape == (6,)
    assert jax.jit(lambda x: program(x, num_copies=3))(jnp.ones(2)).shape == (6,)


def test_there_are_no_options_where_xla_does_not_know_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "SAME_SUMS_IN_ANY_BATCH", {"xla_option_of_no_version": ""})
    assert batch_invariant_options() == {}
    np.testing.assert_array_equal(batch_invariant_jit(jnp.sin, static_argnames=())(jnp.zeros(3)), np.zeros(3))


def test_an_unknown_option_does_not_take_the_known_ones_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    level = {"xla_backend_optimization_level": "0"}
    monkeypatch.setattr(compilation, "SIMPLE_CODE", level | {"xla_option_of_no_version": "False"})
    assert run_once_options() == (level if jax.default_backend() == "cpu" else {})
