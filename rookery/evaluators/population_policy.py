"""The policy of a population in host environments: one compiled call acts for all individuals."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState, Carry
from rookery.compilation import batch_invariant_options
from rookery.evaluators.lanes import observed
from rookery.evaluators.population import population_size_of
from rookery.learning import running_statistics
from rookery.learning.running_statistics import RunningStatistics
from rookery.runners.acting.players import ObsTable, Players
from rookery.runners.envs.base_env import Actions, EnvOutputs
from rookery.runners.envs.validation import zeros_of
from rookery.runners.recording.episode import LiveEpisode
from rookery.runners.schedule import NO_EPISODE
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Action, Array, Key, Obs, Params, PyTreeData, PyTreeDict, where_tree

NOBODY = range(0)


class ActingState(PyTreeData):
    """Device state of acting: the recurrent state of each slot, and the observation statistics of each job."""

    carry: Carry
    obs_statistics: RunningStatistics | None


class PopulationPolicy:
    """Acts in `num_slots` environments, each with the parameters of the individual whose episode it plays.

    Job j is episode j % num_episodes of individual j // num_episodes, numbered over the whole generation. Random
    actions depend only on the key, the individual, the episode and its step. If not all `explore`, the individuals in
    `explorers` do.
    """

    def __init__(
        self,
        agent: Agent,
        obs_space: Space,
        num_slots: int,
        explore: bool,
        track_obs: bool,
        explorers: range = NOBODY,
    ) -> None:
        self._agent = agent
        self._action_fn = agent.compute_actions if explore else agent.evaluate_actions
        self._explorers = explorers
        self._obs_space = obs_space
        self._num_slots = num_slots
        self._track_obs = track_obs
        self._act = jax.jit(
            self._act_in_slots,
            static_argnums=(0, 1),
            donate_argnums=7,
            compiler_options=batch_invariant_options() or None,
        )

    def begin(
        self, agent_state: AgentState, individuals: Params, key: Key, num_episodes: int, first: int = 0
    ) -> "PopulationPlayers":
        """Play for consecutive individuals, from number `first`, which share the rest of `agent_state`."""
        # Flattened once: flattening trees of dicts in every step takes as long as acting.
        leaves, treedef = jax.tree.flatten(jax.device_put((agent_state, individuals, key, np.int32(first))))
        state = self._initial_state(population_size_of(individuals) * num_episodes)
        act_fn = partial(self._act, num_episodes, treedef, leaves)
        return PopulationPlayers(act_fn, state, self._obs_space, self._num_slots, first * num_episodes)

    def _initial_state(self, num_jobs: int) -> ActingState:
        empty = running_statistics.init(self._obs_space) if self._track_obs else None
        statistics = jax.tree.map(lambda leaf: jnp.zeros((num_jobs, *leaf.shape), leaf.dtype), empty)
        return ActingState(carry=self._agent.initial_carry((self._num_slots,)), obs_statistics=statistics)

    def _act_in_slots(
        self,
        num_episodes: int,
        treedef: jax.tree_util.PyTreeDef,
        leaves: list[Array],
        jobs: Array,
        steps: Array,
        is_acting: Array,
        obs: Obs,
        state: ActingState,
    ) -> tuple[Action, ActingState]:
        """Act in all slots, each with the parameters of its individual; slots that do not act keep their state."""
        agent_state, individuals, key, first = jax.tree.unflatten(treedef, leaves)

        def act(job: Array, step: Array, obs: Obs, carry: Carry) -> tuple[Action, Carry]:
            individual = job // num_episodes
            episode_key = jax.random.fold_in(jax.random.fold_in(key, individual), job % num_episodes)
            policy_extras = PyTreeDict(carry=carry, episode_start=(step == 0).astype(jnp.float32))
            given = (
                agent_state.replace(params=jax.tree.map(lambda leaf: leaf[individual - first], individuals)),
                SampleBatch(obs=obs, extras=PyTreeDict(policy_extras=policy_extras, env_extras=PyTreeDict())),
                jax.random.fold_in(episode_key, step),
            )

            def act_by(action_fn: Callable) -> tuple[Action, Carry]:
                actions, extras = action_fn(*given)
                return actions, PyTreeDict(extras).get("carry", carry)

            acted = act_by(self._action_fn)
            if not self._explorers:
                return acted
            explores = (individual >= self._explorers.start) & (individual < self._explorers.stop)
            return where_tree(explores, act_by(self._agent.compute_actions), acted)

        given = jobs, steps, obs, state.carry
        if self._num_slots == 1:  # XLA rounds noise in a batch of one in another way
            given = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), given)
        actions, carry = jax.tree.map(lambda leaf: leaf[: self._num_slots], jax.vmap(act)(*given))
        statistics = state.obs_statistics
        if statistics is not None:
            num_jobs = len(statistics.count.high)
            rows = jobs - first * num_episodes
            before = jax.tree.map(lambda leaf: leaf[rows], statistics)
            before = where_tree(steps == 0, jax.tree.map(jnp.zeros_like, before), before)
            after = jax.vmap(observed)(before, obs)
            rows = jnp.where(is_acting, rows, num_jobs)
            statistics = jax.tree.map(lambda leaf, new: leaf.at[rows].set(new, mode="drop"), statistics, after)
        return actions, ActingState(carry=where_tree(is_acting, carry, state.carry), obs_statistics=statistics)


class PopulationPlayers(Players):
    """Some individuals of a generation and their acting state. The number of an episode is its job."""

    def __init__(self, act_fn: Callable, state: ActingState, obs_space: Space, num_slots: int, first_job: int) -> None:
        self._act_fn = act_fn
        self._state = state
        self._first_job = np.int32(first_job)
        self._jobs = np.full(num_slots, NO_EPISODE, np.int32)
        self._table = ObsTable(num_slots, zeros_of(obs_space, num_slots))
        self._last_actions: Action = None

    def observe(self, outputs: EnvOutputs, episodes: Sequence[LiveEpisode]) -> None:
        for env in outputs.resets:
            self._jobs[env] = episodes[env].number
        self._table.write(outputs)

    def act(self, envs: np.ndarray, lengths: np.ndarray) -> Actions:
        is_acting = np.zeros(len(self._jobs), np.bool_)
        is_acting[envs] = True
        is_acting &= self._jobs != NO_EPISODE
        jobs = np.where(is_acting, self._jobs, self._first_job)
        actions, self._state = self._act_fn(jobs, lengths, is_acting, self._table.obs, self._state)
        actions = jax.tree.map(np.asarray, actions)
        if self._last_actions is None:
            self._last_actions = jax.tree.map(np.array, actions)
        sent = jax.tree.map(lambda leaf: leaf[envs], actions)
        for table, leaf in zip(jax.tree.leaves(self._last_actions), jax.tree.leaves(sent), strict=True):
            table[envs] = leaf
        return Actions(envs, sent)

    def last_rows(self, envs: np.ndarray) -> tuple[Obs, Action]:
        """Return copies of the observations that these envs acted on last, and of the actions."""
        return jax.tree.map(lambda leaf: leaf[envs], (self._table.obs, self._last_actions))

    def last_action(self, env: int) -> Action:
        return jax.tree.map(lambda leaf: leaf[env], self._last_actions)

    @property
    def obs_statistics(self) -> RunningStatistics | None:
        """The observation statistics of each job of these individuals; None if observations are not tracked."""
        return self._state.obs_statistics
