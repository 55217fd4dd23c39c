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
        counts = self.windows_per_env(state)
        ends = jnp.cumsum(counts, dtype=jnp.int32)
        num_windows = ends[-1]
        numbers = uniform_indexes(key, batch_size, num_windows)
        # Numbers are dealt to the envs in turn: where all have the same number of windows, those of all envs at one row
        # are adjacent. The division leaves up to B - 1 numbers over, which stay as they are.
        share = num_windows // self.num_envs
        dealt = numbers % self.num_envs * share + numbers // self.num_envs
        numbers = jnp.where(numbers < share * self.num_envs, dealt, numbers)
        # Without any window, the last env stands in for the one after it.
        envs = jnp.minimum(jnp.searchsorted(ends, numbers, side="right"), self.num_envs - 1)
        ages = numbers - (ends - counts)[envs]  # from the oldest window of the env
        places = ((state.head - state.num_rows)[envs] + ages) % self.rows
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
