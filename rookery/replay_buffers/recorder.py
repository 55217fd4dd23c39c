"""Writes the transitions of lanes into a replay buffer while they play."""

import jax
import jax.numpy as jnp

from rookery.replay_buffers.replay_buffer import ReplayBuffer, ReplayState
from rookery.types import Array, PyTree, PyTreeData, PyTreeNode


class Recording(PyTreeData):
    """The buffer, and the number of rows that idle lanes did not write."""

    buffer_state: ReplayState
    num_idle: Array


class ReplayRecorder(PyTreeNode):
    """Adds one row per lane to the buffer, whose envs are the lanes, `shift` columns further.

    The first lanes play the first individuals of every population, which may be the fittest and have the longest
    episodes: with another shift each time, all columns of the buffer fill alike.
    """

    buffer: ReplayBuffer
    buffer_state: ReplayState
    shift: Array

    def init(self) -> Recording:
        return Recording(buffer_state=self.buffer_state, num_idle=jnp.zeros((), jnp.int32))

    def record(self, state: Recording, rows: PyTree, is_live: Array) -> Recording:
        rows, is_stored = jax.tree.map(lambda leaf: jnp.roll(leaf, self.shift, axis=0), (rows, is_live))
        rows = jax.tree.map(lambda leaf: leaf[None], rows)
        return Recording(
            buffer_state=self.buffer.add(state.buffer_state, rows, is_stored),
            num_idle=state.num_idle + jnp.sum(~is_live, dtype=jnp.int32),
        )
