"""Evaluation on host environments: greedy episodes, assigned to the environments in advance."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.envs.config import EnvConfig
from rookery.errors import RookeryError, check_count
from rookery.evaluators.playback import RenderError
from rookery.metrics import EvaluateMetric
from rookery.runners.acting.actor import on_one_device
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.players import GreedyPlayers, GreedyTeams
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.engine import EpisodeEngine
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.faults import EnvFaultError, EnvsLostError
from rookery.runners.health import RestartPolicy
from rookery.runners.host_envs import make_envs, make_rendered_env, make_with_retries, num_evaluation_envs
from rookery.runners.recording.episode import EpisodeMeans
from rookery.runners.recording.returns import ReturnsRecorder
from rookery.runners.schedule import DealtEpisodes
from rookery.types import Array, Key, PyTree, PyTreeDict, as_one_key, pytree_field

MAX_EPISODE_STEPS = 108_000
"""The time limit of environments that have none: that of Atari games, in frames."""

logger = logging.getLogger(__name__)


class HostEvaluateMetric(EvaluateMetric):
    """The finished episodes, and the numbers of episodes that failed and of finished ones that were cut."""

    num_left_out: int
    num_cut: int = 0
    reported: PyTreeDict = pytree_field(default_factory=PyTreeDict)
    """The means of the numbers that environments report of their episodes, such as `success_rate`."""

    def summary(self, prefix: str) -> dict[str, Array]:
        """Return the metrics of these episodes for a record; none without a finished episode."""
        if not len(self.episode_returns):
            return {}
        counts = {"episodes_left_out": self.num_left_out, "episodes_cut": self.num_cut}
        numbers = self.reported | counts
        return {f"{prefix}{name}": jnp.float32(value) for name, value in numbers.items()} | super().summary(prefix)


class MultiPolicyEvaluateMetric(HostEvaluateMetric):
    """`episode_returns` sums over all agents, `policy_returns` over the agents of each policy.

    A policy has returns of the episodes in which it acted.
    """

    policy_returns: PyTreeDict

    def summary(self, prefix: str) -> dict[str, Array]:
        if not len(self.episode_returns):
            return {}
        returns = {
            f"{name}/{prefix}mean_reward": jnp.mean(values)
            for name, values in self.policy_returns.items()
            if len(values)
        }
        return super().summary(prefix) | returns


class HostEvaluator:
    """Plays episodes with the greedy policy, in environments of its own.

    Environments in this process are made for each evaluation. Those in other processes are made for the first
    evaluation and kept until `close`, in at most one process for each core.

    Env k of n plays episodes k, k + n, k + 2n, ..., each with its own seed, so the speed of an env does not decide
    which episodes count. A failed episode is played again with another seed. After `max_restarts` faults the episode is
    left out of the result. The other envs play the episodes of a lost env. An episode that does not end is cut after
    `MAX_EPISODE_STEPS` steps, and counts. Environments never end a run by failing in an evaluation, unless
    `on_invalid="raise"` asks for that.

    If an `assignment` gives each agent a policy, agent states are given by policy, and `agent` may be as well. Drawn
    policies follow from the number of the episode: all evaluations draw the same. The first evaluation uses the
    `opened` environments if it needs the same number.
    """

    def __init__(
        self,
        env: EnvConfig,
        agent: Agent | Mapping[PolicyID, Agent],
        num_envs: int,
        assignment: Assignment | None = None,
        *,
        opened: BaseEnv | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._env = env
        self._num_envs = num_envs
        self.max_episode_steps = env.episode_length or MAX_EPISODE_STEPS
        self._players: Any
        self._policies: list[PolicyID] | None = None
        if assignment is None:
            assert isinstance(agent, Agent), "without policies there is one agent"
            self._players = GreedyPlayers(agent)
        else:
            self._policies = assignment.names
            agents = agent if isinstance(agent, Mapping) else dict.fromkeys(assignment.name_of, agent)
            self._players = GreedyTeams(agents, assignment)
        self._restart = RestartPolicy(max_restarts=env.runner.max_restarts)
        self._base_env = opened
        self._engine: EpisodeEngine | None = None
        self._was_told: set[str] = set()
        self._clock, self._sleep = clock, sleep

    def close(self) -> None:
        """Close the environments; the next evaluation makes new ones. May be called twice."""
        base_env, self._base_env, self._engine = self._base_env, None, None
        if base_env is not None:
            base_env.close()

    def evaluate(
        self, agent_state: AgentState | Mapping[PolicyID, AgentState], key: Key, num_episodes: int
    ) -> HostEvaluateMetric:
        """Play `num_episodes` episodes; return the return and the length of each that was finished."""
        check_count("num_episodes", num_episodes)
        num_envs = num_evaluation_envs(self._env, self._num_envs, num_episodes)
        recorder, schedule = self._prepare(agent_state, key, num_episodes, num_envs)
        means = EpisodeMeans()
        problem = self._play(recorder, schedule, num_envs, means)
        finished = np.flatnonzero(recorder.is_finished)
        lengths = recorder.lengths[finished]
        num_left_out = num_episodes - len(finished)
        num_cut = 0 if self._env.episode_length else int(np.sum(lengths == MAX_EPISODE_STEPS))
        if num_left_out:
            told = f"{num_left_out} of {num_episodes} episodes of {self._env.name} failed and are left out"
            self._tell("left out", f"The evaluation is incomplete: {told}; {problem}", is_repeated=not len(finished))
        if num_cut:
            told = f"{num_cut} of {num_episodes} episodes of {self._env.name} did not end and were cut"
            self._tell("cut", f"In the evaluation {told} after {MAX_EPISODE_STEPS:,} steps: set env.episode_length.")
        return self.result_of(recorder.returns[finished], lengths, num_left_out, num_cut, means.take())

    def result_of(
        self,
        returns: np.ndarray,
        lengths: np.ndarray,
        num_left_out: int = 0,
        num_cut: int = 0,
        reported: Mapping[str, float] | None = None,
    ) -> HostEvaluateMetric:
        """Make the result from returns `[episode, policy]`, lengths `[episode]` and means that envs report.

        A return is NaN where a policy did not act.
        """

        def as_array(numbers: np.ndarray) -> Array:
            return jnp.asarray(numbers, jnp.float32)

        fields: dict[str, PyTree] = {
            "episode_returns": as_array(np.nansum(returns, axis=1)),
            "episode_lengths": jnp.asarray(lengths),
            "num_left_out": num_left_out,
            "num_cut": num_cut,
            "reported": PyTreeDict(reported or {}),
        }
        if self._policies is None:
            return HostEvaluateMetric(**fields)
        by_policy = {
            policy: as_array(returns[~np.isnan(returns[:, index]), index])
            for index, policy in enumerate(self._policies)
        }
        return MultiPolicyEvaluateMetric(**fields, policy_returns=PyTreeDict(by_policy))

    def frames(
        self, agent_state: AgentState | Mapping[PolicyID, AgentState], key: Key, max_steps: int
    ) -> Iterator[np.ndarray]:
        """Play one episode of at most `max_steps` steps in another process, which renders it.

        Raises `RenderError` if that fails, also if it ends the other process.
        """
        try:
            with contextlib.closing(make_rendered_env(self._env)) as base_env:
                recorder, schedule = self._prepare(agent_state, key, 1, 1)
                engine = self._make_engine(base_env, recorder, schedule, RestartPolicy(max_restarts=0))
                for _ in range(max_steps + 1):
                    engine.observe()
                    while engine.states.out:  # the env takes long
                        engine.observe()
                    for fault in engine.faults:
                        raise EnvFaultError(str(fault), fault)
                    yield _image_of(base_env)
                    if engine.schedule.is_finished(engine.states):
                        return
                    engine.act()
        except RookeryError as error:
            raise RenderError(f"{self._env.name} cannot be rendered: {_reason(error)}") from error

    def _prepare(
        self, agent_state: AgentState | Mapping[PolicyID, AgentState], key: Key, num_episodes: int, num_envs: int
    ) -> tuple[ReturnsRecorder, DealtEpisodes]:
        """Make the recorder and the schedule of some episodes in `num_envs` environments."""
        self._players.begin(on_one_device(agent_state), num_envs)
        recorder = ReturnsRecorder(self._players, num_envs, num_episodes)
        return recorder, DealtEpisodes(num_episodes, num_envs, int(jax.random.bits(as_one_key(key))))

    def _play(self, recorder: ReturnsRecorder, schedule: DealtEpisodes, num_envs: int, means: EpisodeMeans) -> str:
        """Play the episodes of a schedule and add their metrics; return the reason if some are not finished."""
        try:
            engine = self._open_engine(recorder, schedule, num_envs)
        except Exception as error:  # of a constructor, which may raise anything
            return f"the environments cannot be made: {_first_line(error)}"
        is_kept = False
        try:
            engine.run()
            is_kept = self._env.runner.processes and not engine.states.lost
            return f"the first fault: {engine.faults[0]}" if engine.faults else ""
        except EnvsLostError as error:
            return _first_line(error)
        finally:
            for episode, _ in engine.ended:
                means.add(episode.metrics)
            if not is_kept:
                self.close()

    def _open_engine(self, recorder: ReturnsRecorder, schedule: DealtEpisodes, num_envs: int) -> EpisodeEngine:
        """Return the engine, ready to play; make it and its environments unless there are as many as needed."""
        if self._base_env is not None and self._base_env.num_envs != num_envs:
            self.close()
        if self._base_env is None:
            make_fn = partial(make_envs, self._env, num_envs, is_evaluation=True, longest_episode=MAX_EPISODE_STEPS)
            self._base_env = make_with_retries(make_fn, self._restart, self._sleep)
        if self._engine is None:
            self._engine = self._make_engine(self._base_env, recorder, schedule, self._restart)
        self._engine.begin(recorder, schedule)
        return self._engine

    def _make_engine(
        self, base_env: BaseEnv, recorder: ReturnsRecorder, schedule: DealtEpisodes, restart: RestartPolicy
    ) -> EpisodeEngine:
        on_invalid, clock, sleep = self._env.runner.on_invalid, self._clock, self._sleep
        return EpisodeEngine(base_env, recorder, schedule, restart, on_invalid, clock=clock, sleep=sleep)

    def _tell(self, what: str, message: str, is_repeated: bool = False) -> None:
        """Log a warning, in general only the first time."""
        if is_repeated or what not in self._was_told:
            logger.warning("%s", message)
        self._was_told.add(what)


def _image_of(base_env: BaseEnv) -> np.ndarray:
    image = base_env.try_render(0)
    if image is None:
        raise RenderError("render() returned None.")
    return image


def _reason(error: Exception) -> str:
    """Return the first line of an error; add advice to an error of MuJoCo."""
    reason = _first_line(error)
    if "mujoco" not in str(error):
        return reason
    return f"{reason} MUJOCO_GL={os.environ.get('MUJOCO_GL', '')} selects how MuJoCo renders: try egl or osmesa."


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
