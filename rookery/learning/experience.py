"""Experience: the input of a learner, from any source.

An env writes a dead row, which holds no transition, while it resets (next-step autoreset) or, on the host, while it is
absent. Dead rows are marked by `env_extras.autoreset` = 1. Trajectories without that entry have no dead rows.
"""

from typing import Any, no_type_check

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int32

from rookery.agent import Agent, Carry
from rookery.distributed.collectives import sum_over_devices
from rookery.learning.moments import Weighted
from rookery.metrics import Mean
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Array, PyTreeData, PyTreeDict, pytree_field


@no_type_check  # at run time it also holds NumPy arrays, or partition specs
class Experience(Weighted):
    """A trajectory `[T, B]` and the recurrent state of the agent before its first row.

    `metrics` describe the episodes that ended in it, with unscaled rewards. The learner sets `weights`.
    """

    trajectory: SampleBatch
    first_carry: Carry
    metrics: dict[str, Mean] = pytree_field(default_factory=dict)

    def take_envs(self, indexes: Array) -> "Experience":
        """Return the experience of some environments, without metrics."""
        trajectory, weights = jax.tree.map(lambda leaf: leaf[:, indexes], (self.trajectory, self.weights))
        first_carry = jax.tree.map(lambda leaf: leaf[indexes], self.first_carry)
        return Experience(trajectory=trajectory, first_carry=first_carry, weights=weights)


@no_type_check
class JointExperience(PyTreeData):
    """The experience of several policies in the same env steps."""

    experiences: PyTreeDict
    """An `Experience` for each policy, without metrics."""
    metrics: dict[str, Mean]
    env_steps: Array


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
    """Return the envs whose rows do not continue those before the trajectory; None if all of them continue.

    Only host envs report the step count `env_extras.t`: they may restart between two trajectories. An env without a
    live row is late or lost; it may continue in a later trajectory.
    """
    env_extras = trajectory.extras.env_extras
    if "t" not in env_extras:
        return None
    is_absent = jnp.all(env_extras.autoreset > 0, axis=0)
    return ~is_absent & ((env_extras.t[0] == 0) | (env_extras.autoreset[0] > 0))


def trajectory_shapes(agent: Agent, obs_space: Space, action_space: Space, num_envs: int, length: int) -> SampleBatch:
    """Return the shapes of a trajectory `[T, B]` of an agent in environments with these spaces.

    `env_extras` has the entries that every source has: `termination`, `truncation` and `ori_obs`.
    """

    def act_once(key: Array) -> SampleBatch:
        agent_state = agent.init(obs_space, action_space, key)
        obs, carry = obs_space.sample(key, (num_envs,)), agent.initial_carry((num_envs,))
        flags = jnp.zeros(num_envs)
        extras = PyTreeDict(policy_extras=PyTreeDict(carry=carry, episode_start=flags))
        actions, policy_extras = agent.compute_actions(agent_state, SampleBatch(obs=obs, extras=extras), key)
        policy_extras = PyTreeDict(policy_extras)
        if jax.tree.leaves(carry):
            policy_extras = policy_extras.replace(next_carry=policy_extras.pop("carry"), episode_start=flags)
        env_extras = {"termination": flags, "truncation": flags, "ori_obs": obs}
        extras = PyTreeDict(policy_extras=policy_extras, env_extras=env_extras)
        return SampleBatch(obs=obs, actions=actions, rewards=flags, dones=flags, extras=extras)

    def over_time(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((length, *leaf.shape), leaf.dtype)

    return jax.tree.map(over_time, jax.eval_shape(act_once, jax.random.key(0)))
