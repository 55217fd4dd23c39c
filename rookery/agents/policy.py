"""A policy network as an agent: it samples to explore and takes the mode to be evaluated.

It has no loss of its own: evolution trains its parameters as they are.
"""

from typing import Any

from rookery.agent import AgentState, Carry
from rookery.agents.network import NetworkAgent
from rookery.networks.distributions import Distribution
from rookery.networks.policy import PolicyConfig, PolicyNetwork
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Key, PyTreeDict, pytree_field


class PolicyAgent(NetworkAgent):
    """Acts by a policy network, feed-forward or recurrent, in any action space."""

    config: PolicyConfig = pytree_field(static=True, default_factory=PolicyConfig)

    def make_network(self, obs_space: Space, action_space: Space) -> PolicyNetwork:
        return PolicyNetwork(obs_space, action_space, self.config)

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Sample actions; the extras are `log_prob` and `raw_action`, and `carry` if the agent is recurrent."""
        distribution, memory = self._act(agent_state, sample_batch)
        raw_action = distribution.sample(key)
        extras = PyTreeDict(log_prob=distribution.log_prob(raw_action), raw_action=raw_action)
        return distribution.action(raw_action), extras | memory

    def extras_of_logged(
        self, agent_state: AgentState, sample_batch: SampleBatch, actions: Any, key: Key
    ) -> PyTreeDict:
        distribution, memory = self._act(agent_state, sample_batch)
        raw_action = distribution.raw_of(actions)
        return PyTreeDict(log_prob=distribution.log_prob(raw_action), raw_action=raw_action) | memory

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Take the most likely actions; the extras hold the `carry` if the agent is recurrent."""
        distribution, memory = self._act(agent_state, sample_batch)
        return distribution.action(distribution.mode()), memory

    def replay(self, agent_state: AgentState, trajectory: SampleBatch, carry: Carry = ()) -> Distribution:
        """Return the distributions `[T, B]` that the actions of a trajectory were drawn from.

        `carry` is the memory before its first step. Their `log_prob` of `policy_extras.raw_action` is
        `policy_extras.log_prob` for as long as the state is the one that acted.
        """
        obs = self.preprocess_obs(agent_state, trajectory.obs)
        episode_start = self.episode_start_of(trajectory, carry)
        distribution, _ = agent_state.extra_state.network.unroll(agent_state.params, obs, carry, episode_start)
        return distribution

    def _act(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Distribution, PyTreeDict]:
        """Return the distributions of one step, and the next carry as an extra if the agent is recurrent."""
        inputs = self.network_inputs(agent_state, sample_batch)
        distribution, carry = agent_state.extra_state.network(agent_state.params, *inputs)
        return distribution, self.memory_extras(carry)
