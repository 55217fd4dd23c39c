"""Evaluation of a population on host environments."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState, RandomAgent
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError
from rookery.evaluators.host import MAX_EPISODE_STEPS
from rookery.evaluators.lanes import PopulationEpisodes
from rookery.evaluators.measures import Measure
from rookery.evaluators.population import population_size_of
from rookery.evaluators.population_policy import PopulationPlayers, PopulationPolicy
from rookery.learning.running_statistics import RunningStatistics
from rookery.runners.acting.players import Players
from rookery.runners.acting.policy_map import DEFAULT_POLICY
from rookery.runners.callbacks import FaultNotices
from rookery.runners.engine import EpisodeEngine
from rookery.runners.envs.base_env import SINGLE_AGENT, BaseEnv, End, EnvOutputs
from rookery.runners.faults import EnvFaultError, fault_report
from rookery.runners.group import Description, check_one_agent
from rookery.runners.health import RestartPolicy
from rookery.runners.host_envs import make_envs, make_with_retries, try_first_reset
from rookery.runners.ledger import Steps
from rookery.runners.recording.episode import EpisodeMeans, LiveEpisode
from rookery.runners.recording.returns import ReturnsRecorder
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import RunnerConfig
from rookery.runners.schedule import EpisodeQueue
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Key, Obs, Params, PyTree, as_mappable_key, as_one_key

logger = logging.getLogger(__name__)


class HostPopulation:
    """Plays the episodes of a population in host environments, `num_slots` at a time.

    A slot that finishes an episode starts the next (individual, episode) at once. The population stays on the device:
    one compiled call acts for all slots, each with the parameters of its individual. Seeds and random actions depend
    on the key, the individual and the episode, so the result does not depend on the number of slots. The exception is
    vector environments that do not take a seed for each episode.

    After a fault within an episode, the episode is played again with another seed. After `max_restarts` such faults its
    return is NaN, because the policy may cause them. An episode that does not end is cut after `MAX_EPISODE_STEPS`
    steps, and counts. An env that fails before the first action is restarted, and lost
    after `max_restarts` failed restarts in a row.

    Without a `description`, environments are made at once; otherwise with the first generation.
    """

    def __init__(
        self,
        env: EnvConfig,
        agent: Agent,
        num_slots: int,
        explore: bool,
        track_obs: bool,
        measures: tuple[Measure, ...] = (),
        *,
        description: Description | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if env.runner.overlap:
            raise InvalidInputError(
                "env.runner.overlap=true is for methods that learn from batches: a generation cannot start before "
                "the previous one has finished."
            )
        self.num_slots = num_slots
        self._env = env
        self._measures = measures
        self._restart = RestartPolicy(max_restarts=env.runner.max_restarts)
        self._counts: Counter[str] = Counter()
        """The counts of previous engines, and of episodes that were given up or cut."""
        self._means = EpisodeMeans()
        """Of the episodes since the last record."""
        self._fault_notices = FaultNotices()
        self._clock, self._sleep = clock, sleep
        self._engine: EpisodeEngine | None = None
        self._base_env: BaseEnv | None = None
        if description is None:
            self._base_env = self._make_envs()
            try:
                try_first_reset(self._base_env, env, sleep)
            except BaseException:
                self.close()
                raise
            description = Description.of(self._base_env)
        if description.is_multi_agent:
            self.close()
            check_one_agent(env, description)
        self.obs_space, self.action_space = description.spaces[SINGLE_AGENT]
        self._policy = PopulationPolicy(agent, self.obs_space, num_slots, explore, track_obs)

    def play(self, agent_state: AgentState, population: Params, key: Key, num_episodes: int) -> PopulationEpisodes:
        """Play `num_episodes` episodes of every individual; individuals share the rest of `agent_state`.

        An unfinished episode has a return of NaN and a length of 0.
        """
        seed_key, action_key = jax.random.split(as_mappable_key(as_one_key(key)))
        population_size = population_size_of(population)
        num_jobs = population_size * num_episodes
        if num_jobs < self.num_slots:
            raise InvalidInputError(f"num_slots={self.num_slots} is more than the {num_jobs} episodes to play.")
        players = self._policy.begin(agent_state, population, action_key, num_episodes)
        recorder = self._make_recorder(players, num_jobs)
        schedule = EpisodeQueue(num_jobs, self.num_slots, int(jax.random.bits(seed_key)))
        engine = self._begin(recorder, schedule)
        try:
            engine.run()
            if not recorder.is_finished.any():
                first = engine.faults[0]
                message = f"none of {num_jobs} episodes could be finished; the first fault: {first}"
                raise EnvFaultError(message, first)
        except BaseException:
            self.close()  # the envs are in unfinished episodes
            raise
        finally:
            self._counts["unfinished_episodes"] += schedule.num_given_up
            self._count_cut_episodes(recorder)
            for episode, _ in engine.ended:
                self._means.add(episode.metrics)
        statistics = players.obs_statistics(recorder.is_finished)
        return recorder.result((population_size, num_episodes), statistics)

    def no_episodes(self, population_size: int, num_episodes: int) -> PopulationEpisodes:
        """Return a result of zeros with the shapes of `play`."""
        shape = population_size, num_episodes
        arrays: dict[str, PyTree] = {
            "episode_returns": np.zeros(shape, np.float32),
            "episode_lengths": np.zeros(shape, np.int32),
            "measures": np.zeros((*shape, len(self._measures)), np.float32),
        }
        return PopulationEpisodes(**arrays, obs_statistics=self._policy.no_statistics())

    def play_at_random(self, num_envs: int, num_steps: int, seed: int) -> tuple[Obs, Array]:
        """Act at random in new envs; return the observations and their weights, 0 for dead rows, `[T, B, ...]`."""
        config = RunnerConfig(
            rollout_fragment_length=num_steps, on_invalid=self._env.runner.on_invalid, restart=self._restart
        )
        player = RandomAgent()
        runner = EnvRunner(make_envs(self._env, num_envs), player, config=config, seed=seed)
        try:
            runner.set_agent_states(player.init(self.obs_space, self.action_space, jax.random.key(seed)))
            batch: SampleBatch = runner.sample().batch.batches[DEFAULT_POLICY]
        finally:
            runner.close()
        return batch.obs, jnp.asarray(1.0 - batch.extras.env_extras.autoreset)

    @property
    def env_name(self) -> str:
        return self._env.name

    def report(self) -> dict[str, float]:
        """Return the counts of faults and discarded steps, and episode metrics since the last call."""
        counts = self._counts + self._engine_counts()
        report = fault_report(counts, 0 if self._engine is None else len(self._engine.states.lost))
        report |= {f"rollout/{name}": mean for name, mean in self._means.take().items()}
        return report | {
            "faults/unfinished_episodes": counts["unfinished_episodes"],
            "rollout/episodes_cut": counts["episodes_cut"],
        }

    def get_state(self) -> dict[str, Any]:
        """Return the counts. Nothing else is saved: a generation starts new episodes, seeded by the training state."""
        return {"counts": dict(self._counts + self._engine_counts())}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue counting from `get_state`."""
        self._counts = Counter(state["counts"])
        self._counts.subtract(self._engine_counts())

    def describe_restart(self) -> str:
        return f"{self._env.name} restarts, as in every generation"

    def close(self) -> None:
        """Close the environments; the next generation makes new ones. May be called twice."""
        if self._base_env is not None:
            self._base_env.close()
        self._base_env = None

    def _begin(self, recorder: "MeasuresRecorder", schedule: EpisodeQueue) -> EpisodeEngine:
        """Return the engine, ready to play; make it and its environments if necessary."""
        if self._engine is None or self._base_env is None:
            self._counts.update(self._engine_counts())
            self._base_env = self._base_env or make_with_retries(self._make_envs, self._restart, self._sleep)
            self._engine = EpisodeEngine(
                self._base_env,
                recorder,
                schedule,
                self._restart,
                self._env.runner.on_invalid,
                callbacks=self._fault_notices,
                clock=self._clock,
                sleep=self._sleep,
            )
        self._engine.begin(recorder, schedule)
        return self._engine

    def _make_envs(self) -> BaseEnv:
        return make_envs(self._env, self.num_slots, longest_episode=MAX_EPISODE_STEPS)

    def _make_recorder(self, players: PopulationPlayers, num_jobs: int) -> "MeasuresRecorder":
        return MeasuresRecorder(players, self.num_slots, num_jobs, self._measures)

    def _count_cut_episodes(self, recorder: "MeasuresRecorder") -> None:
        num_cut = 0 if self._env.episode_length else int(np.sum(recorder.lengths == MAX_EPISODE_STEPS))
        if num_cut and not self._counts["episodes_cut"]:
            logger.warning(
                "%d episodes of %s did not end and were cut after %s steps: set env.episode_length.",
                num_cut,
                self._env.name,
                f"{MAX_EPISODE_STEPS:,}",
            )
        self._counts["episodes_cut"] += num_cut

    def _engine_counts(self) -> Counter[str]:
        if self._engine is None:
            return Counter()
        return self._engine.fault_counts + Counter(steps_discarded=self._engine.discarded.env_steps)


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

    def result(self, shape: tuple[int, int], obs_statistics: RunningStatistics | None) -> PopulationEpisodes:
        """Return the results as NumPy arrays `[individual, episode]`."""
        lengths = np.maximum(self.lengths, 1)  # unfinished episodes have no mean
        columns = [measure.result(self._measured[:, i], lengths) for i, measure in enumerate(self._measures)]
        measured = np.stack(columns, axis=1) if columns else self._measured
        arrays: dict[str, PyTree] = {
            "episode_returns": self.returns[:, 0].reshape(shape).astype(np.float32),
            "episode_lengths": self.lengths.reshape(shape).copy(),
            "measures": measured.reshape(*shape, len(self._measures)).astype(np.float32),
        }
        return PopulationEpisodes(**arrays, obs_statistics=obs_statistics)
