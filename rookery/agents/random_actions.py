"""Random actions in place of an agent's own, for warm-up steps."""

from typing import Any

import jax

from rookery.agent import Agent, AgentState, Carry, RandomAgent
from rookery.sample_batch import SampleBatch
from rookery.spaces import Shape, Space
from rookery.types import Key, PyTreeDict, pytree_field


class RandomActions(Agent):
    """Acts uniformly at random in place of `agent`, whose recurrent state is still updated."""

    agent: Agent
    obs_space: Space = pytree_field(static=True)
    action_space: Space = pytree_field(static=True)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return self.agent.init(obs_space, action_space, key)

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        agent_key, random_key = jax.random.split(key)
        _, extras = self.agent.compute_actions(agent_state, sample_batch, agent_key)
        random_agent = RandomAgent()
        spaces = random_agent.init(self.obs_space, self.action_space, random_key)
        return random_agent.compute_actions(spaces, sample_batch, random_key)[0], extras

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return self.compute_actions(agent_state, sample_batch, key)

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        return self.agent.initial_carry(batch_shape)
