"""Writes the transitions of lanes into a replay buffer while they play."""

import jax
import jax.numpy as jnp

from rookery.replay_buffers.borders import with_last_rows_done
from rookery.replay_buffers.replay_buffer import ReplayBuffer, ReplayState
from rookery.types import Array, PyTree, PyTreeData, PyTreeNode


class Recording(PyTreeData):
    """The buffer, and the number of rows that were not stored: of idle lanes, or with NaN or infinite numbers."""

    buffer_state: ReplayState
    num_idle: Array
    num_not_finite: Array


class ReplayRecorder(PyTreeNode):
    """Adds one row per lane to the buffer, whose envs are the lanes, `shift` columns further.

    The first lanes play the first individuals of every population, which may be the fittest and have the longest
    episodes: with another shift each time, all columns of the buffer fill alike.

    Rows with NaN or infinite numbers are not stored: an individual whose episode explodes must not spoil the learner.
    """

    buffer: ReplayBuffer
    buffer_state: ReplayState
    shift: Array

    def init(self) -> Recording:
        zero = jnp.zeros((), jnp.int32)
        return Recording(buffer_state=self.buffer_state, num_idle=zero, num_not_finite=zero)

    def record(self, state: Recording, rows: PyTree, is_live: Array) -> Recording:
        shifted = jax.tree.map(lambda leaf: jnp.roll(leaf, self.shift, axis=0), (rows, is_live, are_finite(rows)))
        rows, is_live_column, is_finite = shifted
        buffer_state = state.buffer_state
        if self.buffer.sequence_length > 1:  # no window continues past a row that is left out
            buffer_state = with_last_rows_done(buffer_state, is_live_column & ~is_finite)
        rows = jax.tree.map(lambda leaf: leaf[None], rows)
        return Recording(
            buffer_state=self.buffer.add(buffer_state, rows, is_live_column & is_finite),
            num_idle=state.num_idle + jnp.sum(~is_live, dtype=jnp.int32),
            num_not_finite=state.num_not_finite + jnp.sum(is_live_column & ~is_finite, dtype=jnp.int32),
        )


def are_finite(rows: PyTree) -> Array:
    """Tell which rows `[L]` have finite numbers alone."""
    of_leaves = [jnp.all(jnp.isfinite(leaf), axis=range(1, leaf.ndim)) for leaf in jax.tree.leaves(rows)]
    return jnp.all(jnp.stack(of_leaves), axis=0)
