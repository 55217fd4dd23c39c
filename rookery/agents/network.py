"""What agents with a network have in common: where it is kept, what it sees, and its memory."""

from abc import abstractmethod
from typing import Any

import jax

from rookery.agent import Agent, AgentState, Carry
from rookery.errors import InvalidInputError
from rookery.learning import running_statistics
from rookery.networks.policy import TrunkConfig
from rookery.sample_batch import SampleBatch
from rookery.spaces import Shape, Space
from rookery.types import Array, Key, PyTreeData, PyTreeDict, pytree_field


class NetworkState(PyTreeData):
    """The network, which takes its shape from the spaces given to `init`; it is part of the compiled program."""

    network: Any = pytree_field(static=True)


class NetworkAgent(Agent):
    """Acts by a network, feed-forward or recurrent, in any action space.

    With `normalize_obs` the network sees observations normalized by running statistics, in training and evaluation
    alike; the statistics are part of the agent's state and change only by `update_obs_statistics`.
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

    def network_inputs(self, agent_state: AgentState, sample_batch: SampleBatch) -> tuple[Any, Carry, Array | None]:
        """Return what the network takes for one step: observations, memory, and where episodes start."""
        carry = sample_batch.extras.policy_extras.get("carry", ())
        return (
            self.preprocess_obs(agent_state, sample_batch.obs),
            carry,
            self.episode_start_of(sample_batch, carry),
        )

    def memory_extras(self, carry: Carry) -> PyTreeDict:
        """Return the next carry as an extra, if there is one."""
        return PyTreeDict() if self.config.core is None else PyTreeDict(carry=carry)

    def episode_start_of(self, sample_batch: SampleBatch, carry: Carry) -> Array | None:
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
