"""Evolution on host environments: ask in a compiled program, play here, tell in a compiled program, and again."""

import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState, Carry, RandomAgent
from rookery.compilation import batch_invariant_options
from rookery.errors import InvalidInputError
from rookery.evaluators.population import PopulationEpisodes, merge_all, population_size_of
from rookery.learning import running_statistics
from rookery.learning.running_statistics import RunningStatistics
from rookery.runners.base_env import SINGLE_AGENT, Actions, BaseEnv, End, Polled
from rookery.runners.faults import EnvFaultError, Failed, Fault, FaultKind, Phase, RestartPolicy
from rookery.runners.policy_map import DEFAULT_POLICY
from rookery.runners.runner import EnvRunner, RunnerConfig
from rookery.runners.seeds import episode_seed
from rookery.runners.validation import zeros_of
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, Params, PyTreeData, PyTreeDict, as_mappable_key, as_one_key, where_tree
from rookery.workflows.config import TrainConfig
from rookery.workflows.host import make_envs
from rookery.workflows.host_evaluator import MAX_EPISODE_STEPS
from rookery.workflows.programs import SAME, SPLIT

if TYPE_CHECKING:
    from rookery.workflows.evolution import ECWorkflow

NO_JOB = -1


class Memory(PyTreeData):
    """What playing keeps on the device: the memories of the agents, one per slot, and statistics, one per job."""

    carry: Carry
    obs_statistics: RunningStatistics | None


class Jobs:
    """The episodes of one generation: those that wait, and what came out of the others.

    Job j is episode j % num_episodes of individual j // num_episodes. The seed of an episode depends on these two and
    on how often it was begun, so which env plays it makes no difference.
    """

    def __init__(self, population_size: int, num_episodes: int, seed: int) -> None:
        self.shape = population_size, num_episodes
        self.num_left = num_jobs = population_size * num_episodes
        self.waiting = deque(range(num_jobs))
        self.returns = np.zeros(num_jobs)
        self.lengths = np.zeros(num_jobs, np.int32)
        self.num_begun = [0] * num_jobs
        self.num_faults = [0] * num_jobs
        self._seed = seed

    def seed_of(self, job: int) -> int:
        """The seed of the present try."""
        individual, episode = divmod(job, self.shape[1])
        return episode_seed(self._seed, 0, individual, self.num_begun[job] - 1, episode)

    def begin(self) -> int:
        """Take the next job that waits."""
        job = self.waiting.popleft()
        self.num_begun[job] += 1
        return job

    def begin_again(self, job: int) -> None:
        """Let a job wait for another try."""
        self.returns[job], self.lengths[job] = 0.0, 0
        self.waiting.appendleft(job)

    def give_up(self, job: int) -> None:
        """End a job without a result."""
        self.returns[job], self.lengths[job] = np.nan, 0
        self.num_left -= 1


