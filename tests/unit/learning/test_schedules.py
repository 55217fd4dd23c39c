"""Schedules: at both ends, beyond, in between, and one for each member of a population."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.learning.schedules import LinearSchedule, Number, values_at
from rookery.types import PyTreeData, PyTreeDict


class Hyperparameters(PyTreeData):
    """As a method declares them: each a number or a schedule."""

    learning_rate: Number | LinearSchedule = 3e-4
    discount: Number | LinearSchedule = 0.99
    optimizer: PyTreeDict


def test_the_value_goes_linearly_with_env_steps_and_then_stays() -> None:
    schedule = LinearSchedule(start=1.0, end=0.2, steps=1_000_000)
    taken = [0, 1, 250_000, 500_000, 999_999, 1_000_000, 1_000_001, 2**31 - 1]
    expected = np.interp(taken, [0, 1_000_000], [1.0, 0.2])
    np.testing.assert_allclose([schedule.value(env_steps) for env_steps in taken], expected, rtol=1e-6)
    compiled = jax.jit(schedule.value)
    np.testing.assert_allclose([compiled(jnp.asarray(env_steps)) for env_steps in taken], expected, rtol=1e-6)


@pytest.mark.parametrize(("start", "end"), [(3e-4, 0.0), (0.1, 0.3), (1e8, 1e-8), (-0.7, 1e6), (0.1, 0.1)])
def test_both_ends_are_exact(start: float, end: float) -> None:
    schedule = LinearSchedule(start=start, end=end, steps=3e9)
    assert schedule.value(0) == np.float32(start)
    for env_steps in (3e9, 1e12):
        assert schedule.value(env_steps) == np.float32(end)


def test_equal_ends_are_a_constant() -> None:
    schedule = LinearSchedule(start=0.1, end=0.1, steps=7)
    assert all(schedule.value(env_steps) == np.float32(0.1) for env_steps in range(10))


def test_a_schedule_of_no_steps_is_at_its_end() -> None:
    schedule = LinearSchedule(start=1.0, end=0.25, steps=0)
    with jax.debug_nans(True):
        values = [schedule.value(env_steps) for env_steps in (0, 1, 1e9)]
    np.testing.assert_array_equal(values, [0.25, 0.25, 0.25])


def test_schedules_in_a_tree_become_values_and_numbers_become_float32_arrays() -> None:
    decaying = LinearSchedule(start=1.0, end=0.0, steps=100)
    tree = Hyperparameters(learning_rate=decaying, optimizer=PyTreeDict(decay=decaying, momentum=0.9, epsilon=1))
    values = values_at(tree, jnp.asarray(25, jnp.uint32))
    assert isinstance(values, Hyperparameters)
    assert all(leaf.dtype == jnp.float32 and leaf.shape == () for leaf in jax.tree.leaves(values))
    expected = Hyperparameters(
        learning_rate=0.75, discount=0.99, optimizer=PyTreeDict(decay=0.75, momentum=0.9, epsilon=1.0)
    )
    jax.tree.map(np.testing.assert_allclose, values, expected)


def test_every_member_of_a_population_follows_its_own_schedule() -> None:
    starts, lengths = np.asarray([1.0, 2.0, 4.0], np.float32), np.asarray([100.0, 50.0, 0.0], np.float32)
    population = PyTreeDict(
        learning_rate=LinearSchedule(start=jnp.asarray(starts), end=jnp.zeros(3), steps=jnp.asarray(lengths)),
        discount=jnp.asarray([0.9, 0.99, 0.999]),
    )
    values = jax.jit(jax.vmap(values_at, in_axes=(0, None)))(population, jnp.asarray(25.0))
    np.testing.assert_array_equal(values.learning_rate, [0.75, 1.0, 0.0])
    np.testing.assert_array_equal(values.discount, population.discount)


def test_the_numbers_of_a_schedule_are_leaves_that_do_not_recompile() -> None:
    num_traces = 0

    @jax.jit
    def value(schedule: LinearSchedule) -> jax.Array:
        nonlocal num_traces
        num_traces += 1
        return schedule.value(10)

    for start in (1.0, 2.0):
        assert value(LinearSchedule(start=start, end=0.0, steps=20.0)) == start / 2
    assert num_traces == 1
