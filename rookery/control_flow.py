"""Branches that stay conditional under `vmap`, and loops that stay loops.

Under `jax.vmap`, `lax.cond` with a mapped predicate computes both branches. `cond_any` computes the branch only if the
predicate is true for any member of any mapped axis. The branch then runs for all members, so it must mask its result
with `where_tree`.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from rookery.types import Array

CarryT = TypeVar("CarryT")


@custom_vmap
def any_true(mask: Array) -> Array:
    """Tell whether any entry of `mask` is true for any member of any mapped axis."""
    return jnp.any(mask)


@any_true.def_vmap
def _any_true_in_batch(axis_size: int, in_batched: Any, mask: Array) -> tuple[Array, bool]:
    return any_true(mask), False


def cond_any(mask: Array, branch: Callable, *operands: Any) -> Any:
    """Return `branch(*operands)` if `mask` is true anywhere, else the operands unchanged.

    A single operand is returned as itself, several as a tuple.
    """
    return jax.lax.cond(any_true(mask), branch, lambda *same: same[0] if len(same) == 1 else same, *operands)


def scan_any(mask: Array, step: Callable, carry: CarryT, inputs: Any) -> tuple[CarryT, Any]:
    """Return `jax.lax.scan(step, carry, inputs)` if `mask` is true anywhere, else `carry` and zeros.

    XLA does not know how often the loop runs, so that one input is a loop, too. XLA would inline a single step and fuse
    it with the code before. If that code writes a replay buffer from which the step reads, XLA then copies the buffer.
    """
    num_steps = jax.tree.leaves(inputs)[0].shape[0]
    step = jax.jit(step)  # traced once
    # With the row of zeros, XLA cannot conclude that a single input is always at index 0, and move its reads out.
    rows = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jax.lax.full_like(leaf[:1], 0)]), inputs)

    def body(index: Array, carried: tuple[CarryT, Any]) -> tuple[CarryT, Any]:
        carry, outputs = carried
        carry, output = step(carry, jax.tree.map(lambda leaf: leaf[index], rows))
        return carry, jax.tree.map(lambda leaf, new: leaf.at[index].set(new), outputs, output)

    _, shapes = jax.eval_shape(step, carry, jax.tree.map(lambda leaf: leaf[0], inputs))
    outputs = jax.tree.map(lambda leaf: jnp.zeros((num_steps, *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, jnp.where(any_true(mask), num_steps, 0), body, (carry, outputs))