class HostPopulation:
    """Plays the episodes of a population in host environments, `num_slots` at a time.

    A slot that finishes an episode takes the next (individual, episode) at once. The population stays on the device:
    one compiled call acts for all slots, each with the parameters of its individual. Seeds and random actions depend
    on the key, the individual and the episode, so the result does not depend on the number of slots; except with
    vector environments that do not take a seed for each episode.

    An env that fails is built anew. A fault within an episode is counted against the episode, which is played again
    from another start, and after `max_restarts` of them its return is NaN: a policy may be what breaks a simulator. A
    fault before the first action is counted against the env, which is given up after so many in a row.
    """

    def __init__(self, train: TrainConfig, agent: Agent, num_slots: int, explore: bool, track_obs: bool) -> None:
        if jax.process_count() > 1:
            raise InvalidInputError(f"{train.env.name} is on the host: training on several hosts needs a device env.")
        if train.env.runner.overlap:
            raise InvalidInputError(
                "env.runner.overlap=true is for methods that learn from batches: a generation cannot be played before "
                "the one before is over."
            )
        self.num_slots = num_slots
        self._train = train
        self._agent = agent
        self._action_fn = agent.compute_actions if explore else agent.evaluate_actions
        self._track_obs = track_obs
        self._restart = RestartPolicy(max_restarts=train.env.runner.max_restarts)
        self._max_episode_steps = train.env.episode_length or MAX_EPISODE_STEPS
        self._counts: Counter[str] = Counter()
        self._base_env: BaseEnv | None = None
        base_env = self._open()
        if base_env.is_multi_agent:
            self.close()
            raise InvalidInputError(f"{train.env.name} has several agents: methods for one agent cannot train on it.")
        self.obs_space, self.action_space = base_env.spaces[SINGLE_AGENT]
        self._act = jax.jit(
            self._act_in_slots,
            static_argnums=(0, 1),
            donate_argnums=7,
            compiler_options=batch_invariant_options() or None,
        )
        self._merge_finished = jax.jit(_merge_finished)

    def play(self, agent_state: AgentState, population: Params, key: Key, num_episodes: int) -> PopulationEpisodes:
        """Play `num_episodes` of every individual; all else of `agent_state` they have in common.

        An episode that could not be finished has a return of NaN and a length of 0.
        """
        seed_key, action_key = jax.random.split(as_mappable_key(as_one_key(key)))
        jobs = Jobs(population_size_of(population), num_episodes, int(jax.random.bits(seed_key)))
        # Flat, for the program is called in every step: to look into trees of dicts takes as long as to act.
        leaves, treedef = jax.tree.flatten((agent_state, population, action_key))
        try:
            obs_statistics = self._play(jobs, partial(self._act, num_episodes, treedef, leaves))
        except BaseException:
            self.close()  # the envs are in the middle of episodes that nobody will go on with
            raise
        return _episodes(jobs.shape, jobs.returns, jobs.lengths, obs_statistics)

    def no_episodes(self, population_size: int, num_episodes: int) -> PopulationEpisodes:
        """Return what `play` would, of a population that made no step."""
        shape = population_size, num_episodes
        zeros = np.zeros(shape)
        statistics = running_statistics.init(self.obs_space) if self._track_obs else None
        return _episodes(shape, zeros, zeros, statistics)

    def play_at_random(self, num_envs: int, num_steps: int, seed: int) -> tuple[Any, Array]:
        """Act at random in envs made for it; return the observations `[T, B, ...]` and 0 for rows without one."""
        config = RunnerConfig(
            rollout_fragment_length=num_steps, on_invalid=self._train.env.runner.on_invalid, restart=self._restart
        )
        player = RandomAgent()
        runner = EnvRunner(make_envs(self._train, num_envs), player, config=config, seed=seed)
        try:
            runner.set_agent_states(player.init(self.obs_space, self.action_space, jax.random.key(seed)))
            batch: SampleBatch = runner.sample().batch.batches[DEFAULT_POLICY]
        finally:
            runner.close()
        return batch.obs, jnp.asarray(1.0 - batch.extras.env_extras.autoreset)

    def report(self) -> dict[str, float]:
        """What a record tells of the environments: faults so far, and the steps that were lost by them."""
        counts = self._counts
        report: dict[str, float] = {"faults/total": sum(counts[kind] for kind in FaultKind)}
        report |= {f"faults/{name}": counts[name] for name in (*FaultKind, "restarts", "unfinished_episodes")}
        report["faults/lost_envs"] = len(self._lost)
        return report | {"rollout/steps_discarded": counts["steps_discarded"]}

    def get_state(self) -> dict[str, Any]:
        """Return what was counted: every generation starts its episodes anew, with seeds from the training state."""
        return {"counts": dict(self._counts)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on counting from `get_state`."""
        self._counts = Counter(state["counts"])

    def close(self) -> None:
        """Close the environments, which the next generation makes anew; calling it twice does no harm."""
        if self._base_env is not None:
            self._base_env.close()
        self._base_env = None

    def _open(self) -> BaseEnv:
        """Return the environments; make them if there are none."""
        if self._base_env is None:
            self._base_env = make_envs(self._train, self.num_slots)
            self._slot_jobs = np.full(self.num_slots, NO_JOB)
            self._idle = set(range(self.num_slots))
            self._broken: dict[int, float] = {}
            """The idle slots whose env has to be built anew, and from when on it may be."""
            self._lost: set[int] = set()
            self._num_failed_starts = [0] * self.num_slots
            """How often in a row each env failed before its first action."""
            self._last_actions: Any = None
        return self._base_env

    def _play(self, jobs: Jobs, act: Callable) -> RunningStatistics | None:
        base_env, num_jobs = self._open(), jobs.num_left
        if num_jobs < self.num_slots:
            raise InvalidInputError(f"num_slots={self.num_slots} is more than the {num_jobs} episodes to be played.")
        self._first_fault: Fault | None = None
        memory = self._no_memory(num_jobs)
        obs = zeros_of(self.obs_space, self.num_slots)
        polled: Polled | None = None
        while jobs.num_left:
            self._begin_jobs(base_env, jobs)
            if len(self._idle) + len(self._lost) == self.num_slots:
                time.sleep(max(0.0, min(self._broken.values()) - time.monotonic()))
                continue
            if polled is not None:
                memory = self._step(base_env, jobs, polled, act, obs, memory)
            polled = base_env.poll()
            self._take_in(jobs, polled)
        is_finished = jobs.lengths > 0
        if not is_finished.any():
            raise self._error(f"none of {num_jobs} episodes could be finished")
        if memory.obs_statistics is None:
            return None
        return self._merge_finished(memory.obs_statistics, is_finished)

    def _begin_jobs(self, base_env: BaseEnv, jobs: Jobs) -> None:
        """Let the slots that can begin an episode take those that wait."""
        if not self._idle or not jobs.waiting:
            return
        now = time.monotonic()
        for env in sorted(self._idle):
            if not jobs.waiting:
                return
            if env in self._broken and self._broken[env] > now:
                continue
            job = jobs.begin()
            self._idle.remove(env)
            self._slot_jobs[env] = job
            if env in self._broken:
                del self._broken[env]
                self._counts["restarts"] += 1
                base_env.try_restart(env, jobs.seed_of(job))
            else:
                base_env.try_reset(env, jobs.seed_of(job))

    def _step(self, base_env: BaseEnv, jobs: Jobs, polled: Polled, act: Callable, obs: Any, memory: Memory) -> Memory:
        """Act in the envs that were heard of and whose episode goes on."""
        rows = np.flatnonzero(polled.ends == End.RUNNING)
        if not len(rows):
            return memory
        rows = rows[np.argsort(polled.envs[rows])]
        envs = polled.envs[rows]
        for leaf, heard in zip(jax.tree.leaves(obs), jax.tree.leaves(polled.obs), strict=True):
            leaf[envs] = heard[rows]
        is_acting = np.zeros(self.num_slots, np.bool_)
        is_acting[envs] = True
        slot_jobs = np.where(is_acting, self._slot_jobs, 0).astype(np.int32)
        actions, memory = act(slot_jobs, jobs.lengths[slot_jobs], is_acting, obs, memory)
        self._last_actions = jax.tree.map(np.asarray, actions)
        base_env.send_actions(Actions(envs, jax.tree.map(lambda leaf: leaf[envs], self._last_actions)))
        return memory

    def _take_in(self, jobs: Jobs, polled: Polled) -> None:
        for env, failed in polled.failed.items():
            self._fail(jobs, env, failed)
        for env in polled.resets:
            self._num_failed_starts[env] = 0
        is_step = ~polled.is_reset
        played = self._slot_jobs[polled.envs[is_step]]
        jobs.returns[played] += polled.rewards[is_step]
        jobs.lengths[played] += 1
        if (jobs.lengths[played] > self._max_episode_steps).any():
            raise InvalidInputError(
                f"an episode of {self._train.env.name} goes on after {self._max_episode_steps:,} steps: set "
                "env.episode_length."
            )
        for env in polled.over:
            self._slot_jobs[env] = NO_JOB
            self._idle.add(env)
            jobs.num_left -= 1

    def _fail(self, jobs: Jobs, env: int, failed: Failed) -> None:
        """Say what becomes of an env that failed, and of the episode that it was to play."""
        job, max_restarts = int(self._slot_jobs[env]), self._restart.max_restarts
        is_within_episode = failed.phase is Phase.STEP
        if is_within_episode:
            jobs.num_faults[job] += 1
            num_faults = jobs.num_faults[job]
        else:
            self._num_failed_starts[env] += 1
            num_faults = self._num_failed_starts[env]
        is_too_often = num_faults > max_restarts
        consequence = f"the episode is played again, {num_faults} of {max_restarts}"
        if is_too_often:
            consequence = "the episode is given up" if is_within_episode else "the env is given up"
        fault = Fault(
            failed=failed,
            env_name=self._train.env.name,
            env_index=env,
            seed=jobs.seed_of(job),
            episode=job,
            step=int(jobs.lengths[job]),
            action=jax.tree.map(lambda leaf: leaf[env], self._last_actions) if is_within_episode else None,
            consequence=consequence,
        )
        self._first_fault = self._first_fault or fault
        self._counts[failed.kind.value] += 1
        self._counts["steps_discarded"] += fault.step
        if failed.kind is FaultKind.INVALID and self._train.env.runner.on_invalid == "raise":
            raise EnvFaultError(str(fault), fault)
        self._slot_jobs[env] = NO_JOB
        if is_too_often and is_within_episode:
            self._counts["unfinished_episodes"] += 1
            jobs.give_up(job)
        else:
            jobs.begin_again(job)
        if is_too_often and not is_within_episode:
            self._lost.add(env)
        else:
            self._idle.add(env)
            self._broken[env] = time.monotonic() + self._restart.delay(num_faults - 1)
        if len(self._lost) == self.num_slots:
            raise self._error(f"all {self.num_slots} environments are lost")

    def _error(self, message: str) -> EnvFaultError:
        assert self._first_fault is not None
        return EnvFaultError(f"{message}; the first fault: {self._first_fault}", self._first_fault)

    # Compiled.

    def _no_memory(self, num_jobs: int) -> Memory:
        statistics = None
        if self._track_obs:
            empty = running_statistics.init(self.obs_space)
            statistics = jax.tree.map(lambda leaf: jnp.zeros((num_jobs, *leaf.shape), leaf.dtype), empty)
        return Memory(carry=self._agent.initial_carry((self.num_slots,)), obs_statistics=statistics)

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
            after = jax.vmap(_observed)(before, obs)
            rows = jnp.where(is_acting, jobs, num_jobs)
            statistics = jax.tree.map(lambda leaf, new: leaf.at[rows].set(new, mode="drop"), statistics, after)
        return actions, Memory(carry=where_tree(is_acting, carry, memory.carry), obs_statistics=statistics)


def _episodes(
    shape: tuple[int, int], returns: np.ndarray, lengths: np.ndarray, obs_statistics: RunningStatistics | None
) -> PopulationEpisodes:
    arrays: dict[str, Any] = {
        "episode_returns": returns.reshape(shape).astype(np.float32),
        "episode_lengths": lengths.reshape(shape).astype(np.int32),
        "measures": np.zeros((*shape, 0), np.float32),
    }
    return PopulationEpisodes(**arrays, obs_statistics=obs_statistics)


def _observed(statistics: RunningStatistics, obs: Any) -> RunningStatistics:
    """Take an observation into the statistics, unless it is not finite: one that diverges must not spoil all."""
    is_finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(obs)])
    return running_statistics.update(statistics, obs, jnp.all(is_finite).astype(jnp.float32))


def _merge_finished(statistics: RunningStatistics, is_finished: Array) -> RunningStatistics:
    """Merge the statistics of the episodes that were finished."""
    return merge_all(where_tree(is_finished, statistics, jax.tree.map(jnp.zeros_like, statistics)))


class HostGenerations:
    """The training program on host environments: generations whose episodes are played between compiled programs.

    It is called like the program that trains on the device.
    """

    def __init__(self, workflow: "ECWorkflow", host: HostPopulation) -> None:
        self._workflow = workflow
        self._host = host
        self._is_compiled = False
        self.collect_seconds = 0.0
        """How long each generation of the last call played."""

        def advance(state: Any, metrics: Any, population: Params, episodes: PopulationEpisodes) -> tuple[Any, Any]:
            new_metrics, state = workflow.learn_from(state, population, episodes)
            return state, jax.tree.map(jnp.add, metrics, new_metrics)

        of_each: dict[str, Any] = dict.fromkeys(("episode_returns", "episode_lengths", "measures"), SPLIT)
        of_all: Any = SAME
        specs = PopulationEpisodes(**of_each, obs_statistics=of_all)
        self._place = partial(workflow.layout.place, specs=specs)
        config = workflow.config
        self._example = self._place(host.no_episodes(config.population_size, config.num_episodes))
        self._ask = workflow.program(workflow.ask, (SAME,), (SAME, SPLIT, SAME))
        self._learn_from = workflow.program(workflow.learn_from, (SAME, SPLIT, specs), (SAME, SAME))
        self._advance = workflow.program(advance, (SAME, SAME, SPLIT, specs), (SAME, SAME), donate=(0, 1))

    def step(self, state: Any) -> tuple[PyTreeDict, Any]:
        """Play a generation and learn from it."""
        asked, population, play_key = self._ask(state)
        return self._learn_from(asked, population, self._play(asked, population, play_key))

    def metrics_like(self, state: Any) -> Any:
        """Return the shapes of the metrics of a generation."""
        asked, population, _ = jax.eval_shape(self._ask, state)
        return jax.eval_shape(self._learn_from, asked, population, self._example)[0]

    def is_ready(self, *args: Any) -> bool:
        """Tell whether there is nothing to compile."""
        return self._is_compiled

    def compile(self, state: Any, metrics: Any, *limits: Any) -> float:
        """Compile for a state like this; return the seconds it took."""
        seconds = self._ask.compile(state)
        asked, population, _ = self._ask(state)
        self._is_compiled = True
        return seconds + self._advance.compile(asked, metrics, population, self._example)

    def __call__(self, state: Any, metrics: Any, num_iterations: Any, until: Any) -> tuple[Any, Any]:
        """Train for so many generations, or until so many env steps are reached."""
        num_done, seconds = 0, 0.0
        while num_done < int(num_iterations) and int(state.env_steps) < int(until):
            state, population, play_key = self._ask(state)
            start = time.perf_counter()
            episodes = self._play(state, population, play_key)
            seconds += time.perf_counter() - start
            state, metrics = self._advance(state, metrics, population, episodes)
            num_done += 1
        self.collect_seconds = seconds / max(num_done, 1)
        return state, metrics

    def _play(self, state: Any, population: Params, key: Key) -> PopulationEpisodes:
        workflow = self._workflow
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(population)):
            raise InvalidInputError(
                f"{workflow.settings.train.env.name} is on the host: a step of training on it cannot be part of a "
                "compiled program."
            )
        # Agents act on one device.
        device = workflow.layout.mesh.devices.flat[0]
        agent_state, population, key = jax.device_put((state.agent_state, population, key), device)
        return self._place(self._host.play(agent_state, population, key, workflow.config.num_episodes))
