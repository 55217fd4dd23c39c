"""Evaluation of a population: many agents, several episodes each, on a fixed number of lanes.

With `vmap` over the population, every agent costs as much as the longest episode. Here a lane that finishes an episode
takes the next (agent, episode) from a queue, so the cost is the sum of the episode lengths divided by the number of
lanes.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from rookery.agent import AgentState, Carry
from rookery.compilation import batch_invariant_jit
from rookery.control_flow import any_true, cond_any
from rookery.envs import Env, EnvState, MultiAgentEnv, VectorWrapper
from rookery.envs.env import check_is_env
from rookery.errors import InvalidInputError, check_count, check_discount
from rookery.evaluators.lanes import (
    Lanes,
    PopulationEpisodes,
    Queue,
    Recorder,
    load_agents,
    observed,
    rows_of,
    where_lanes,
)
from rookery.evaluators.measures import Measure
from rookery.learning import running_statistics
from rookery.learning.running_statistics import RunningStatistics
from rookery.metrics import EvaluateMetric
from rookery.rollout import ActionFn, act
from rookery.types import (
    Action,
    Array,
    Key,
    PyTree,
    PyTreeNode,
    Tree,
    as_mappable_key,
    as_one_key,
    index_tree,
    pytree_field,
    where_tree,
)

LoopState = tuple[Lanes, PopulationEpisodes, PyTree, Array]
"""Lanes, results, the state of the recorder and the next job."""


class PopulationEvaluator(PyTreeNode):
    """Plays `num_episodes` of every agent of a population on `num_lanes` lanes.

    `env` is a single env with episodes, or a vectorized env, whose single env is used. `agent_fn` is
    `agent.evaluate_actions`; a recurrent agent also needs `initial_carry_fn=agent.initial_carry`. Agents that `play` is
    told to explore act by `explore_fn`, which is `agent.compute_actions`. `play` also returns the `measures` of every
    episode and, with `track_obs`, the statistics of the observations. If the population is
    split over the devices of the mesh axis `axis_name`, the statistics cover all devices.

    The randomness of an episode depends only on the key, the index of the agent and the index of the episode, so the
    result does not depend on the number of lanes; on CPU bit for bit. (If you call it inside your own compiled program,
    compile that program with `rookery.compilation.batch_invariant_options`.)
    """

    env: Env = pytree_field(static=True)
    agent_fn: ActionFn = pytree_field(static=True)
    explore_fn: ActionFn | None = pytree_field(static=True, default=None)
    initial_carry_fn: Callable[[tuple[int, ...]], Carry] = pytree_field(static=True, default=lambda batch_shape: ())
    max_episode_steps: int = pytree_field(static=True)
    num_lanes: int = pytree_field(static=True, default=16)
    discount: float = pytree_field(static=True, default=1.0)
    measures: tuple[Measure, ...] = pytree_field(static=True, default=())
    track_obs: bool = pytree_field(static=True, default=False)
    axis_name: str | None = pytree_field(static=True, default=None)

    def __post_init__(self) -> None:
        check_is_env(self.env)
        if isinstance(self.env.unwrapped, MultiAgentEnv):
            raise InvalidInputError("PopulationEvaluator does not support multi-agent environments.")
        check_count("max_episode_steps", self.max_episode_steps)
        check_count("num_lanes", self.num_lanes)
        check_discount(self.discount)

    @property
    def single_env(self) -> Env:
        """The env of one lane."""
        return self.env.env if isinstance(self.env, VectorWrapper) else self.env

    def evaluate(self, agent_states: AgentState, key: Key, num_episodes: int = 1) -> EvaluateMetric:
        """Return returns and lengths `[P, E]`; the first axis of every leaf of `agent_states` is the population."""
        episodes = self.play(agent_states, key, num_episodes)
        return EvaluateMetric(episode_returns=episodes.episode_returns, episode_lengths=episodes.episode_lengths)

    def play(
        self,
        agent_states: AgentState,
        key: Key,
        num_episodes: int = 1,
        first_agent: Array | int = 0,
        recorder: Recorder | None = None,
        explores: Array | None = None,
        paired: bool = False,
    ) -> PopulationEpisodes:
        """Play and return all results; `first_agent` is the index of the first agent in the whole population.

        The episodes of an agent depend on its index, so they are the same in whichever part it is evaluated.
        `first_agent` may also have the index of each agent, `[P]`. If `paired`, episodes depend on their own index
        alone: all agents start alike.

        A `recorder` gets one row per lane and step; the order of its rows depends on the number of lanes. `explores`
        `[P]` marks the agents that act by `explore_fn`.
        """
        check_count("num_episodes", num_episodes)
        if explores is not None and self.explore_fn is None:
            raise InvalidInputError("explores needs explore_fn: build the evaluator with agent.compute_actions.")
        first_agent = jnp.asarray(first_agent, jnp.int32)
        return self._play(agent_states, as_one_key(key), num_episodes, first_agent, recorder, explores, paired)

    @partial(batch_invariant_jit, static_argnames=("num_episodes", "paired"))
    def _play(
        self,
        agent_states: AgentState,
        key: Key,
        num_episodes: int,
        first_agent: Array,
        recorder: Recorder | None,
        explores: Array | None,
        paired: bool,
    ) -> PopulationEpisodes:
        population_size = population_size_of(agent_states)
        numbers = jnp.arange(population_size, dtype=jnp.int32)
        queue = Queue(
            agent_states=agent_states,
            key=as_mappable_key(key),
            numbers=first_agent if first_agent.ndim else first_agent + numbers,
            explores=explores,
            num_episodes=num_episodes,
            num_jobs=population_size * num_episodes,
            paired=paired,
        )
        (played, recorded), shape = self._play_all(queue, recorder), (population_size, num_episodes)
        statistics = played.obs_statistics
        if self.axis_name is not None:
            statistics, numbers = jax.lax.all_gather((statistics, queue.numbers), self.axis_name, tiled=True)
            order = jnp.argsort(jnp.repeat(numbers, num_episodes), stable=True)
            statistics = index_tree(statistics, order)  # the result does not depend on who played whom
        return PopulationEpisodes(
            episode_returns=played.episode_returns.reshape(shape),
            episode_lengths=played.episode_lengths.reshape(shape),
            measures=self._finished(played).reshape(*shape, len(self.measures)),
            obs_statistics=None if statistics is None else merge_all(statistics),
            recorded=recorded,
        )

    def _play_all(self, queue: Queue, recorder: Recorder | None) -> tuple[PopulationEpisodes, PyTree]:
        """Play all jobs; return the results `[jobs, ...]`, with statistics for each job, and what was recorded."""
        no_statistics = running_statistics.init(self.single_env.obs_space) if self.track_obs else None
        lanes = self._first_lanes(queue, no_statistics)
        results = PopulationEpisodes(
            episode_returns=jnp.zeros(queue.num_jobs, jnp.float32),
            episode_lengths=jnp.zeros(queue.num_jobs, jnp.int32),
            measures=jnp.zeros((queue.num_jobs, len(self.measures)), jnp.float32),
            obs_statistics=_repeated(no_statistics, queue.num_jobs),
        )
        recorded = None if recorder is None else recorder.init()
        state = (lanes, results, recorded, jnp.asarray(self.num_lanes, lanes.job.dtype))

        def is_unfinished(state: LoopState) -> Array:
            return any_true(state[0].job < queue.num_jobs)

        _, results, recorded, _ = jax.lax.while_loop(is_unfinished, partial(self._step, queue, recorder), state)
        return results, recorded

    def _start(self, queue: Queue, job: Array) -> tuple[EnvState, Carry, Key]:
        reset_key, action_key = jax.random.split(queue.key_of(job))
        env_state = self.single_env.reset(reset_key)
        env_state = env_state.replace(info=env_state.info.replace(episode_start=jnp.ones((), jnp.float32)))
        return env_state, self.initial_carry_fn(()), action_key

    def _first_lanes(self, queue: Queue, no_statistics: RunningStatistics | None) -> Lanes:
        jobs = jnp.arange(self.num_lanes)
        env_state, carry, action_key = jax.vmap(partial(self._start, queue))(jobs)
        return Lanes(
            job=jobs,
            agent_state=index_tree(queue.agent_states, queue.agent_of(jobs)),
            env_state=env_state,
            carry=carry,
            action_key=action_key,
            returns=jnp.zeros(self.num_lanes, jnp.float32),
            lengths=jnp.zeros(self.num_lanes, jnp.int32),
            discount_power=jnp.ones(self.num_lanes, jnp.float32),
            measures=jnp.zeros((self.num_lanes, len(self.measures)), jnp.float32),
            obs_statistics=_repeated(no_statistics, self.num_lanes),
        )

    def _step(self, queue: Queue, recorder: Recorder | None, state: LoopState) -> LoopState:
        """Step all lanes; lanes whose episode ended take the next job."""
        lanes, results, recorded, next_job = state
        is_live = lanes.job < queue.num_jobs
        after, actions = jax.vmap(partial(self._step_lane, queue))(lanes)
        ended = (after.env_state.done > 0) | (after.lengths >= self.max_episode_steps)
        if recorder is not None:
            recorded = recorder.record(recorded, rows_of(lanes, actions, after, ended), is_live)
        refill = partial(self._refill, queue, ended & is_live)
        lanes, results, next_job = cond_any(ended & is_live, refill, after, results, next_job)
        return lanes, results, recorded, next_job

    def _step_lane(self, queue: Queue, lane: Lanes) -> tuple[Lanes, Action]:
        step_key = jax.random.fold_in(lane.action_key, lane.lengths)
        actions, carry = self._act(queue, lane, step_key)
        env_state = self.single_env.step(lane.env_state, actions)
        stepped = lane.replace(
            env_state=env_state.replace(info=env_state.info.replace(episode_start=jnp.zeros((), jnp.float32))),
            carry=carry,
            returns=lane.returns + lane.discount_power * env_state.reward,
            lengths=lane.lengths + 1,
            discount_power=lane.discount_power * self.discount,
            measures=self._measured(lane.measures, actions, env_state),
            obs_statistics=observed(lane.obs_statistics, lane.env_state.obs),
        )
        return stepped, actions

    def _act(self, queue: Queue, lane: Lanes, key: Key) -> tuple[Action, Carry]:
        """Act greedily or, if the agent explores, by `explore_fn`."""
        greedy, _, carry = act(self.agent_fn, lane.agent_state, lane.env_state, lane.carry, key)
        if queue.explores is None or self.explore_fn is None:
            return greedy, carry
        exploring, _, exploring_carry = act(self.explore_fn, lane.agent_state, lane.env_state, lane.carry, key)
        explores = queue.explores[queue.agent_of(lane.job)]
        return where_tree(explores, (exploring, exploring_carry), (greedy, carry))

    def _measured(self, totals: Array, action: Action, env_state: EnvState) -> Array:
        """Add one step of an episode to its measures `[M]`."""
        values = [
            measure.accumulate(total, measure.at_step(action, env_state))
            for measure, total in zip(self.measures, totals, strict=True)
        ]
        return jnp.stack(values) if values else totals

    def _refill(
        self, queue: Queue, ended: Array, lanes: Lanes, results: PopulationEpisodes, next_job: Array
    ) -> tuple[Lanes, PopulationEpisodes, Array]:
        """Store the results of ended episodes and start the next ones on their lanes."""
        where = jnp.where(ended, lanes.job, queue.num_jobs)
        played = PopulationEpisodes(
            episode_returns=lanes.returns,
            episode_lengths=lanes.lengths,
            measures=lanes.measures,
            obs_statistics=lanes.obs_statistics,
        )
        results = jax.tree.map(lambda all_, new: all_.at[where].set(new, mode="drop"), results, played)
        job = jnp.where(ended, next_job + jnp.cumsum(ended) - 1, lanes.job)
        is_needed = ended & (job < queue.num_jobs)
        agent_state = load_agents(lanes.agent_state, queue.agent_states, is_needed, queue.agent_of(job))
        env_state, carry, action_key = jax.vmap(partial(self._start, queue))(job)
        fresh = Lanes(
            job=job,
            agent_state=agent_state,
            env_state=env_state,
            carry=carry,
            action_key=action_key,
            returns=jnp.zeros_like(lanes.returns),
            lengths=jnp.zeros_like(lanes.lengths),
            discount_power=jnp.ones_like(lanes.discount_power),
            measures=jnp.zeros_like(lanes.measures),
            obs_statistics=jax.tree.map(jnp.zeros_like, lanes.obs_statistics),
        )
        kept = lanes.replace(job=job, agent_state=agent_state)
        return where_lanes(ended, fresh, kept), results, next_job + jnp.sum(ended)

    def _finished(self, episodes: PopulationEpisodes) -> Array:
        """Return the measures of complete episodes, `[jobs, M]`."""
        columns = [
            measure.result(episodes.measures[:, index], episodes.episode_lengths)
            for index, measure in enumerate(self.measures)
        ]
        return jnp.stack(columns, axis=1) if columns else episodes.measures


def merge_all(statistics: RunningStatistics) -> RunningStatistics:
    """Merge statistics `[N]` pairwise, in an order that does not depend on which episode finished first."""
    size = statistics.count.high.shape[0]
    while size > 1:
        half = size // 2
        first, second, rest = (
            index_tree(statistics, slice(start, end)) for start, end in ((0, half), (half, 2 * half), (2 * half, size))
        )
        merged = jax.vmap(running_statistics.merge)(first, second)
        statistics = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), merged, rest)
        size -= half
    return index_tree(statistics, 0)


def _repeated(tree: Tree, count: int) -> Tree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), tree)


def population_size_of(agent_states: AgentState) -> int:
    """Return the common first axis of all leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(agent_states)
    if not leaves:
        raise InvalidInputError("agent_states has no arrays and is no population: use Evaluator for one agent.")
    sizes = {jax.tree_util.keystr(path): jnp.shape(leaf)[:1] for path, leaf in leaves}
    first_path, first_size = next(iter(sizes.items()))
    for path, size in sizes.items():
        if not size or size != first_size:
            raise InvalidInputError(
                f"the first axis of every leaf of agent_states must be the population: {first_path} has {first_size}, "
                f"{path} has {size}. Make the states with jax.vmap over agent.init."
            )
    return first_size[0]
