"""Uniform experience replay (Lin, 1992)."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rookery.errors import check_count
from rookery.replay_buffers.replay_buffer import ReplayBuffer, ReplaySample, ReplayState, uniform_indexes
from rookery.types import Key


class UniformBuffer(ReplayBuffer):
    """Samples uniformly from all windows of all envs."""

    def sample(self, state: ReplayState, key: Key, batch_size: int) -> ReplaySample:
        check_count("batch_size", batch_size)
        num_windows = self.num_windows(state)
        # Windows are numbered from oldest to newest; those of all envs at one row are adjacent.
        numbers = uniform_indexes(key, batch_size, num_windows)
        oldest = (state.head - state.num_rows) % self.rows
        envs, places = numbers % self.num_envs, (oldest + numbers // self.num_envs) % self.rows
        indexes = envs * self.rows + places
        probability = 1.0 / jnp.maximum(num_windows, 1).astype(jnp.float32)
        return ReplaySample(
            sequence=self.windows(state, indexes),
            indexes=indexes,
            probabilities=jnp.full(batch_size, probability),
        )

    def update_priorities(
        self,
        state: ReplayState,
        indexes: Int[Array, " N"],
        priorities: Float[Array, " N"],
        exponent: float | Float[Array, ""] = 0.6,
    ) -> ReplayState:
        """Return `state` unchanged: all windows stay equally likely."""
        return state
