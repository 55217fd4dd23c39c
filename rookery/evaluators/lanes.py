"""Lanes, which play the episodes of a population inside a compiled program."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.envs import EnvState
from rookery.learning import running_statistics
from rookery.learning.running_statistics import RunningStatistics
from rookery.sample_batch import SampleBatch
from rookery.types import Action, Array, Key, Obs, PyTree, PyTreeData, PyTreeDict, pytree_field, where_tree


class PopulationEpisodes(PyTreeData):
    """Results of a population: one entry per agent and episode, `[P, E]`.

    `measures` is `[P, E, M]`; `obs_statistics` covers all observations that the agents acted on. `recorded` is the last
    state of the recorder, if there was one.
    """

    episode_returns: Array
    episode_lengths: Array
    measures: Array
    obs_statistics: RunningStatistics | None
    recorded: Any = None


class Recorder(Protocol):
    """Keeps the transitions of lanes; a pytree."""

    def init(self) -> PyTree:
        """Return the state before the first step."""

    def record(self, state: PyTree, rows: SampleBatch, is_live: Array) -> PyTree:
        """Record one step of all lanes: a row per lane `[L, ...]`, of which only those with `is_live` `[L]` count."""


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

    `numbers` `[P]` are the indexes of the agents in the whole population; `explores` `[P]` marks agents that explore.
    If `paired`, all agents play episodes with the same keys.
    """

    agent_states: AgentState
    key: Key
    numbers: Array
    explores: Array | None
    num_episodes: int = pytree_field(static=True)
    num_jobs: int = pytree_field(static=True)
    paired: bool = pytree_field(static=True, default=False)

    def agent_of(self, job: Array) -> Array:
        """Return the agent of a job; for a job past the queue, any agent."""
        return jnp.minimum(job, self.num_jobs - 1) // self.num_episodes

    def key_of(self, job: Array) -> Key:
        """Return the key of a job."""
        key = self.key if self.paired else jax.random.fold_in(self.key, self.numbers[self.agent_of(job)])
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


def rows_of(before: Lanes, actions: Action, after: Lanes, ended: Array) -> SampleBatch:
    """Return one row per lane for a replay buffer.

    A lane has no autoreset, so `next_obs` is the true successor. An episode that was cut is done and not terminated.
    """
    env_state = after.env_state
    is_recurrent = bool(jax.tree.leaves(before.carry))
    starts = {"episode_start": before.env_state.info.episode_start} if is_recurrent else {}
    termination = env_state.info.get("termination", env_state.done)
    return SampleBatch(
        obs=before.env_state.obs,
        actions=actions,
        rewards=env_state.reward,
        next_obs=env_state.obs,
        dones=ended.astype(env_state.done.dtype),
        extras=PyTreeDict(policy_extras=PyTreeDict(starts), env_extras=PyTreeDict(termination=termination)),
    )
