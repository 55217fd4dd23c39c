"""Experience: the input of a learner, from any source."""

from typing import Any, no_type_check

import jax
import jax.numpy as jnp

from rookery.agent import Agent, Carry
from rookery.distributed.collectives import device_axis
from rookery.learning.moments import explained_variance, standardize, weighted_mean
from rookery.metrics import Mean
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Array, PyTreeData, PyTreeDict, pytree_field


class Weighted(PyTreeData):
    """Rows with weights; averages are weighted and taken over all devices."""

    weights: Array | None = None
    """0 for dead rows, 1 for the others; None if no row is dead."""

    def mean(self, values: Array) -> Array:
        """Return the weighted mean."""
        return weighted_mean(values, self.weights, device_axis())

    def standardize(self, values: Array) -> Array:
        """Scale to mean 0 and standard deviation 1; values of dead rows become 0."""
        return standardize(values, self.weights, device_axis())

    def explained_variance(self, targets: Array, predictions: Array) -> Mean:
        """Return the fraction of the variance of the targets that the predictions explain; empty without variance."""
        share = explained_variance(targets, predictions, self.weights, device_axis())
        return Mean.where(jnp.isfinite(share), share)


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
