"""Running mean and standard deviation of observation trees, accurate in float32 for runs of any length.

Batches are merged by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979. Sums over the whole run are stored as two floats: counts are exact up to 2^47, and a mean of 1000
stays accurate with a standard deviation of 0.1.

Floating-point leaves are tracked. Integers, booleans and the action mask stay unchanged.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

from rookery.agent import ACTION_MASK
from rookery.errors import ShapeError
from rookery.learning.moments import one_if_zero
from rookery.spaces import Shape, Space
from rookery.two_float import TwoFloat, two_sum
from rookery.types import PyTreeData, PyTreeDict, index_tree

MIN_STD = 1e-6
"""Features with a standard deviation up to this count as constant: they are centered, not scaled."""


class Moments(PyTreeData):
    """Mean and sum of squared deviations of one leaf of the observations."""

    mean: TwoFloat
    squared_deviations: TwoFloat


class RunningStatistics(PyTreeData):
    """Statistics of all observations so far: `moments` has one entry per tracked leaf, named by its path."""

    count: TwoFloat
    moments: PyTreeDict

    @property
    def mean(self) -> PyTreeDict:
        """The mean of each tracked leaf; 0 before the first observation."""
        return PyTreeDict({name: moments.mean.value for name, moments in self.moments.items()})

    @property
    def std(self) -> PyTreeDict:
        """The population standard deviation of each tracked leaf; 1 for constant features."""
        return PyTreeDict({name: _std(moments, self.count) for name, moments in self.moments.items()})


def init(space_or_example: Space | PyTree) -> RunningStatistics:
    """Make empty statistics for a space, or for observations like an example without batch axes."""
    example = space_or_example
    if isinstance(space_or_example, Space):
        example = jax.eval_shape(space_or_example.sample, jax.random.key(0))
    leaves, _ = jax.tree_util.tree_flatten_with_path(example)
    moments = {
        _leaf_name(path): Moments(mean=_zero(leaf.shape), squared_deviations=_zero(leaf.shape))
        for path, leaf in leaves
        if jnp.issubdtype(leaf.dtype, jnp.floating) and jax.tree_util.DictKey(ACTION_MASK) not in path
    }
    return RunningStatistics(count=_zero(()), moments=PyTreeDict(moments))


def update(
    state: RunningStatistics,
    batch: PyTree,
    weights: Shaped[Array, "..."] | None = None,
    axis_name: str | None = None,
) -> RunningStatistics:
    """Add a batch of observations with any leading axes.

    `weights` has the leading axes of the batch; observations with weight 0 are ignored, even if they are NaN.
    `axis_name` is the mapped device axis, if there is one: every device adds the batches of all devices.
    """
    leaves = _tracked_leaves(state, batch)
    if not leaves:
        return state
    batch_shape = _batch_shape(state, leaves)
    if weights is None:
        weights = jnp.ones(batch_shape)
    elif weights.shape != batch_shape:
        raise ShapeError(f"weights have shape {list(weights.shape)}; expected that of the batch, {list(batch_shape)}.")
    weights = weights.reshape(-1).astype(jnp.float32)  # [N]
    moments = {
        name: _moments_of(leaf.reshape(-1, *_event_shape(state, name)).astype(jnp.float32), weights)
        for name, leaf in leaves.items()
    }
    count = TwoFloat.of(jnp.sum(weights))
    statistics = RunningStatistics(count=count, moments=PyTreeDict(moments))
    return merge(state, statistics if axis_name is None else merge_over_axis(statistics, axis_name))


def merge(first: RunningStatistics, second: RunningStatistics) -> RunningStatistics:
    """Return the statistics of both sets of observations together."""
    count = first.count.add(second.count)
    share = second.count.value / one_if_zero(count.value)

    def merge_moments(first_moments: Moments, second_moments: Moments) -> Moments:
        difference = second_moments.mean.add(first_moments.mean.times(-1.0))
        between = difference.value**2 * (first.count.value * share)
        within = first_moments.squared_deviations.add(second_moments.squared_deviations)
        return Moments(
            mean=first_moments.mean.add(difference.times(share)),
            squared_deviations=within.add(TwoFloat.of(between)),
        )

    moments = {name: merge_moments(first.moments[name], second.moments[name]) for name in first.moments}
    return RunningStatistics(count=count, moments=PyTreeDict(moments))


def merge_over_axis(state: RunningStatistics, axis_name: str) -> RunningStatistics:
    """Merge the statistics of all devices along a mapped axis; the result is the same on each device.

    The devices must have different observations: shared observations would be counted once per device.
    """
    index, size = jax.lax.axis_index(axis_name), jax.lax.axis_size(axis_name)

    def gather(leaf: Array) -> Array:
        # A sum in which each device fills one slot: unlike all_gather, shard_map knows that the result is replicated.
        return jax.lax.psum(jnp.zeros((size, *leaf.shape), leaf.dtype).at[index].set(leaf), axis_name)

    states = jax.tree.map(gather, state)  # [size, ...]
    first, others = index_tree(states, 0), index_tree(states, slice(1, None))
    merged, _ = jax.lax.scan(lambda total, other: (merge(total, other), None), first, others)
    return merged


def normalize(state: RunningStatistics, obs: PyTree, max_abs: float = 10.0) -> PyTree:
    """Center and scale the tracked leaves to mean 0 and standard deviation 1, clipped to [-max_abs, max_abs]."""

    def normalize_leaf(moments: Moments, leaf: Array) -> Array:
        centered = (leaf - _spread(moments.mean.high, leaf)) - _spread(moments.mean.low, leaf)
        return jnp.clip(centered / _spread(_std(moments, state.count), leaf), -max_abs, max_abs)

    return _map_tracked(normalize_leaf, state, obs)


def denormalize(state: RunningStatistics, normalized_obs: PyTree) -> PyTree:
    """Undo `normalize`, except for clipping."""

    def denormalize_leaf(moments: Moments, leaf: Array) -> Array:
        scaled = leaf * _spread(_std(moments, state.count), leaf)
        return scaled + _spread(moments.mean.low, leaf) + _spread(moments.mean.high, leaf)

    return _map_tracked(denormalize_leaf, state, normalized_obs)


def _moments_of(values: Float[Array, "N ..."], weights: Float[Array, " N"]) -> Moments:
    """Compute the moments of one batch by the corrected two-pass algorithm."""
    weights = weights.reshape(-1, *(1,) * (values.ndim - 1))
    values = jnp.where(weights > 0.0, values, 0.0)
    total = jnp.sum(weights)
    center = jnp.sum(weights * values, axis=0) / one_if_zero(total)
    deviations = values - center[None]
    correction = jnp.sum(weights * deviations, axis=0) / one_if_zero(total)
    squared_deviations = jnp.sum(weights * deviations**2, axis=0) - total * correction**2
    return Moments(
        mean=two_sum(center, correction),
        squared_deviations=TwoFloat.of(squared_deviations),
    )


def _std(moments: Moments, count: TwoFloat) -> Float[Array, "..."]:
    variance = moments.squared_deviations.value / one_if_zero(count.value)
    std = jnp.sqrt(jnp.maximum(variance, 0.0))
    return jnp.where(std > MIN_STD, std, 1.0)


def _zero(shape: Shape) -> TwoFloat:
    return TwoFloat.of(jnp.zeros(shape))


def _leaf_name(path: tuple) -> str:
    return "obs" + jax.tree_util.keystr(path)


def _event_shape(state: RunningStatistics, name: str) -> Shape:
    return state.moments[name].mean.high.shape


def _tracked_leaves(state: RunningStatistics, obs: PyTree) -> dict[str, Array]:
    """Return the tracked leaves by name; raise if one is missing or has the wrong shape."""
    given = {_leaf_name(path): jnp.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(obs)[0]}
    for name in state.moments:
        if name not in given:
            raise ShapeError(f"the observations have no {name}; they have {', '.join(given) or 'no entries'}.")
        shape, event_shape = given[name].shape, _event_shape(state, name)
        if shape[len(shape) - len(event_shape) :] != event_shape:
            raise ShapeError(f"{name} has shape {list(shape)}; expected it to end in {list(event_shape)}.")
    return {name: given[name] for name in state.moments}


def _batch_shape(state: RunningStatistics, leaves: dict[str, Array]) -> Shape:
    shapes = {leaf.shape[: leaf.ndim - len(_event_shape(state, name))] for name, leaf in leaves.items()}
    if len(shapes) != 1:
        raise ShapeError(f"the observations have different leading axes: {sorted(shapes)}.")
    return shapes.pop()


def _map_tracked(transform: Callable[[Moments, Array], Array], state: RunningStatistics, obs: PyTree) -> PyTree:
    _tracked_leaves(state, obs)

    def transform_leaf(path: tuple, leaf: Any) -> Any:
        name = _leaf_name(path)
        return transform(state.moments[name], jnp.asarray(leaf, jnp.float32)) if name in state.moments else leaf

    return jax.tree_util.tree_map_with_path(transform_leaf, obs)


def _spread(values: Float[Array, "..."], leaf: Array) -> Array:
    """Broadcast the statistics of a leaf over its leading axes."""
    return jnp.broadcast_to(values, leaf.shape)
