"""What the lanes are on which the episodes of a population are played, inside of a compiled program."""

from typing import Any

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.envs import EnvState
from rookery.learning import running_statistics
from rookery.learning.running_statistics import RunningStatistics
from rookery.types import Array, Key, PyTreeData, pytree_field, where_tree


class PopulationEpisodes(PyTreeData):
    """The episodes of a population: one entry for each agent and episode, `[P, E]`.

    `measures` are `[P, E, M]`; `obs_statistics` are those of all observations that the agents acted on.
    """

    episode_returns: Array
    episode_lengths: Array
    measures: Array
    obs_statistics: RunningStatistics | None


class Lanes(PyTreeData):
    """What is being played: one entry per lane, `[L, ...]`. A lane whose `job` is past the queue is idle."""

    job: Array
    agent_state: AgentState
    env_state: EnvState
    carry: Carry
    action_key: Key
    returns: Array
    lengths: Array
    discount_power: Array
    measures: Array
    obs_statistics: RunningStatistics | None


class Queue(PyTreeData):
    """The episodes to play: job j is episode j % num_episodes of agent j // num_episodes.

    `first_agent` is the number of the first agent in the population that these are a part of.
    """

    agent_states: AgentState
    key: Key
    first_agent: Array
    num_episodes: int = pytree_field(static=True)
    num_jobs: int = pytree_field(static=True)

    def agent_of(self, job: Array) -> Array:
        """Return the agent of a job; of one past the queue, any."""
        return jnp.minimum(job, self.num_jobs - 1) // self.num_episodes

    def key_of(self, job: Array) -> Key:
        """Return the key of a job."""
        agent_key = jax.random.fold_in(self.key, self.first_agent + self.agent_of(job))
        return jax.random.fold_in(agent_key, job % self.num_episodes)


def load_agents(loaded: AgentState, agent_states: AgentState, needed: Array, agent: Array) -> AgentState:
    """Exchange the agents of the lanes that need another one, lane by lane: the others' parameters are not touched."""

    def load_next(state: tuple[Array, AgentState]) -> tuple[Array, AgentState]:
        needed, loaded = state
        lane = jnp.argmax(needed)
        loaded = jax.tree.map(
            lambda on_lane, population: on_lane.at[lane].set(population[agent[lane]]), loaded, agent_states
        )
        return needed.at[lane].set(False), loaded

    return jax.lax.while_loop(lambda state: jnp.any(state[0]), load_next, (needed, loaded))[1]


def where_lanes(ended: Array, fresh: Lanes, kept: Lanes) -> Lanes:
    """Restart the lanes that ended; the agents are on their lanes already."""
    without_agents = where_tree(ended, fresh.replace(agent_state=None), kept.replace(agent_state=None))
    return without_agents.replace(agent_state=kept.agent_state)


def observed(statistics: RunningStatistics | None, obs: Any) -> RunningStatistics | None:
    """Take an observation into the statistics, unless it is not finite: one that diverges must not spoil all."""
    if statistics is None:
        return None
    is_finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(obs)])
    return running_statistics.update(statistics, obs, jnp.all(is_finite).astype(jnp.float32))
