"""Rows of a trajectory that hold no transition: how to weight, count and clear them.

An env writes a dead row while it resets (next-step autoreset) or, on the host, while it is absent. Dead rows are marked
by `env_extras.autoreset` = 1. Trajectories without that entry have no dead rows.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from rookery.distributed.collectives import sum_over_devices
from rookery.sample_batch import SampleBatch


def row_weights(trajectory: SampleBatch) -> Float[Array, "T B"] | None:
    """Return 0 for dead rows and 1 for transitions; None if the trajectory has no dead rows."""
    autoreset = trajectory.extras.env_extras.get("autoreset")
    return None if autoreset is None else 1.0 - autoreset


def num_env_steps(trajectory: SampleBatch) -> Int32[Array, ""]:
    """Count the transitions on all devices, without dead rows."""
    weights = row_weights(trajectory)
    num_steps = trajectory.rewards.size if weights is None else jnp.sum(weights, dtype=jnp.int32)
    return sum_over_devices(jnp.asarray(num_steps, jnp.int32))


def zero_dead_rows(trajectory: SampleBatch) -> SampleBatch:
    """Set observations, actions, rewards and policy extras of dead rows to 0: a weight of 0 does not remove NaN."""
    weights = row_weights(trajectory)
    if weights is None:
        return trajectory

    def zero(leaf: Array) -> Array:
        is_live = weights.reshape(weights.shape + (1,) * (leaf.ndim - 2)) > 0
        return jnp.where(is_live, leaf, jnp.zeros_like(leaf))

    policy_extras = jax.tree.map(zero, trajectory.extras.policy_extras)
    env_extras = trajectory.extras.env_extras
    if "ori_obs" in env_extras:
        env_extras = env_extras.replace(ori_obs=jax.tree.map(zero, env_extras.ori_obs))
    return trajectory.replace(
        obs=jax.tree.map(zero, trajectory.obs),
        actions=jax.tree.map(zero, trajectory.actions),
        rewards=zero(trajectory.rewards),
        extras=trajectory.extras.replace(policy_extras=policy_extras, env_extras=env_extras),
    )


def starts_new_episode(trajectory: SampleBatch) -> Bool[Array, " B"] | None:
    """Return the envs whose first row does not continue the previous trajectory; None if all of them continue.

    Only host envs report the step count `env_extras.t`: they may restart, or be absent, between two trajectories.
    """
    env_extras = trajectory.extras.env_extras
    return (env_extras.t[0] == 0) | (env_extras.autoreset[0] > 0) if "t" in env_extras else None
