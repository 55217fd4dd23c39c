"""Branches that stay branches when the code around them is mapped.

Under `jax.vmap`, `lax.cond` on a mapped predicate computes both sides for everybody. Here the predicate asks whether
anybody in any mapped axis needs the branch, so work that nobody needs is not computed, mapped or not. The branch
itself must then be right for those who do not need it: mask inside with `where_tree`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from rookery.types import Array


@custom_vmap
def any_true(mask: Array) -> Array:
    """Tell whether an entry of `mask` is true, for any member of any mapped axis."""
    return jnp.any(mask)


@any_true.def_vmap
def _any_true_in_batch(axis_size: int, in_batched: Any, mask: Array) -> tuple[Array, bool]:
    return any_true(mask), False


def cond_any(mask: Array, branch: Callable, *operands: Any) -> Any:
    """Return `branch(*operands)` if `mask` is true anywhere, else the operands as they are.

    One operand is handed back as itself, several as a tuple.
    """
    return jax.lax.cond(any_true(mask), branch, lambda *same: same[0] if len(same) == 1 else same, *operands)
