"""Roles: a runner holds several agents for a policy, and its state says which of them acts."""

from collections.abc import Mapping
from typing import Any

from rookery.agent import Agent, AgentState, Carry
from rookery.sample_batch import SampleBatch
from rookery.spaces import Shape, Space
from rookery.types import Array, Key, PyTreeData, PyTreeDict, pytree_field

TRAIN, WARM_UP = "train", "warm_up"
RoleID = str


class RoleState(PyTreeData):
    """The role whose agent acts, and the state of that agent."""

    role: RoleID = pytree_field(static=True)
    agent_state: AgentState


class RoleAgent(Agent):
    """Acts as the agent of the role that its state names, so that another agent can take over within an episode.

    The agents have the same recurrent state as the one that trains.
    """

    agents: Mapping[RoleID, Agent] = pytree_field(static=True)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> Any:
        return RoleState(role=TRAIN, agent_state=self.agents[TRAIN].init(obs_space, action_space, key))

    def compute_actions(self, agent_state: Any, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return self.agents[agent_state.role].compute_actions(agent_state.agent_state, sample_batch, key)

    def evaluate_actions(self, agent_state: Any, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return self.agents[agent_state.role].evaluate_actions(agent_state.agent_state, sample_batch, key)

    def extras_of_logged(
        self,
        agent_state: Any,
        sample_batch: SampleBatch,
        actions: Any,
        key: Key,
        log_prob: Array | None = None,
    ) -> PyTreeDict:
        agent = self.agents[agent_state.role]
        return agent.extras_of_logged(agent_state.agent_state, sample_batch, actions, key, log_prob)

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        return self.agents[TRAIN].initial_carry(batch_shape)
