"""A policy network as an agent: it samples to explore and takes the mode to be evaluated.

It has no loss of its own: evolution trains its parameters as they are, and gradient methods use `replay`.
"""

from typing import Any

import jax

from rookery.agent import Agent, AgentState, Carry
from rookery.errors import InvalidInputError
from rookery.learning import running_statistics
from rookery.networks.distributions import Distribution
from rookery.networks.policy import PolicyConfig, PolicyNetwork
from rookery.sample_batch import SampleBatch
from rookery.spaces import Shape, Space
from rookery.types import Array, Key, PyTreeData, PyTreeDict, pytree_field


class PolicyAgentState(PyTreeData):
    """The network, which takes its shape from the spaces given to `init`; it is part of the compiled program."""

    network: PolicyNetwork = pytree_field(static=True)


class PolicyAgent(Agent):
    """Acts by a policy network, feed-forward or recurrent, in any action space.

    With `normalize_obs` the network sees observations normalized by running statistics, in training and evaluation
    alike; the statistics are part of the agent's state and change only by `update_obs_statistics`.
    """

    config: PolicyConfig = pytree_field(static=True, default_factory=PolicyConfig)
    normalize_obs: bool = pytree_field(static=True, default=False)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        network = PolicyNetwork(obs_space, action_space, self.config)
        return AgentState(
            params=network.init(key),
            obs_preprocessor_state=running_statistics.init(obs_space) if self.normalize_obs else None,
            extra_state=PolicyAgentState(network=network),
        )

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Sample actions; the extras are `log_prob` and `raw_action`, and `carry` if the agent is recurrent."""
        distribution, memory = self._act(agent_state, sample_batch)
        raw_action = distribution.sample(key)
        extras = PyTreeDict(log_prob=distribution.log_prob(raw_action), raw_action=raw_action)
        return distribution.action(raw_action), extras | memory

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        """Take the most likely actions; the extras hold the `carry` if the agent is recurrent."""
        distribution, memory = self._act(agent_state, sample_batch)
        return distribution.action(distribution.mode()), memory

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        core = self.config.make_core()
        return () if core is None else core.initial_carry(batch_shape)

    def replay(self, agent_state: AgentState, trajectory: SampleBatch, carry: Carry = ()) -> Distribution:
        """Return the distributions `[T, B]` that the actions of a trajectory were drawn from.

        `carry` is the memory before its first step. Their `log_prob` of `policy_extras.raw_action` is
        `policy_extras.log_prob` for as long as the state is the one that acted.
        """
        network, obs = self._network(agent_state), self.preprocess_obs(agent_state, trajectory.obs)
        episode_start = self._episode_start(trajectory, carry)
        distribution, _ = network.unroll(agent_state.params, obs, carry, episode_start)
        return distribution

    def preprocess_obs(self, agent_state: AgentState, obs: Any) -> Any:
        """Turn the observations of the environment into what the network sees."""
        if not self.normalize_obs:
            return obs
        return running_statistics.normalize(agent_state.obs_preprocessor_state, obs)

    def update_obs_statistics(
        self, agent_state: AgentState, obs: Any, weights: Array | None = None, axis_name: str | None = None
    ) -> AgentState:
        """Take observations into the statistics; `weights` and `axis_name` are those of `running_statistics.update`.

        Call it after the losses have used a trajectory: between rollout and loss it would change the log-probabilities.
        """
        if not self.normalize_obs:
            return agent_state
        statistics = running_statistics.update(agent_state.obs_preprocessor_state, obs, weights, axis_name)
        return agent_state.replace(obs_preprocessor_state=statistics)

    def _act(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Distribution, PyTreeDict]:
        """Return the distributions of one step, and the next carry as an extra if the agent is recurrent."""
        carry = sample_batch.extras.policy_extras.get("carry", ())
        network, obs = self._network(agent_state), self.preprocess_obs(agent_state, sample_batch.obs)
        episode_start = self._episode_start(sample_batch, carry)
        distribution, carry = network(agent_state.params, obs, carry, episode_start)
        return distribution, PyTreeDict() if self.config.core is None else PyTreeDict(carry=carry)

    def _episode_start(self, sample_batch: SampleBatch, carry: Carry) -> Array | None:
        """Return where episodes start; raise if the agent needs a memory that it was not given."""
        if self.config.core is None:
            return None
        episode_start = sample_batch.extras.policy_extras.get("episode_start")
        has_carry = bool(jax.tree.leaves(carry))
        if not has_carry or episode_start is None:
            missing = "policy_extras.episode_start" if has_carry else "carry"
            raise InvalidInputError(
                f"this agent has a {self.config.core} core, but was given no {missing}: use the recurrent form of the "
                "rollout, starting from agent.initial_carry(batch_shape), or give the evaluator "
                "initial_carry_fn=agent.initial_carry."
            )
        return episode_start

    @staticmethod
    def _network(agent_state: AgentState) -> PolicyNetwork:
        return agent_state.extra_state.network
