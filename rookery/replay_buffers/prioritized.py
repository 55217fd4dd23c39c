"""Prioritized experience replay (Schaul et al., 2016): windows are sampled in proportion to their priorities.

The proportional variant (section 3.3) with stratified sampling (appendix B.2.1) and importance weights (section 3.4).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, UInt32

from rookery.errors import check_count
from rookery.replay_buffers import sum_tree
from rookery.replay_buffers.replay_buffer import ReplayBuffer, ReplaySample, ReplayState
from rookery.types import Key, PyTree, PyTreeData, as_one_key, pytree_field

EPSILON = 1e-6
"""Added to every priority, so that a window with error 0 can be sampled again."""
MIN_PRIORITY, MAX_PRIORITY = 1e-12, 1e12
"""Within these bounds, the sum of priorities, each probability and its inverse are finite in float32."""


class Priorities(PyTreeData):
    """Priorities to the power of the exponent: 0 for incomplete windows, positive for all others."""

    levels: sum_tree.Levels
    """One tree per env, with a leaf for the window that starts at each row of the ring."""
    max_priority: Array
    """The largest priority so far, which new windows receive."""


class PrioritizedBuffer(ReplayBuffer):
    """Samples windows in proportion to their priorities; new windows receive the largest priority so far.

    `axis_name` is the mapped device axis, if there is one: the largest priority is shared by all devices.
    """

    axis_name: str | None = pytree_field(static=True, default=None)

    def init(self, transition: PyTree) -> ReplayState:
        levels = sum_tree.build(jnp.zeros((self.num_envs, self.rows), jnp.float32))
        return super().init(transition).replace(priorities=Priorities(levels=levels, max_priority=jnp.ones(())))

    def emptied(self, state: ReplayState, is_due: Bool[Array, ""]) -> ReplayState:
        levels, largest = state.priorities.levels, state.priorities.max_priority
        priorities = Priorities(
            levels=tuple(jnp.where(is_due, 0.0, level) for level in levels),
            max_priority=jnp.where(is_due, 1.0, largest),
        )
        return super().emptied(state, is_due).replace(priorities=priorities)

    def add(self, state: ReplayState, transitions: PyTree, is_live: ArrayLike | None = None) -> ReplayState:
        state = super().add(state, transitions, is_live)
        num_added = jax.tree.leaves(transitions)[0].shape[0]
        # Windows that the new rows complete or overwrite, backwards from the one that starts at the newest row.
        num_touched = min(num_added + self.sequence_length - 1, self.rows)
        envs = jnp.arange(self.num_envs, dtype=jnp.int32)[:, None]
        ages = jnp.broadcast_to(jnp.arange(num_touched, dtype=jnp.int32), (self.num_envs, num_touched))
        places = (state.head[:, None] - 1 - ages) % self.rows
        levels, largest = state.priorities.levels, state.priorities.max_priority
        weights = jnp.where(self._is_window(state, envs, places), largest, 0.0)
        if is_live is not None:
            counts = jnp.sum(
                jnp.broadcast_to(jnp.asarray(is_live), (num_added, self.num_envs)), axis=0, dtype=jnp.int32
            )
            is_touched = ages < (counts + self.sequence_length - 1)[:, None]
            weights = jnp.where(is_touched, weights, levels[0].at[envs, places].get(mode="promise_in_bounds"))
        levels = sum_tree.update(levels, envs, places, weights)
        return state.replace(priorities=state.priorities.replace(levels=levels))

    def sample(self, state: ReplayState, key: Key, batch_size: int) -> ReplaySample:
        check_count("batch_size", batch_size)
        positions = stratified_positions(key, batch_size)
        envs, places, probabilities = sum_tree.sample(state.priorities.levels, positions)
        indexes = envs * self.rows + places
        return ReplaySample(sequence=self.windows(state, indexes), indexes=indexes, probabilities=probabilities)

    def update_priorities(
        self,
        state: ReplayState,
        indexes: Int[Array, " N"],
        priorities: Float[Array, " N"],
        exponent: float | Float[Array, ""] = 0.6,
    ) -> ReplayState:
        """Set the priorities of sampled windows, such as their TD errors; signs do not matter.

        A NaN or infinite priority counts as the largest so far. If a window was overwritten since it was sampled, the
        window that replaced it receives the priority, if that window is complete.
        """
        largest = state.priorities.max_priority
        weights = (jnp.abs(priorities.astype(jnp.float32)) + EPSILON) ** exponent
        weights = jnp.where(jnp.isfinite(weights), jnp.clip(weights, MIN_PRIORITY, MAX_PRIORITY), largest)
        envs, places = indexes // self.rows, indexes % self.rows
        weights = jnp.where(self._is_window(state, envs, places), weights, 0.0)
        largest = jnp.maximum(largest, jnp.max(weights))
        if self.axis_name is not None:
            largest = jax.lax.pmax(largest, self.axis_name)
        levels = sum_tree.update(state.priorities.levels, envs, places, weights)
        return state.replace(priorities=Priorities(levels=levels, max_priority=largest))

    def _is_window(self, state: ReplayState, envs: Array, places: Array) -> Array:
        """Tell whether the windows that start at these rows are complete."""
        ages = (state.head[envs] - 1 - places) % self.rows
        return (ages >= self.sequence_length - 1) & (ages < state.num_rows[envs])


def stratified_positions(key: Key, batch_size: int) -> UInt32[Array, " N"]:
    """Sample one position in each of `batch_size` equal parts of `0..2^32 - 1`."""
    starts = (np.arange(batch_size, dtype=np.uint64) * 2**32 // batch_size).astype(np.uint32)
    return jax.random.bits(as_one_key(key), (batch_size,), jnp.uint32) // np.uint32(batch_size) + starts


def importance_weights(
    probabilities: Float[Array, " N"],
    num_windows: int | Int[Array, ""],
    exponent: float | Float[Array, ""],
    axis_name: str | None = None,
) -> Float[Array, " N"]:
    """Return importance weights that correct for non-uniform sampling.

    `exponent` is beta in the paper: 1 corrects fully, 0 not at all. The largest weight of the batch is 1, or of the
    batches of all devices along `axis_name`. Without windows, all weights are 0.
    """
    relative = probabilities * jnp.asarray(num_windows).astype(probabilities.dtype)
    has_windows = jnp.asarray(num_windows) > 0
    weights = jnp.where(has_windows, relative**-exponent, 0.0)
    largest = jnp.max(weights)
    if axis_name is not None:
        largest = jax.lax.pmax(largest, axis_name)
    return jnp.where(has_windows, weights / largest, 0.0)
