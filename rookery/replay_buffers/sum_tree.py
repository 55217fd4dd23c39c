"""Sum trees, which sample leaves in proportion to their weights.

A forest of B trees with the same number of leaves is a tuple of levels: the weights of the leaves `[B, leaves]`, then
the sums of every `FAN_OUT` neighbors, and so on up to the roots `[B, 1]`. Levels are padded with zeros. Sums
are always recomputed, never adjusted, so rounding errors do not accumulate over updates.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, UInt32

Levels = tuple[Array, ...]

FAN_OUT = 8
"""Wider trees have fewer levels but longer sums: 8 was the fastest on a CPU for a million leaves."""


def level_sizes(num_leaves: int) -> tuple[int, ...]:
    """Return the number of nodes on each level of a tree, from leaves to root."""
    sizes = []
    while num_leaves > 1:
        num_leaves = -(-num_leaves // FAN_OUT)
        sizes.append(num_leaves * FAN_OUT)
    return (*sizes, 1)


def build(weights: Float[Array, "B leaves"]) -> Levels:
    """Make one tree for each row of non-negative weights."""
    num_trees, num_leaves = weights.shape
    levels: list[Array] = []
    for size in level_sizes(num_leaves):
        sums = levels[-1].reshape(num_trees, -1, FAN_OUT).sum(axis=2) if levels else weights
        levels.append(jnp.pad(sums, ((0, 0), (0, size - sums.shape[1]))))
    return tuple(levels)


def update(levels: Levels, trees: Int[Array, "*#N"], leaves: Int[Array, "*N"], weights: Float[Array, "*N"]) -> Levels:
    """Set the weights of some leaves of some trees. If a leaf occurs twice, it receives one of the two weights."""
    updated = [levels[0].at[trees, leaves].set(weights, mode="promise_in_bounds")]
    nodes = leaves
    for level in levels[1:]:
        nodes = nodes // FAN_OUT
        sums = _children(updated[-1], trees, nodes).sum(axis=-1)
        updated.append(level.at[trees, nodes].set(sums, mode="promise_in_bounds"))
    return tuple(updated)


def sample(
    levels: Levels, positions: UInt32[Array, " N"]
) -> tuple[Int[Array, " N"], Int[Array, " N"], Float[Array, " N"]]:
    """Find the leaves at these positions of the cumulative sum of all weights.

    Positions are multiples of 2^-32 of the total. Returns the trees, their leaves, and the shares of these leaves in
    the total. A leaf of weight 0 is found only if all weights are 0; then it is the first, and its share is NaN.
    """
    roots = build(levels[-1].reshape(1, -1))
    total = roots[-1][0, 0]
    share = total * 2.0**-32
    # A float32 holds 24 of the 32 bits. The other 8 are added at the last level, where the values are small.
    values = (positions & np.uint32(0xFFFFFF00)).astype(jnp.float32) * share
    remainders = (positions & np.uint32(0xFF)).astype(jnp.float32) * share
    trees, values, _ = _descend(roots, jnp.zeros(positions.shape, jnp.int32), values)
    leaves, _, weights = _descend(levels, trees, values, remainders)
    return trees, leaves, weights / total


def _descend(
    levels: Levels,
    trees: Int[Array, " N"],
    values: Float32[Array, " N"],
    remainders: Float32[Array, " N"] | None = None,
) -> tuple[Int[Array, " N"], Float32[Array, " N"], Float32[Array, " N"]]:
    """Walk down from the roots to the leaves that contain `values + remainders`.

    Returns these leaves, the offsets of the values within them, and their weights.
    """
    nodes = jnp.zeros_like(trees)
    weights = levels[-1].at[trees, nodes].get(mode="promise_in_bounds")
    for level in reversed(levels[:-1]):
        if level is levels[0] and remainders is not None:
            values = values + remainders
        children = _children(level, trees, nodes)  # [N, FAN_OUT]
        before = jnp.dot(children, np.triu(np.ones((FAN_OUT, FAN_OUT), np.float32), 1), precision="highest")
        # The last child with positive weight that begins at or before the value. There is always one, whatever the
        # rounding: `before` is exactly 0 for the first child with positive weight.
        is_reached = (children > 0.0) & (before <= values[:, None])
        numbers = jnp.broadcast_to(jnp.arange(FAN_OUT, dtype=jnp.int32), children.shape)
        child = jnp.max(jnp.where(is_reached, numbers, 0), axis=1)
        values = values - jnp.max(jnp.where(is_reached, before, 0.0), axis=1)
        # A second read of the level could be scheduled after the next update, which would then have to copy the level.
        weights = jnp.max(jnp.where(numbers == child[:, None], children, 0.0), axis=1)
        nodes = nodes * FAN_OUT + child
    return nodes, values, weights


def _children(level: Array, trees: Int[Array, "*#N"], nodes: Int[Array, "*N"]) -> Float[Array, "*N children"]:
    """Return the nodes of this level that are children of `nodes` of the next level."""
    return level.reshape(level.shape[0], -1, FAN_OUT).at[trees, nodes].get(mode="promise_in_bounds")
