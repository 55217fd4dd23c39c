"""Conditional branches that stay conditional under `vmap`.

Under `jax.vmap`, `lax.cond` with a mapped predicate computes both branches. `cond_any` computes the branch only if the
predicate is true for any member of any mapped axis. The branch then runs for all members, so it must mask its result
with `where_tree`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from rookery.types import Array


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
