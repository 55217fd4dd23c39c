"""Lanes, which play the episodes of a population inside a compiled program."""

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.envs import EnvState
from rookery.learning import running_statistics
from rookery.learning.running_statistics import RunningStatistics
from rookery.types import Array, Key, Obs, PyTreeData, pytree_field, where_tree


class PopulationEpisodes(PyTreeData):
    """Results of a population: one entry per agent and episode, `[P, E]`.

    `measures` is `[P, E, M]`; `obs_statistics` covers all observations that the agents acted on.
    """

    episode_returns: Array
    episode_lengths: Array
    measures: Array
    obs_statistics: RunningStatistics | None


class Lanes(PyTreeData):
    """The episodes being played: one entry per lane, `[L, ...]`. A lane whose `job` is past the queue is idle."""

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

    `first_agent` is the index of the first agent in the whole population.
    """

    agent_states: AgentState
    key: Key
    first_agent: Array
    num_episodes: int = pytree_field(static=True)
    num_jobs: int = pytree_field(static=True)
    paired: bool = pytree_field(static=True, default=False)
    """Whether the key of an episode depends on its index alone, not on the agent."""

    def agent_of(self, job: Array) -> Array:
        """Return the agent of a job; for a job past the queue, any agent."""
        return jnp.minimum(job, self.num_jobs - 1) // self.num_episodes

    def key_of(self, job: Array) -> Key:
        """Return the key of a job."""
        key = self.key
        if not self.paired:
            key = jax.random.fold_in(key, self.first_agent + self.agent_of(job))
        return jax.random.fold_in(key, job % self.num_episodes)


def load_agents(loaded: AgentState, agent_states: AgentState, needed: Array, agent: Array) -> AgentState:
    """Load the agents of the lanes marked in `needed`, lane by lane: other lanes are not copied."""

    def load_next(state: tuple[Array, AgentState]) -> tuple[Array, AgentState]:
        needed, loaded = state
        lane = jnp.argmax(needed)
        loaded = jax.tree.map(
            lambda on_lane, population: on_lane.at[lane].set(population[agent[lane]]), loaded, agent_states
        )
        return needed.at[lane].set(False), loaded

    return jax.lax.while_loop(lambda state: jnp.any(state[0]), load_next, (needed, loaded))[1]


def where_lanes(ended: Array, fresh: Lanes, kept: Lanes) -> Lanes:
    """Restart the lanes whose episode ended; their agents are already loaded."""
    without_agents = where_tree(ended, fresh.replace(agent_state=None), kept.replace(agent_state=None))
    return without_agents.replace(agent_state=kept.agent_state)


def observed(statistics: RunningStatistics | None, obs: Obs) -> RunningStatistics | None:
    """Add an observation to the statistics if it is finite: one diverging episode must not spoil them."""
    if statistics is None:
        return None
    is_finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(obs)])
    return running_statistics.update(statistics, obs, jnp.all(is_finite).astype(jnp.float32))
