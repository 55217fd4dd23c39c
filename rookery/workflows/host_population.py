"""Playing the episodes of a population in host environments."""

import time
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState, RandomAgent
from rookery.errors import InvalidInputError
from rookery.evaluators.lanes import PopulationEpisodes
from rookery.evaluators.measures import Measure
from rookery.evaluators.population import population_size_of
from rookery.runners.acting.policy_map import DEFAULT_POLICY
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, BaseEnv, End, EnvOutputs
from rookery.runners.envs.validation import zeros_of
from rookery.runners.faults import EnvFaultError, Failed, Fault, FaultKind, Phase, RestartPolicy
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import RunnerConfig
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, Params, as_mappable_key, as_one_key
from rookery.workflows.config import TrainConfig
from rookery.workflows.host import FaultNotices, check_one_agent, check_one_host, fault_report, make_envs
from rookery.workflows.host_evaluator import MAX_EPISODE_STEPS, check_episodes_end
from rookery.workflows.host_jobs import Jobs
from rookery.workflows.host_policies import ActingPopulation, PopulationPolicy

NO_JOB = -1


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

    def __init__(
        self,
        train: TrainConfig,
        agent: Agent,
        num_slots: int,
        explore: bool,
        track_obs: bool,
        measures: tuple[Measure, ...] = (),
    ) -> None:
        check_one_host(train)
        if train.env.runner.overlap:
            raise InvalidInputError(
                "env.runner.overlap=true is for methods that learn from batches: a generation cannot be played before "
                "the one before is over."
            )
        self.num_slots = num_slots
        self._train = train
        self._measures = measures
        self._restart = RestartPolicy(max_restarts=train.env.runner.max_restarts)
        self._max_episode_steps = train.env.episode_length or MAX_EPISODE_STEPS
        self._counts: Counter[str] = Counter()
        self._fault_notices = FaultNotices()
        self._base_env: BaseEnv | None = None
        base_env = self._open()
        check_one_agent(train, base_env)
        self.obs_space, self.action_space = base_env.spaces[SINGLE_AGENT]
        self._policy = PopulationPolicy(agent, self.obs_space, num_slots, explore, track_obs)

    def play(self, agent_state: AgentState, population: Params, key: Key, num_episodes: int) -> PopulationEpisodes:
        """Play `num_episodes` of every individual; all else of `agent_state` they have in common.

        An episode that could not be finished has a return of NaN and a length of 0.
        """
        seed_key, action_key = jax.random.split(as_mappable_key(as_one_key(key)))
        seed = int(jax.random.bits(seed_key))
        jobs = Jobs(population_size_of(population), num_episodes, self._measures, seed)
        players = self._policy.begin(agent_state, population, action_key, num_episodes)
        try:
            self._play(jobs, players)
        except BaseException:
            self.close()  # the envs are in the middle of episodes that nobody will go on with
            raise
        return jobs.result(players.obs_statistics(jobs.lengths > 0))

    def no_episodes(self, population_size: int, num_episodes: int) -> PopulationEpisodes:
        """Return what `play` would, of a population that made no step."""
        return Jobs(population_size, num_episodes, self._measures).result(self._policy.no_statistics())

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

    @property
    def env_name(self) -> str:
        return self._train.env.name

    def report(self) -> dict[str, float]:
        """What a record tells of the environments: faults so far, and the steps that were lost by them."""
        report = fault_report(self._counts, len(self._lost))
        return report | {"faults/unfinished_episodes": self._counts["unfinished_episodes"]}

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

    def _play(self, jobs: Jobs, players: ActingPopulation) -> None:
        base_env, num_jobs = self._open(), jobs.num_left
        if num_jobs < self.num_slots:
            raise InvalidInputError(f"num_slots={self.num_slots} is more than the {num_jobs} episodes to be played.")
        self._first_fault: Fault | None = None
        obs = zeros_of(self.obs_space, self.num_slots)
        polled: EnvOutputs | None = None
        while jobs.num_left:
            self._begin_jobs(base_env, jobs)
            if len(self._idle) + len(self._lost) == self.num_slots:
                time.sleep(max(0.0, min(self._broken.values()) - time.monotonic()))
                continue
            if polled is not None:
                self._step(base_env, jobs, polled, players, obs)
            polled = base_env.poll()
            self._take_in(jobs, polled)
        if not (jobs.lengths > 0).any():
            raise self._error(f"none of {num_jobs} episodes could be finished")

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

    def _step(self, base_env: BaseEnv, jobs: Jobs, polled: EnvOutputs, players: ActingPopulation, obs: Any) -> None:
        """Act in the envs that were heard of and whose episode goes on."""
        rows = np.flatnonzero(polled.ends == End.RUNNING)
        if not len(rows):
            return
        rows = rows[np.argsort(polled.envs[rows])]
        envs = polled.envs[rows]
        for leaf, heard in zip(jax.tree.leaves(obs), jax.tree.leaves(polled.obs), strict=True):
            leaf[envs] = heard[rows]
        is_acting = np.zeros(self.num_slots, np.bool_)
        is_acting[envs] = True
        slot_jobs = np.where(is_acting, self._slot_jobs, 0).astype(np.int32)
        self._last_actions = players.act(slot_jobs, jobs.lengths[slot_jobs], is_acting, obs)
        base_env.send_actions(Actions(envs, _rows(self._last_actions, envs)))

    def _take_in(self, jobs: Jobs, polled: EnvOutputs) -> None:
        for env, failed in polled.failed.items():
            self._fail(jobs, env, failed)
        for env in polled.resets:
            self._num_failed_starts[env] = 0
        is_step = ~polled.is_reset
        played = self._slot_jobs[polled.envs[is_step]]
        jobs.returns[played] += polled.rewards[is_step]
        jobs.lengths[played] += 1
        if self._measures:
            self._measure(jobs, polled)
        check_episodes_end(self._train.env.name, jobs.lengths[played], self._max_episode_steps)
        for env in polled.over:
            self._slot_jobs[env] = NO_JOB
            self._idle.add(env)
            jobs.num_left -= 1

    def _measure(self, jobs: Jobs, polled: EnvOutputs) -> None:
        for row in np.flatnonzero(~polled.is_reset).tolist():
            env = int(polled.envs[row])
            jobs.measure(
                int(self._slot_jobs[env]),
                action=_rows(self._last_actions, env),
                reward=float(polled.rewards[row]),
                obs=_rows(polled.obs, row),
                info=polled.infos.get(env, {}).get(SINGLE_AGENT, {}),
                is_over=bool(polled.ends[row] != End.RUNNING),
            )

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
            action=_rows(self._last_actions, env) if is_within_episode else None,
            consequence=consequence,
        )
        self._first_fault = self._first_fault or fault
        self._fault_notices.notice(fault)
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


def _rows(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)
