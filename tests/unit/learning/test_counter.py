"""The counter against Python's integers."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from rookery.errors import InvalidInputError, ShapeError
from rookery.learning.counter import Counter

BORDERS = [2**31, 2**32, 2**33, 2**63]


def counter_at(number: int) -> Counter:
    return Counter(low=jnp.asarray(np.uint32(number % 2**32)), high=jnp.asarray(np.uint32(number // 2**32)))


def test_it_starts_at_zero() -> None:
    assert int(Counter.zero()) == 0
    assert Counter.zero().as_float() == 0.0


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("increment", [0, 1, 8192, 2**31 - 1, 2**31, 2**32 - 1])
def test_it_counts_exactly_around_the_borders_of_32_bits(border: int, increment: int) -> None:
    add = jax.jit(Counter.add)
    for start in (border - 8193, border - 8192, border - 1, border, border + 1):
        for counted in (counter_at(start).add(increment), add(counter_at(start), jnp.asarray(np.uint32(increment)))):
            assert int(counted) == start + increment
        if increment < 2**31:
            assert int(add(counter_at(start), jnp.asarray(increment))) == start + increment


def test_random_increments_add_up_in_a_scan() -> None:
    increments = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32)
    total, _ = jax.jit(lambda zero, increments: jax.lax.scan(lambda c, n: (c.add(n), None), zero, increments))(
        Counter.zero(), increments
    )
    assert int(total) == int(np.sum(increments, dtype=np.uint64)) > 2**40


@pytest.mark.parametrize("number", [0, 1, 2**24 + 1, *BORDERS, 10**9, 3 * 10**9, 10**12 + 7, 2**64 - 1])
def test_as_float_is_the_nearest_float32_or_its_neighbor(number: int) -> None:
    actual = counter_at(number).as_float()
    assert actual.dtype == jnp.float32
    np.testing.assert_allclose(np.float64(actual), float(number), rtol=2.0**-23)


def test_an_array_of_counters_counts_each_for_itself() -> None:
    starts = [0, 2**32 - 5, 10**12]
    counters = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(counter_at, starts))
    advanced = jax.jit(jax.vmap(Counter.add))(counters, jnp.asarray([4, 5, 6]))
    assert advanced.to_ints() == [4, 2**32, 10**12 + 6]
    assert counters.add(5).to_ints() == [5, 2**32, 10**12 + 5]
    np.testing.assert_allclose(advanced.as_float(), [4.0, 2.0**32, 1e12], rtol=1e-6)


@pytest.mark.parametrize("increment", [-1, 2**32, np.int64(-1), np.int64(2**40)])
def test_an_increment_that_does_not_fit_is_an_error(increment: int) -> None:
    with pytest.raises(InvalidInputError, match=f"increment={increment} must be"):
        Counter.zero().add(increment)


def test_an_increment_that_is_no_whole_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the tests add to every call is switched off: the counter is on its own, as it is for users.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ShapeError, match=r"increment is float32\[\]; expected one whole number"):
        jax.eval_shape(Counter.zero().add, jnp.asarray(1.0))
    with pytest.raises(ShapeError, match=r"increment is int32\[3\]"):
        jax.eval_shape(Counter.zero().add, jnp.asarray([1, 2, 3]))


def test_its_parts_can_be_donated() -> None:
    add = jax.jit(Counter.add, donate_argnums=0)
    counter = Counter.zero()
    for _ in range(3):
        counter = add(counter, jnp.asarray(7))
    assert int(counter) == 21
