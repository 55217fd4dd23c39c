"""Reductions in a fixed order: with 1, 2, 4, 8, ... devices the result is the same to the bit.

Floating-point sums depend on their order. Here the entries form a binary tree, and the share of a device is a subtree.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rookery.types import Tree, index_tree


def combine(combine_fn: Callable[[Tree, Tree], Tree], tree: Tree, axis_name: str | None = None) -> Tree:
    """Combine the entries of a tree `[N, ...]` into one, with a function of two entries.

    With `axis_name`, every device of that axis has its share of the entries, and all get the result.
    """
    size = jax.tree.leaves(tree)[0].shape[0]
    num_blocks = size & -size  # the largest power of two that divides the size
    blocks = jax.tree.map(lambda leaf: leaf.reshape(num_blocks, -1, *leaf.shape[1:]), tree)
    result = _combine_neighbors(combine_fn, jax.vmap(lambda block: _combine_neighbors(combine_fn, block))(blocks))
    if axis_name is None:
        return result
    return _combine_neighbors(combine_fn, jax.lax.all_gather(result, axis_name))


def _combine_neighbors(combine_fn: Callable[[Tree, Tree], Tree], tree: Tree) -> Tree:
    size = jax.tree.leaves(tree)[0].shape[0]
    while size > 1:
        even = size // 2 * 2
        first, second, rest = (
            index_tree(tree, part) for part in (slice(0, even, 2), slice(1, even, 2), slice(even, size))
        )
        tree = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), jax.vmap(combine_fn)(first, second), rest)
        size -= size // 2
    return index_tree(tree, 0)
