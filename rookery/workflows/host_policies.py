"""How the individuals of a population act in host environments: all at once, by one compiled call."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState, Carry
from rookery.compilation import batch_invariant_options
from rookery.evaluators.lanes import observed
from rookery.evaluators.population import merge_all, population_size_of
from rookery.learning import running_statistics
from rookery.learning.running_statistics import RunningStatistics
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Array, Key, Params, PyTreeData, PyTreeDict, where_tree


class Memory(PyTreeData):
    """What playing keeps on the device: the memories of the agents, one per slot, and statistics, one per job."""

    carry: Carry
    obs_statistics: RunningStatistics | None


class PopulationPolicy:
    """Acts in `num_slots` environments, in each with the parameters of the individual whose episode it plays.

    A job is an episode of an individual, numbered as in `Jobs`. Random actions depend on the key, the individual, the
    episode and its step alone.
    """

    def __init__(self, agent: Agent, obs_space: Space, num_slots: int, explore: bool, track_obs: bool) -> None:
        self._agent = agent
        self._action_fn = agent.compute_actions if explore else agent.evaluate_actions
        self._obs_space = obs_space
        self._num_slots = num_slots
        self._track_obs = track_obs
        self._act = jax.jit(
            self._act_in_slots,
            static_argnums=(0, 1),
            donate_argnums=7,
            compiler_options=batch_invariant_options() or None,
        )
        self._merge_finished = jax.jit(_merge_finished)

    def begin(self, agent_state: AgentState, population: Params, key: Key, num_episodes: int) -> "ActingPopulation":
        """Let a population act; all else of `agent_state` they have in common."""
        # Flat, for the program is called in every step: to look into trees of dicts takes as long as to act.
        leaves, treedef = jax.tree.flatten((agent_state, population, key))
        memory = self._no_memory(population_size_of(population) * num_episodes)
        return ActingPopulation(partial(self._act, num_episodes, treedef, leaves), self._merge_finished, memory)

    def no_statistics(self) -> RunningStatistics | None:
        """Return the statistics of no observation; None where they are not asked for."""
        return running_statistics.init(self._obs_space) if self._track_obs else None

    def _no_memory(self, num_jobs: int) -> Memory:
        statistics = jax.tree.map(lambda leaf: jnp.zeros((num_jobs, *leaf.shape), leaf.dtype), self.no_statistics())
        return Memory(carry=self._agent.initial_carry((self._num_slots,)), obs_statistics=statistics)

    def _act_in_slots(
        self,
        num_episodes: int,
        treedef: Any,
        leaves: list[Array],
        jobs: Array,
        steps: Array,
        is_acting: Array,
        obs: Any,
        memory: Memory,
    ) -> tuple[Any, Memory]:
        """Act in all slots, each with the parameters of its individual; those that do not act remember as before."""
        agent_state, population, key = jax.tree.unflatten(treedef, leaves)

        def act(job: Array, step: Array, obs: Any, carry: Carry) -> tuple[Any, Carry]:
            individual = job // num_episodes
            episode_key = jax.random.fold_in(jax.random.fold_in(key, individual), job % num_episodes)
            policy_extras = PyTreeDict(carry=carry, episode_start=(step == 0).astype(jnp.float32))
            actions, extras = self._action_fn(
                agent_state.replace(params=jax.tree.map(lambda leaf: leaf[individual], population)),
                SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=policy_extras, env_extras=PyTreeDict())),
                jax.random.fold_in(episode_key, step),
            )
            return actions, PyTreeDict(extras).get("carry", carry)

        actions, carry = jax.vmap(act)(jobs, steps, obs, memory.carry)
        statistics = memory.obs_statistics
        if statistics is not None:
            num_jobs = len(statistics.count.high)
            before = jax.tree.map(lambda leaf: leaf[jobs], statistics)
            before = where_tree(steps == 0, jax.tree.map(jnp.zeros_like, before), before)
            after = jax.vmap(observed)(before, obs)
            rows = jnp.where(is_acting, jobs, num_jobs)
            statistics = jax.tree.map(lambda leaf, new: leaf.at[rows].set(new, mode="drop"), statistics, after)
        return actions, Memory(carry=where_tree(is_acting, carry, memory.carry), obs_statistics=statistics)


class ActingPopulation:
    """The individuals of one generation, and what they remember."""

    def __init__(self, act_fn: Callable, merge_fn: Callable, memory: Memory) -> None:
        self._act_fn = act_fn
        self._merge_fn = merge_fn
        self._memory = memory

    def act(self, jobs: np.ndarray, steps: np.ndarray, is_acting: np.ndarray, obs: Any) -> Any:
        """Return the actions of all slots, as arrays of the host: those of slots that do not act mean nothing.

        Slot k plays `jobs[k]`, which has made `steps[k]` steps, and sees `obs[k]`.
        """
        actions, self._memory = self._act_fn(jobs, steps, is_acting, obs, self._memory)
        return jax.tree.map(np.asarray, actions)

    def obs_statistics(self, is_finished: np.ndarray) -> RunningStatistics | None:
        """Return the statistics of what was seen in the jobs that were finished; None if they are not asked for."""
        statistics = self._memory.obs_statistics
        return None if statistics is None else self._merge_fn(statistics, is_finished)


def _merge_finished(statistics: RunningStatistics, is_finished: Array) -> RunningStatistics:
    return merge_all(where_tree(is_finished, statistics, jax.tree.map(jnp.zeros_like, statistics)))
