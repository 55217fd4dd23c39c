"""Hyper-parameters: declared with a range, read from a mapping, and their schedules over a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.configuration import declarations
from rookery.errors import InvalidInputError
from rookery.hyperparameters import Hyperparameters as Declared
from rookery.hyperparameters import LinearSchedule, Number, Scalar, hyperparameters_from, number, values_at
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


class Numbers(Declared):
    learning_rate: Scalar = number(3e-4, low=0.0, help="step size")
    discount: Scalar = number(0.99, low=0.0, high=1.0)
    initial_std: Scalar = number(0.1, low=1e-9, schedule=False)
    max_grad_norm: Scalar | None = number(None, low=1e-9)


class FastNumbers(Numbers):
    learning_rate: Scalar = 1e-2


def test_a_declared_number_is_a_traced_leaf_with_its_default() -> None:
    assert sorted(jax.tree.leaves(FastNumbers())) == [1e-2, 0.1, 0.99]
    assert declarations(FastNumbers)["learning_rate"].help == "step size"


def test_numbers_and_schedules_are_read_from_a_mapping() -> None:
    values = {"learning_rate": {"start": "1e-3", "end": 0}, "discount": 1, "max_grad_norm": None}
    built = hyperparameters_from(Numbers, values, total_timesteps=500)
    assert isinstance(built.learning_rate, LinearSchedule)
    assert (built.learning_rate.start, built.learning_rate.end, built.learning_rate.steps) == (1e-3, 0.0, 500)
    assert (built.discount, built.initial_std, built.max_grad_norm) == (1.0, 0.1, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": -1}, "agent.learning_rate=-1 must be at least 0."),
        ({"learning_rate": float("inf")}, "agent.learning_rate=inf must be finite."),
        ({"learning_rate": None}, "agent.learning_rate=None: expected a number, or {start: NUMBER, end: NUMBER}."),
        ({"discount": {"start": 0.9, "end": 1.1}}, "agent.discount.end=1.1 must lie between 0 and 1."),
        (
            {"initial_std": {"start": 1, "end": 0}},
            "agent.initial_std is used once, at the start: give a number, not a schedule.",
        ),
    ],
)
def test_a_number_out_of_its_range_is_named_with_the_range(values: dict, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        hyperparameters_from(Numbers, values, total_timesteps=500)
    assert str(caught.value) == message
