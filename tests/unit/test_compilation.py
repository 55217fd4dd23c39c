"""Compiling so that the number of neighbours does not change a bit."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import compilation
from rookery.compilation import batch_invariant_jit, batch_invariant_options
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


@pytest.fixture
def unknown_option(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A version of XLA that does not know the option."""
    monkeypatch.setattr(compilation, "SAME_SUMS_IN_ANY_BATCH", {"xla_option_of_no_version": ""})
    batch_invariant_options.cache_clear()
    yield
    batch_invariant_options.cache_clear()


def test_the_number_of_neighbours_does_not_change_a_bit() -> None:
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


@pytest.mark.usefixtures("unknown_option")
def test_there_are_no_options_where_xla_does_not_know_them() -> None:
    assert batch_invariant_options() == {}
    np.testing.assert_array_equal(batch_invariant_jit(jnp.sin, static_argnames=())(jnp.zeros(3)), np.zeros(3))
