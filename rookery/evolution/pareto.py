"""Multi-objective tools: dominance, fronts, crowding and hypervolume. All objectives are maximized.

An individual with a NaN or infinite objective is on no front and ranks last.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.errors import ShapeError


def dominates(first: Float[Array, "*N M"], second: Float[Array, "*N M"]) -> Bool[Array, "*N"]:
    """Tell whether `first` is at least as good in all objectives and better in one."""
    return jnp.all(first >= second, axis=-1) & jnp.any(first > second, axis=-1)


def pareto_front(fitness: Float[Array, "P M"]) -> Bool[Array, " P"]:
    """Tell which individuals are not dominated by any other."""
    return _is_valid(fitness) & ~jnp.any(_dominance(fitness), axis=0)


def non_dominated_ranks(fitness: Float[Array, "P M"]) -> Int[Array, " P"]:
    """Return the front of each individual: 0 if it is not dominated, 1 if only front 0 dominates it, and so on.

    Non-dominated sorting (Deb et al., 2002, section III-A).
    """
    dominance = _dominance(fitness)

    def peel(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rank, ranks, num_dominators = carry
        is_front = (num_dominators == 0) & (ranks < 0)
        num_freed = jnp.sum(dominance & is_front[:, None], axis=0, dtype=jnp.int32)
        return rank + 1, jnp.where(is_front, rank, ranks), num_dominators - num_freed

    start = (
        jnp.int32(0),
        jnp.full(fitness.shape[:1], -1, jnp.int32),
        jnp.sum(dominance, axis=0, dtype=jnp.int32),
    )
    _, ranks, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[1] < 0), peel, start)
    return ranks


def crowding_distance(fitness: Float[Array, "P M"], ranks: Int[Array, " P"]) -> Float[Array, " P"]:
    """Return the distance between the neighbors of each individual on its front; infinite at the ends of the front.

    Deb et al., 2002, section III-B. Each objective is scaled by its range on the front.
    """
    fitness = jnp.where(jnp.isfinite(fitness), fitness, 0.0)

    def along(values: Array) -> Array:
        order = jnp.lexsort((values, ranks))
        values, fronts = values[order], ranks[order]
        is_border = fronts[1:] != fronts[:-1]
        is_end = jnp.concatenate([jnp.ones(1, bool), is_border]) | jnp.concatenate([is_border, jnp.ones(1, bool)])
        lowest = jax.ops.segment_min(values, fronts, fitness.shape[0])
        highest = jax.ops.segment_max(values, fronts, fitness.shape[0])
        span = (highest - lowest)[fronts]
        gap = jnp.roll(values, -1) - jnp.roll(values, 1)
        room = jnp.where(is_end, jnp.inf, gap / jnp.where(span > 0.0, span, 1.0))
        return jnp.zeros_like(room).at[order].set(room)

    return jnp.sum(jax.vmap(along, in_axes=1)(fitness), axis=0)


def hypervolume(fitness: np.ndarray, reference: np.ndarray) -> float:
    """Return the volume between the reference point `[M]` and the front of `fitness` `[P, M]`; runs on the host.

    Exact, by slicing along the objectives (While et al., 2006). Individuals that are not finite, or not better than the
    reference in every objective, do not count.
    """
    points, corner = np.asarray(fitness, np.float64), np.asarray(reference, np.float64)
    if points.ndim != 2 or corner.shape != points.shape[1:]:
        raise ShapeError(
            f"fitness is {list(points.shape)} and reference {list(corner.shape)}: expected [P, M] and [M]."
        )
    is_counted = np.all(np.isfinite(points) & (points > corner), axis=1)
    return _volume(points[is_counted] - corner)


def _volume(points: np.ndarray) -> float:
    """Return the volume of the union of the boxes between the origin and each of the positive points."""
    if len(points) == 0:
        return 0.0
    if points.shape[1] == 1:
        return float(points.max())
    points = points[np.argsort(-points[:, 0])]
    depths = points[:, 0] - np.append(points[1:, 0], 0.0)
    if points.shape[1] == 2:
        return float(depths @ np.maximum.accumulate(points[:, 1]))
    return sum(depth * _volume(points[: index + 1, 1:]) for index, depth in enumerate(depths) if depth > 0.0)


def _dominance(fitness: Float[Array, "P M"]) -> Bool[Array, "P P"]:
    """Tell for every pair whether the first dominates the second; one objective at a time to save memory."""
    num_individuals, num_objectives = fitness.shape
    is_nowhere_worse = jnp.ones((num_individuals, num_individuals), bool)
    is_somewhere_better = jnp.zeros((num_individuals, num_individuals), bool)
    for index in range(num_objectives):
        first, second = fitness[:, index, None], fitness[None, :, index]
        is_nowhere_worse &= first >= second
        is_somewhere_better |= first > second
    is_valid = _is_valid(fitness)
    return is_valid[:, None] & (~is_valid[None] | (is_nowhere_worse & is_somewhere_better))


def _is_valid(fitness: Float[Array, "P M"]) -> Bool[Array, " P"]:
    return jnp.all(jnp.isfinite(fitness), axis=1)
