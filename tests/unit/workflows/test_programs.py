"""Compiled programs: layout of seeds and devices, compilation, and donated arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.distributed import DEVICE_AXIS, SAME, SPLIT, device_mesh
from rookery.types import Array, PyTreeDict
from rookery.workflows.programs import Layout, Program, gather


def make_layout(num_seeds: int) -> Layout:
    return Layout(mesh=device_mesh(1), num_seeds=num_seeds)


def test_one_seed_has_no_axis_and_several_have_the_first() -> None:
    def total(numbers: Array) -> Array:
        return jnp.sum(numbers)

    numbers = jnp.arange(6.0).reshape(2, 3)
    assert make_layout(1).over_seeds(total)(numbers).shape == ()
    np.testing.assert_array_equal(make_layout(2).over_seeds(total)(numbers), [3.0, 12.0])


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_the_device_axis_exists_on_one_device_too(num_seeds: int) -> None:
    layout = make_layout(num_seeds)

    def total(numbers: Array) -> Array:
        return jax.lax.psum(jnp.sum(numbers), DEVICE_AXIS)

    program = layout.over_devices(layout.over_seeds(total), (SPLIT,), SAME)
    numbers = jnp.ones(6).reshape(*([] if num_seeds == 1 else [num_seeds]), -1)
    np.testing.assert_array_equal(jax.jit(program)(numbers), 6.0 if num_seeds == 1 else [3.0, 3.0])


def test_arrays_and_keys_come_back_from_the_devices_as_they_were_placed() -> None:
    tree = PyTreeDict(numbers=np.arange(4.0), random=jax.random.split(jax.random.key(3), 4), flag=np.array(True))
    placed = make_layout(1).place(tree, PyTreeDict(numbers=SPLIT, random=SPLIT, flag=SAME))
    back = gather(placed)
    assert isinstance(back.numbers, np.ndarray)
    np.testing.assert_array_equal(back.numbers, tree.numbers)
    np.testing.assert_array_equal(jax.random.key_data(back.random), jax.random.key_data(tree.random))
    assert back.flag.dtype == bool


def test_a_program_is_compiled_at_its_first_call_and_then_no_more() -> None:
    traces = []

    def double(number: Array) -> Array:
        traces.append(number)
        return 2.0 * number

    program = Program(double, enable_jit=True)
    assert not program.is_ready(jnp.float32(2.0))
    assert program(jnp.float32(2.0)) == 4.0
    assert program(jnp.float32(3.0)) == 6.0
    assert program.is_ready(jnp.float32(4.0))
    assert len(traces) == 1


def test_arguments_of_other_shapes_have_a_program_of_their_own() -> None:
    program = Program(lambda number: 2.0 * number, enable_jit=True)
    assert program(jnp.float32(2.0)) == 4.0
    assert not program.is_ready(jnp.ones(2))
    np.testing.assert_array_equal(program(jnp.ones(2)), [2.0, 2.0])
    assert program(jnp.float32(3.0)) == 6.0


def test_a_program_that_was_compiled_ahead_is_not_compiled_again() -> None:
    traces = []

    def double(number: Array) -> Array:
        traces.append(number)
        return 2.0 * number

    program = Program(double, enable_jit=True)
    assert program.compile(jnp.float32(0.0)) > 0.0
    assert program(jnp.float32(2.0)) == 4.0
    assert len(traces) == 1


def test_a_program_can_be_part_of_another_and_be_mapped() -> None:
    program = Program(lambda number: 2.0 * number, enable_jit=True)
    assert program(jnp.float32(1.0)) == 2.0
    np.testing.assert_array_equal(jax.vmap(program)(jnp.arange(3.0)), [0.0, 2.0, 4.0])
    assert jax.jit(lambda number: program(number) + 1.0)(jnp.float32(1.0)) == 3.0
    assert jax.grad(program)(jnp.float32(1.0)) == 2.0


def test_without_compilation_the_function_itself_runs() -> None:
    seen = []

    def remember(number: Array) -> Array:
        seen.append(float(number))
        return number

    program = Program(remember, enable_jit=False)
    assert program.is_ready(jnp.float32(1.0))
    program(jnp.float32(1.0))
    program(jnp.float32(2.0))
    assert seen == [1.0, 2.0]


def test_donated_arguments_are_deleted_and_others_are_not() -> None:
    program = Program(lambda state, other: state + other, enable_jit=True, donate=(0,))
    state, other = jnp.ones(3), jnp.ones(3)
    np.testing.assert_array_equal(program(state, other), [2.0, 2.0, 2.0])
    assert state.is_deleted()
    assert not other.is_deleted()
