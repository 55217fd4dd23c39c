"""Borders between the episodes of a replay buffer."""

import jax
import jax.numpy as jnp

from rookery.replay_buffers.replay_buffer import ReplayState
from rookery.sample_batch import SampleBatch
from rookery.types import Array


def with_last_rows_done(buffer_state: ReplayState, envs: Array) -> ReplayState:
    """Mark the newest row of these envs `[B]` as done, so that no transition continues past it.

    The row is not terminated: targets still bootstrap from its `next_obs`. Without rows, nothing is marked that can be
    sampled.
    """
    layout, storage = buffer_state.layout, buffer_state.storage
    num_envs, num_rows, _ = next(iter(storage.values())).shape
    newest = jnp.arange(num_envs, dtype=jnp.int32), (buffer_state.head - 1) % num_rows
    rows: SampleBatch = layout.unpack(
        {dtype: ring.at[newest].get(mode="promise_in_bounds") for dtype, ring in storage.items()}
    )
    rows = rows.replace(dones=jnp.maximum(rows.dones, envs.astype(rows.dones.dtype)))
    marked = layout.pack(jax.tree.leaves(rows))
    return buffer_state.replace(
        storage={
            dtype: ring.at[newest].set(marked[dtype], mode="promise_in_bounds", unique_indices=True)
            for dtype, ring in storage.items()
        }
    )
