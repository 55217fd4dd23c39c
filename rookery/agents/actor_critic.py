"""The agent of the on-policy methods: a stochastic policy and a value function."""

from typing import Any

import jax
import jax.numpy as jnp

from rookery.agent import Agent, AgentState, Carry, given_or
from rookery.agents.network import NetworkAgent
from rookery.agents.policy import acts_like, policy_of
from rookery.control_flow import cond_any
from rookery.learning.advantages import gae
from rookery.learning.experience import Experience
from rookery.learning.moments import Weighted
from rookery.networks.actor_critic import ActorCriticConfig, ActorCriticNetwork
from rookery.networks.distributions import Distribution
from rookery.sample_batch import SampleBatch
from rookery.spaces import Shape, Space
from rookery.types import Array, Key, PyTreeDict, index_tree, pytree_field


class AdvantageSamples(Weighted):
    """Observations and `policy_extras`, with advantages and the targets of the value function."""

    batch: SampleBatch
    advantages: Array
    targets: Array


class ActorCriticAgent(NetworkAgent):
    """Samples actions from its policy and estimates the value of every state; subclasses add a loss."""

    config: ActorCriticConfig = pytree_field(static=True, default_factory=ActorCriticConfig)

    def make_network(self, obs_space: Space, action_space: Space) -> ActorCriticNetwork:
        return ActorCriticNetwork(obs_space, action_space, self.config)

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        carry = super().initial_carry(batch_shape)
        return () if self.config.core is None else (carry, () if self.config.shared else carry)

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Sample actions; the extras are `log_prob`, `raw_action`, `value`, and `carry` if the agent is recurrent."""
        distribution, value, carry_extras = self._act(agent_state, sample_batch)
        raw_action = distribution.sample(key)
        extras = PyTreeDict(log_prob=distribution.log_prob(raw_action), raw_action=raw_action, value=value)
        return distribution.action(raw_action), extras | carry_extras

    def extras_of_logged(
        self,
        agent_state: AgentState,
        sample_batch: SampleBatch,
        actions: Any,
        key: Key,
        log_prob: Array | None = None,
    ) -> PyTreeDict:
        distribution, value, carry_extras = self._act(agent_state, sample_batch)
        raw_action = distribution.raw_of(actions)
        log_prob = given_or(log_prob, distribution.log_prob(raw_action))
        return PyTreeDict(log_prob=log_prob, raw_action=raw_action, value=value) | carry_extras

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Take the most likely actions; the extras hold the `carry` if the agent is recurrent."""
        distribution, _, carry_extras = self._act(agent_state, sample_batch)
        return distribution.action(distribution.mode()), carry_extras

    def acting_part(self, agent_state: AgentState) -> tuple[Agent, AgentState]:
        return policy_of(self, agent_state) if acts_like(self, ActorCriticAgent) else (self, agent_state)

    def replay(
        self, agent_state: AgentState, sample_batch: SampleBatch, carry: Carry = ()
    ) -> tuple[Distribution, Array]:
        """Return the action distributions and the values of the states.

        `sample_batch` is a trajectory `[T, B]` that starts with the recurrent state `carry`; for a feed-forward agent,
        any samples `[N]`.
        """
        obs = self.preprocess_obs(agent_state, sample_batch.obs)
        episode_start = self.episode_start_of(sample_batch, carry)
        network: ActorCriticNetwork = agent_state.extra_state.network
        distribution, values, _ = network.unroll(agent_state.params, obs, carry, episode_start)
        return distribution, values

    def samples(
        self, agent_state: AgentState, experience: Experience, discount: Array, gae_lambda: Array
    ) -> AdvantageSamples:
        """Estimate advantages and the targets of the value function for every step `[T, B]`."""
        trajectory = experience.trajectory
        policy_extras = trajectory.extras.policy_extras
        values = policy_extras.value
        advantages = gae(
            trajectory.rewards,
            values,
            self.successor_values(agent_state, trajectory, values),
            trajectory.extras.env_extras.termination,
            trajectory.dones,
            discount,
            gae_lambda,
        )
        kept = {name: extra for name, extra in policy_extras.items() if name != "next_carry"}
        return AdvantageSamples(
            batch=SampleBatch(obs=trajectory.obs, extras=PyTreeDict(policy_extras=kept)),
            advantages=advantages,
            targets=advantages + values,
            weights=experience.weights,
        )

    def successor_values(self, agent_state: AgentState, trajectory: SampleBatch, values: Array) -> Array:
        """Return the value `[T, B]` of the true successor of every step, given the values of the states.

        The successor is the state of the next row. In the last row and at truncations it is `env_extras.ori_obs`. After
        a termination the value has no meaning.
        """
        env_extras, policy_extras = trajectory.extras.env_extras, trajectory.extras.policy_extras
        successors = (env_extras.ori_obs, policy_extras.get("next_carry", ()))

        def value_of(obs: Any, carry: Carry) -> Array:
            not_a_start = jnp.zeros_like(trajectory.rewards, shape=jax.tree.leaves(obs)[0].shape[:1])
            extras = PyTreeDict(policy_extras=PyTreeDict(carry=carry, episode_start=not_a_start))
            return self._act(agent_state, SampleBatch(obs=obs, extras=extras))[1]

        last_values = value_of(*index_tree(successors, -1))
        shifted = jnp.concatenate([values[1:], last_values[None]])
        # The last row has its true successor already.
        truncated = (env_extras.truncation > 0).at[-1].set(False)
        return cond_any(
            truncated, lambda next_values: _set_where(truncated, next_values, value_of, successors), shifted
        )

    def _act(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Distribution, Array, PyTreeDict]:
        return self.apply(agent_state.extra_state.network, agent_state.params, agent_state, sample_batch)


ROWS_AT_A_TIME = 64


def _set_where(mask: Array, values: Array, function: Any, rows: Any) -> Array:
    """Set `values[t, b] = function(rows[t, b])` where the mask is true; the cost grows with the number of such rows."""
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)  # [N, ...]
    num_rows = mask.size
    size = min(ROWS_AT_A_TIME, num_rows)
    # The chosen rows come first, then `num_rows` as padding. On CPU, `jnp.flatnonzero` takes four times as long to
    # compile and twice as long to run.
    chosen = jnp.sort(jnp.where(mask.reshape(-1), jnp.arange(num_rows, dtype=jnp.int32), num_rows), stable=False)
    chosen = jnp.pad(chosen, (0, size), constant_values=num_rows)

    def some_left(state: tuple[Array, Array]) -> Array:
        return jax.lax.dynamic_index_in_dim(chosen, state[0], keepdims=False) < num_rows

    def set_some(state: tuple[Array, Array]) -> tuple[Array, Array]:
        start, values = state
        indexes = jax.lax.dynamic_slice_in_dim(chosen, start, size)
        results = function(*jax.tree.map(lambda leaf: leaf.at[indexes].get(mode="clip"), rows))
        return start + size, values.at[indexes].set(results, mode="drop")

    state = jax.lax.while_loop(some_left, set_some, (jnp.zeros((), jnp.int32), values.reshape(-1)))
    return state[1].reshape(values.shape)
