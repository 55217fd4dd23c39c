"""A policy network as an agent: it samples actions to explore and takes the mode in evaluation.

It has no loss: evolution trains its parameters.
"""

from typing import Any

from rookery.agent import AgentState, Carry, given_or
from rookery.agents.network import NetworkAgent, NetworkState
from rookery.configuration import field_names
from rookery.networks.distributions import Distribution
from rookery.networks.policy import PolicyConfig, PolicyNetwork
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Array, Key, PyTreeDict, pytree_field


class PolicyAgent(NetworkAgent):
    """Acts by a policy network, feed-forward or recurrent, in any action space."""

    config: PolicyConfig = pytree_field(static=True, default_factory=PolicyConfig)

    def make_network(self, obs_space: Space, action_space: Space) -> PolicyNetwork:
        return PolicyNetwork(obs_space, action_space, self.config)

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Sample actions; the extras are `log_prob` and `raw_action`, and `carry` if the agent is recurrent."""
        distribution, carry_extras = self._act(agent_state, sample_batch)
        raw_action = distribution.sample(key)
        extras = PyTreeDict(log_prob=distribution.log_prob(raw_action), raw_action=raw_action)
        return distribution.action(raw_action), extras | carry_extras

    def extras_of_logged(
        self,
        agent_state: AgentState,
        sample_batch: SampleBatch,
        actions: Any,
        key: Key,
        log_prob: Array | None = None,
    ) -> PyTreeDict:
        distribution, carry_extras = self._act(agent_state, sample_batch)
        raw_action = distribution.raw_of(actions)
        log_prob = given_or(log_prob, distribution.log_prob(raw_action))
        return PyTreeDict(log_prob=log_prob, raw_action=raw_action) | carry_extras

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Take the most likely actions; the extras hold the `carry` if the agent is recurrent."""
        distribution, carry_extras = self._act(agent_state, sample_batch)
        return distribution.action(distribution.mode()), carry_extras

    def replay(self, agent_state: AgentState, trajectory: SampleBatch, carry: Carry = ()) -> Distribution:
        """Return the action distributions `[T, B]` of a trajectory.

        `carry` is the recurrent state before the first step. If `agent_state` is the state that acted, the log
        probability of `policy_extras.raw_action` equals `policy_extras.log_prob`.
        """
        obs = self.preprocess_obs(agent_state, trajectory.obs)
        episode_start = self.episode_start_of(trajectory, carry)
        distribution, _ = agent_state.extra_state.network.unroll(agent_state.params, obs, carry, episode_start)
        return distribution

    def _act(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Distribution, PyTreeDict]:
        return self.apply(agent_state.extra_state.network, agent_state.params, agent_state, sample_batch)


ACTING_METHODS = (
    "make_network",
    "initial_carry",
    "preprocess_obs",
    "apply",
    "episode_start_of",
    "_act",
    "compute_actions",
    "evaluate_actions",
)


def acts_like(agent: NetworkAgent, agent_class: type[NetworkAgent]) -> bool:
    """Return whether an agent acts like this base class of it: it overrides none of the methods that act."""
    return all(getattr(type(agent), name, None) is getattr(agent_class, name, None) for name in ACTING_METHODS)


def policy_of(agent: NetworkAgent, agent_state: AgentState) -> tuple[PolicyAgent, AgentState]:
    """Return the policy of an agent whose parameters have an entry `policy`, without its critics."""
    network = agent_state.extra_state.network
    config = PolicyConfig(**{name: getattr(agent.config, name) for name in field_names(PolicyConfig)})
    policy = PolicyAgent(config=config, normalize_obs=agent.normalize_obs)
    return policy, AgentState(
        params=agent_state.params["policy"],
        obs_preprocessor_state=agent_state.obs_preprocessor_state,
        extra_state=NetworkState(network=policy.make_network(network.obs_space, network.action_space)),
    )
