"""Branches that stay branches when they are mapped, and loops that stay loops."""

from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.control_flow import any_true, cond_any, scan_any
from rookery.types import Array, where_tree


def primitives_of(jaxpr: jax.extend.core.Jaxpr) -> set[str]:
    """Name the primitives of a program, those inside its branches and calls too."""
    names = set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda value: hasattr(value, "eqns")):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                names |= primitives_of(inner)
    return names


def double_where(mask: Array, values: Array) -> Array:
    return cond_any(mask, lambda values: where_tree(mask, 2.0 * values, values), values)


def plain_cond(mask: Array, values: Array) -> Array:
    return jax.lax.cond(jnp.any(mask), lambda values: 2.0 * values, lambda values: values, values)


def test_a_branch_of_cond_any_stays_a_branch_under_nested_vmap() -> None:
    masks, values = jnp.zeros((5, 4, 3), bool), jnp.ones((5, 4, 3))
    mapped = jax.make_jaxpr(jax.vmap(jax.vmap(double_where)))(masks, values)
    assert "cond" in primitives_of(mapped.jaxpr)
    plain = jax.make_jaxpr(jax.vmap(jax.vmap(plain_cond)))(masks, values)
    assert "cond" not in primitives_of(plain.jaxpr), "lax.cond stays a branch by itself: cond_any has no purpose."


def test_any_true_is_one_answer_for_all_mapped_axes() -> None:
    asked = jax.vmap(jax.vmap(any_true, out_axes=None), out_axes=None)
    mask = np.zeros((5, 4, 3), bool)
    assert not asked(jnp.asarray(mask))
    mask[2, 1, 0] = True
    answer = asked(jnp.asarray(mask))
    assert answer.shape == ()
    assert answer


@pytest.mark.parametrize("rows", [[], [1], [0, 1, 2, 3]])
def test_a_mapped_branch_changes_those_who_need_it_and_nobody_else(rows: list[int]) -> None:
    mask = np.zeros((4, 3), bool)
    mask[rows] = True
    values = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    result = jax.jit(jax.vmap(double_where))(jnp.asarray(mask), jnp.asarray(values))
    np.testing.assert_array_equal(result, np.where(mask, 2 * values, values))


def test_the_branch_is_computed_only_if_somebody_needs_it() -> None:
    calls: list[str] = []

    def branch(values: Array) -> Array:
        jax.debug.callback(lambda: calls.append("computed"))
        return values

    run = jax.jit(jax.vmap(lambda mask, values: cond_any(mask, branch, values)))
    run(jnp.zeros(4, bool), jnp.ones(4))
    jax.effects_barrier()
    assert not calls
    run(jnp.zeros(4, bool).at[2].set(True), jnp.ones(4))
    jax.effects_barrier()
    assert calls


def test_operands_come_back_as_they_are_if_nobody_needs_the_branch() -> None:
    one, other = jnp.array([1.0, jnp.nan]), {"count": jnp.arange(3)}

    def wrong(*operands: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, operands)

    nobody = jnp.zeros(2, bool)
    both = cond_any(nobody, wrong, one, other)
    assert isinstance(both, tuple)
    np.testing.assert_array_equal(both[0], one)
    np.testing.assert_array_equal(both[1]["count"], other["count"])
    np.testing.assert_array_equal(cond_any(nobody, lambda operand: wrong(operand)[0], one), one)
    np.testing.assert_array_equal(cond_any(~nobody, lambda operand: wrong(operand)[0], one), np.zeros(2))


def add_noise(total: Array, step: tuple[Array, Array]) -> tuple[Array, dict[str, Array]]:
    number, key = step
    total = total + number * jax.random.normal(key)
    return total, {"total": total, "number": number.astype(jnp.int32)}


@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_scan_any_returns_what_scan_returns(num_steps: int) -> None:
    masks, starts = jnp.array([False, True, False]), jnp.arange(3.0)
    steps = (1.0 + jnp.arange(num_steps, dtype=jnp.float32), jax.random.split(jax.random.key(0), num_steps))
    mapped = jax.vmap(lambda mask, start: scan_any(mask, add_noise, start, steps))(masks, starts)
    expected = jax.vmap(lambda start: jax.lax.scan(add_noise, start, steps))(starts)
    jax.tree.map(np.testing.assert_array_equal, mapped, expected)


def test_scan_any_returns_its_carry_and_zeros_if_nobody_needs_the_loop() -> None:
    steps = (jnp.ones(2), jax.random.split(jax.random.key(0), 2))
    carry, outputs = jax.vmap(lambda mask: scan_any(mask, add_noise, jnp.float32(7.0), steps))(jnp.zeros(3, bool))
    np.testing.assert_array_equal(carry, np.full(3, 7.0))
    np.testing.assert_array_equal(outputs["total"], np.zeros((3, 2)))
    np.testing.assert_array_equal(outputs["number"], np.zeros((3, 2)))
