"""Plays the episodes of individuals in the environments of one runner."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from rookery.agent import Agent
from rookery.envs.config import EnvConfig
from rookery.evaluators.measures import Measure
from rookery.evaluators.population_policy import NOBODY, PopulationPlayers, PopulationPolicy
from rookery.evolution import EvoOptimizer
from rookery.runners.acting.players import Players
from rookery.runners.engine import EpisodeEngine
from rookery.runners.envs.base_env import SINGLE_AGENT, BaseEnv, End, EnvOutputs
from rookery.runners.groups.episodes import Plan, Played
from rookery.runners.groups.jobs import Chunk
from rookery.runners.health import RestartPolicy
from rookery.runners.ledger import Steps
from rookery.runners.recording.episode import LiveEpisode
from rookery.runners.recording.returns import ReturnsRecorder
from rookery.runners.schedule import NO_EPISODE, EpisodeQueue
from rookery.sample_batch import SampleBatch
from rookery.types import Params, PyTreeDict, as_one_key


@dataclass(frozen=True, eq=False)
class PopulationSpec:
    """How individuals are played. It can be pickled.

    The `optimizer` makes individuals by the recipe of a plan; it is needed if chunks do not carry them. If not all
    `explore`, the individuals in `explorers` do. If it `keeps_rows`, results contain the steps, for a replay buffer.
    """

    env: EnvConfig
    agent: Agent
    explore: bool
    track_obs: bool
    measures: tuple[Measure, ...] = ()
    optimizer: EvoOptimizer | None = None
    explorers: range = NOBODY
    keeps_rows: bool = False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def is_recurrent(self) -> bool:
        return bool(jax.tree.leaves(self.agent.initial_carry(())))

    def make(self, base_env: BaseEnv) -> "PopulationPlayer":
        return PopulationPlayer(self, base_env)


class PopulationPlayer:
    """Plays episodes of individuals in the environments of one runner.

    An env that finishes an episode starts the next (individual, episode) at once. The individuals stay on the device:
    one compiled call acts for all envs, each with the parameters of its individual. Seeds and random actions depend on
    the plan, the individual and the episode, so the result does not depend on the number of envs nor on the chunks. The
    exception is vector environments that do not take a seed for each episode.

    After a fault within an episode, the episode is played again with another seed. After `max_restarts` such faults it
    stays unfinished, because the policy may cause them. An env that fails before the first action is restarted, and
    lost after `max_restarts` failed restarts in a row.
    """

    def __init__(self, spec: PopulationSpec, base_env: BaseEnv) -> None:
        self._spec = spec
        self._base_env = base_env
        self._restart = RestartPolicy(max_restarts=spec.env.runner.max_restarts)
        self._policy = PopulationPolicy(
            spec.agent,
            base_env.spaces[SINGLE_AGENT][0],
            base_env.num_envs,
            spec.explore,
            spec.track_obs,
            spec.explorers,
        )
        self._engine: EpisodeEngine | None = None
        if spec.optimizer is not None:
            self._sample_some = jax.jit(spec.optimizer.sample_some, static_argnums=3)

    def play(self, plan: Plan, chunk: Chunk, individuals: Params) -> Played:
        num_episodes, num_envs = plan.num_episodes, self._base_env.num_envs
        if individuals is None:
            assert plan.sample_key is not None, "a plan without a recipe"
            key = as_one_key(plan.sample_key)
            individuals = self._sample_some(plan.recipe, key, np.int32(chunk.first), plan.chunk_size)
        players = self._policy.begin(plan.agent_state, individuals, as_one_key(plan.key), num_episodes, chunk.first)
        num_jobs = plan.num_individuals * num_episodes
        jobs = range(chunk.first * num_episodes, (chunk.first + chunk.count) * num_episodes)
        # The last row is for envs without a job.
        recorder_class = RowsRecorder if self._spec.keeps_rows else MeasuresRecorder
        recorder = recorder_class(players, num_envs, num_jobs + 1, self._spec.measures)
        schedule = EpisodeQueue(num_jobs, num_envs, plan.seed, jobs)
        engine = self._begin(recorder, schedule)
        engine.run()
        return self._played(engine, players, recorder, schedule, jobs)

    def _begin(self, recorder: "MeasuresRecorder", schedule: EpisodeQueue) -> EpisodeEngine:
        """Return the engine, ready to play."""
        if self._engine is None:
            self._engine = EpisodeEngine(
                self._base_env,
                recorder,
                schedule,
                self._restart,
                self._spec.env.runner.on_invalid,
                clock=self._spec.clock,
                sleep=self._spec.sleep,
            )
        self._engine.begin(recorder, schedule)
        return self._engine

    def _played(
        self,
        engine: EpisodeEngine,
        players: PopulationPlayers,
        recorder: "MeasuresRecorder",
        schedule: EpisodeQueue,
        jobs: range,
    ) -> Played:
        mine = slice(jobs.start, jobs.stop)
        ended = sorted((episode for episode, _ in engine.ended), key=lambda episode: episode.number)
        return Played(
            returns=recorder.returns[mine, 0].astype(np.float32),
            lengths=recorder.lengths[mine].copy(),
            measures=recorder.measures()[mine].astype(np.float32),
            obs_statistics=jax.tree.map(lambda leaf: np.asarray(leaf)[: len(jobs)], players.obs_statistics),
            metrics=[episode.metrics for episode in ended if episode.metrics and episode.number != NO_EPISODE],
            faults=engine.faults,
            num_given_up=schedule.num_given_up,
            counts=engine.fault_counts + Counter(steps_discarded=engine.discarded.env_steps),
            num_lost_envs=len(engine.states.lost),
            rows=recorder.rows(self._spec.is_recurrent) if isinstance(recorder, RowsRecorder) else None,
        )


class MeasuresRecorder(ReturnsRecorder):
    """Records the returns, the lengths and the measures of episodes."""

    def __init__(self, players: Players, num_envs: int, num_episodes: int, measures: tuple[Measure, ...]) -> None:
        super().__init__(players, num_envs, num_episodes)
        self._measures = measures
        self._measured = np.full((num_episodes, len(measures)), np.nan)
        self._env_measured = np.zeros((num_envs, len(measures)))

    def observe(self, polled: EnvOutputs, episodes: Sequence[LiveEpisode]) -> Sequence[int]:
        completed = super().observe(polled, episodes)
        if self._measures:
            for row in np.flatnonzero(~polled.is_reset).tolist():
                self._measure(polled, row)
        return completed

    def _measure(self, polled: EnvOutputs, row: int) -> None:
        """Measure one step; `last` measures are evaluated only at the end of the episode."""
        env = int(polled.envs[row])
        action, reward = self.last_action(env), float(polled.rewards[row])
        obs = jax.tree.map(lambda leaf: leaf[row], polled.obs)
        info = polled.infos.get(env, {}).get(SINGLE_AGENT, {})
        totals = self._env_measured[env]
        for index, measure in enumerate(self._measures):
            if measure.reduction != "last" or polled.ends[row] != End.RUNNING:
                totals[index] = measure.accumulate(totals[index], measure.at_host_step(action, reward, obs, info))

    def end_episode(self, episode: LiveEpisode) -> int:
        self._measured[episode.number] = self._env_measured[episode.env_index]
        return super().end_episode(episode)

    def discard(self, env: int) -> Steps:
        self._env_measured[env] = 0.0
        return super().discard(env)

    def measures(self) -> np.ndarray:
        """Return the measures of whole episodes, `[episodes, M]`; NaN for those that are not finished."""
        lengths = np.maximum(self.lengths, 1)  # unfinished episodes have no mean
        columns = [measure.result(self._measured[:, i], lengths) for i, measure in enumerate(self._measures)]
        return np.stack(columns, axis=1) if columns else self._measured


class RowsRecorder(MeasuresRecorder):
    """Also keeps the rows of finished episodes.

    An episode may take several tries, in whichever envs are free; only the rows of the last one count.
    """

    _players: PopulationPlayers

    def __init__(
        self, players: PopulationPlayers, num_envs: int, num_episodes: int, measures: tuple[Measure, ...]
    ) -> None:
        super().__init__(players, num_envs, num_episodes, measures)
        self._steps: list[tuple] = []
        """The rows of each poll: their tries and steps, and what they contain."""
        self._tries = np.arange(num_envs)
        """The try that each env plays."""
        self._episodes = np.full(num_envs, NO_EPISODE)
        """The episode that each try finished."""

    def observe(self, polled: EnvOutputs, episodes: Sequence[LiveEpisode]) -> Sequence[int]:
        is_step = ~polled.is_reset
        envs = polled.envs[is_step]
        if len(envs):
            result = jax.tree.map(lambda leaf: leaf[is_step], (polled.obs, polled.rewards, polled.ends))
            row = self._tries[envs], self._env_lengths[envs], *self._players.last_rows(envs), *result
            self._steps.append(row)
        return super().observe(polled, episodes)

    def end_episode(self, episode: LiveEpisode) -> int:
        self._episodes[self._tries[episode.env_index]] = episode.number
        return super().end_episode(episode)

    def discard(self, env: int) -> Steps:
        self._tries[env] = len(self._episodes)
        self._episodes = np.append(self._episodes, NO_EPISODE)
        return super().discard(env)

    def rows(self, is_recurrent: bool) -> SampleBatch | None:
        """Return the rows `[steps, ...]` of the finished episodes, in the order of their numbers; None without any."""
        if not self._steps:
            return None
        tries, steps, *rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *self._steps)
        numbers = self._episodes[tries]
        order = np.lexsort((steps, numbers))
        order = order[numbers[order] != NO_EPISODE]
        steps, (obs, actions, next_obs, rewards, ends) = jax.tree.map(lambda leaf: leaf[order], (steps, rows))
        starts = {"episode_start": (steps == 0).astype(np.float32)} if is_recurrent else {}
        termination = (ends == End.TERMINATED).astype(np.float32)
        return SampleBatch(
            obs=obs,
            actions=actions,
            rewards=rewards.astype(np.float32),
            next_obs=next_obs,
            dones=(ends != End.RUNNING).astype(np.float32),
            extras=PyTreeDict(policy_extras=PyTreeDict(starts), env_extras=PyTreeDict(termination=termination)),
        )
