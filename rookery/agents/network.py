"""The base class of agents with a network: observation normalization, recurrent state, network state."""

from abc import abstractmethod
from typing import Any

import jax

from rookery.agent import Agent, AgentState, Carry
from rookery.errors import InvalidInputError
from rookery.learning import running_statistics
from rookery.networks.policy import TrunkConfig
from rookery.sample_batch import SampleBatch
from rookery.spaces import Shape, Space
from rookery.types import Array, Key, Params, PyTreeData, PyTreeDict, pytree_field


class NetworkState(PyTreeData):
    """The network for the spaces given to `init`; it is part of the compiled program."""

    network: Any = pytree_field(static=True)


class NetworkAgent(Agent):
    """Acts by a network, feed-forward or recurrent, in any action space.

    With `normalize_obs`, running statistics normalize observations in training and evaluation. The statistics are part
    of the agent state; only `update_obs_statistics` changes them.
    """

    config: TrunkConfig = pytree_field(static=True, default_factory=TrunkConfig)
    normalize_obs: bool = pytree_field(static=True, default=False)

    @abstractmethod
    def make_network(self, obs_space: Space, action_space: Space) -> Any:
        """Make the network for these spaces."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        network = self.make_network(obs_space, action_space)
        return AgentState(
            params=network.init(key),
            obs_preprocessor_state=running_statistics.init(obs_space) if self.normalize_obs else None,
            extra_state=NetworkState(network=network),
        )

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        core = self.config.make_core()
        return () if core is None else core.initial_carry(batch_shape)

    def preprocess_obs(self, agent_state: AgentState, obs: Any) -> Any:
        """Normalize observations, if `normalize_obs` is set."""
        if not self.normalize_obs:
            return obs
        return running_statistics.normalize(agent_state.obs_preprocessor_state, obs)

    def update_obs_statistics(
        self, agent_state: AgentState, obs: Any, weights: Array | None = None, axis_name: str | None = None
    ) -> AgentState:
        """Update the statistics by observations; `weights` and `axis_name` are those of `running_statistics.update`.

        Call it after the losses have used a trajectory: an update between rollout and loss changes log-probabilities.
        """
        if not self.normalize_obs:
            return agent_state
        statistics = running_statistics.update(agent_state.obs_preprocessor_state, obs, weights, axis_name)
        return agent_state.replace(obs_preprocessor_state=statistics)

    def apply(self, network: Any, params: Params, agent_state: AgentState, sample_batch: SampleBatch) -> tuple:
        """Return the outputs of a network for one step, and the next carry as an extra if the agent is recurrent."""
        obs = self.preprocess_obs(agent_state, sample_batch.obs)
        carry = sample_batch.extras.policy_extras.get("carry", ())
        *outputs, carry = network(params, obs, carry, self.episode_start_of(sample_batch, carry))
        return *outputs, PyTreeDict() if self.config.core is None else PyTreeDict(carry=carry)

    def episode_start_of(self, sample_batch: SampleBatch, carry: Carry) -> Array | None:
        """Return the flags of episode starts; raise if the carry or the flags of a recurrent agent are missing."""
        if self.config.core is None:
            return None
        episode_start = sample_batch.extras.policy_extras.get("episode_start")
        has_carry = bool(jax.tree.leaves(carry))
        if not has_carry or episode_start is None:
            missing = "policy_extras.episode_start" if has_carry else "carry"
            raise InvalidInputError(
                f"this agent has a {self.config.core} core and needs {missing}: start the rollout from "
                "agent.initial_carry(batch_shape), or give the evaluator initial_carry_fn=agent.initial_carry."
            )
        return episode_start
