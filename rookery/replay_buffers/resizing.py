"""Replay buffers of another size: a run that is resumed with another budget needs other rings.

Arrays may have more axes before `[B, ...]`: those of seeds and of members.
"""

import jax
import jax.numpy as jnp

from rookery.replay_buffers import sum_tree
from rookery.replay_buffers.replay_buffer import ReplayState
from rookery.types import Array, Tree


def is_replay(tree: object) -> bool:
    """Return whether a node of a tree is the state of a replay buffer."""
    return isinstance(tree, ReplayState)


def ring_size(state: ReplayState) -> int:
    """Return the number of rows that each ring has room for: R."""
    size: int = next(iter(state.storage.values())).shape[-2]
    return size


def resized(state: ReplayState, rows: int) -> ReplayState:
    """Return a state with rings for `rows` rows. They contain the newest rows that fit, the oldest first."""
    kept = jnp.minimum(state.num_rows, rows)
    row = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*kept.shape, rows))
    places = ((state.head - kept)[..., None] + row) % ring_size(state)  # [..., B, rows]
    is_kept = row < kept[..., None]

    def moved(ring: Array) -> Array:
        taken = jnp.take_along_axis(ring, places[..., None], axis=-2)
        return jnp.where(is_kept[..., None], taken, jnp.zeros((), ring.dtype))

    priorities = state.priorities
    if priorities is not None:
        weights = moved(priorities.levels[0][..., : ring_size(state), None])[..., 0]
        levels = sum_tree.build(weights.reshape(-1, rows))
        levels = tuple(level.reshape(*weights.shape[:-1], -1) for level in levels)
        priorities = priorities.replace(levels=levels)
    storage = {dtype: moved(ring) for dtype, ring in state.storage.items()}
    return state.replace(storage=storage, head=kept % rows, num_rows=kept, priorities=priorities)


_resize = jax.jit(resized, static_argnames="rows")


def with_rings_of(tree: Tree, like: Tree) -> Tree:
    """Return a tree whose replay buffers are as large as those of another tree of the same structure."""

    def fit(node: object, other: object) -> object:
        if not (isinstance(node, ReplayState) and isinstance(other, ReplayState)):
            return node
        return node if ring_size(node) == ring_size(other) else _resize(node, rows=ring_size(other))

    return jax.tree.map(fit, tree, like, is_leaf=is_replay)
