"""Reward scaling: rewards are divided by the running standard deviation of the discounted return.

Engstrom et al., "Implementation matters in deep policy gradients", 2020, section 3. Rewards are not centered.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from rookery.learning import running_statistics
from rookery.learning.running_statistics import RunningStatistics
from rookery.types import PyTreeData

MAX_REWARD = 10.0
"""Scaled rewards are clipped to [-MAX_REWARD, MAX_REWARD]."""


class RewardScaling(PyTreeData):
    """The discounted return so far of each environment's episode, and the statistics of all of them."""

    inherited: ClassVar[tuple[str, ...]] = ("statistics",)
    """The returns belong to the environments of a member, see `rookery.search.inheritance`."""

    returns: Float[Array, " B"]
    statistics: RunningStatistics


def init(num_envs: int) -> RewardScaling:
    """Make the initial state."""
    return RewardScaling(returns=jnp.zeros(num_envs), statistics=running_statistics.init(jnp.zeros(())))


def scale(
    state: RewardScaling,
    rewards: Float[Array, "T B"],
    dones: Shaped[Array, "T B"],
    discount: Float[Array, ""] | float,
    weights: Shaped[Array, "T B"] | None = None,
    axis_name: str | None = None,
) -> tuple[Float[Array, "T B"], RewardScaling]:
    """Add the rewards of a trajectory to the statistics, then scale them. Rows of weight 0 change no return."""

    def add(so_far: Array, row: tuple[Array, Array, Array | None]) -> tuple[Array, Array]:
        reward, done, weight = row
        total = discount * so_far + reward
        following = jnp.where(done > 0, 0.0, total)
        return following if weight is None else jnp.where(weight > 0, following, so_far), total

    last_returns, returns = jax.lax.scan(add, state.returns, (rewards, dones, weights))
    statistics = running_statistics.update(state.statistics, returns, weights, axis_name)
    (std,) = jax.tree.leaves(statistics.std)
    return jnp.clip(rewards / std, -MAX_REWARD, MAX_REWARD), RewardScaling(returns=last_returns, statistics=statistics)
