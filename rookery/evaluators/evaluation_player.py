"""Plays the episodes of an evaluation in the environments of one process."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rookery.agent import Agent, AgentState
from rookery.envs.config import EnvConfig
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.players import GreedyPlayers, GreedyTeams
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.engine import EpisodeEngine
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.faults import EnvFaultError, EnvsLostError
from rookery.runners.groups.episodes import Evaluated
from rookery.runners.groups.jobs import Chunk
from rookery.runners.health import RestartPolicy
from rookery.runners.host_envs import make_envs, make_rendered_env, make_with_retries, num_evaluation_envs
from rookery.runners.recording.returns import ReturnsRecorder
from rookery.runners.schedule import DealtEpisodes

MAX_EPISODE_STEPS = 108_000
"""The time limit of environments that have none: that of Atari games, in frames."""

AgentStates = AgentState | Mapping[PolicyID, AgentState]
"""The state of one agent, or those of several policies."""


@dataclass(frozen=True, eq=False)
class EvaluationSpec:
    """How episodes are evaluated, in at most `num_envs` environments. It can be pickled.

    If an `assignment` gives each agent a policy, `agent` may be given by policy.
    """

    env: EnvConfig
    agent: Agent | Mapping[PolicyID, Agent]
    num_envs: int
    assignment: Assignment | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def num_policies(self) -> int:
        return 1 if self.assignment is None else len(self.assignment.names)

    def make(self) -> "EvaluationPlayer":
        return EvaluationPlayer(self)


class EvaluationPlayer:
    """Plays episodes of an evaluation with the greedy policy, in environments of its own.

    Environments in this process are made for each call. Those in other processes are made for the first call and kept
    until `close`. The first call uses the `opened` environments if it needs the same number.
    """

    def __init__(self, spec: EvaluationSpec, opened: BaseEnv | None = None) -> None:
        self._spec = spec
        self._players: Any
        if spec.assignment is None:
            assert isinstance(spec.agent, Agent), "without policies there is one agent"
            self._players = GreedyPlayers(spec.agent)
        else:
            names, agent = spec.assignment.name_of, spec.agent
            self._players = GreedyTeams(
                agent if isinstance(agent, Mapping) else dict.fromkeys(names, agent), spec.assignment
            )
        self._restart = RestartPolicy(max_restarts=spec.env.runner.max_restarts)
        self._base_env = opened
        self._engine: EpisodeEngine | None = None

    def close(self) -> None:
        """Close the environments; the next call makes new ones. May be called twice."""
        base_env, self._base_env, self._engine = self._base_env, None, None
        if base_env is not None:
            base_env.close()

    def play(self, agent_state: AgentStates, seed: int, num_episodes: int, played: range | None = None) -> Evaluated:
        """Play some of `num_episodes` episodes; None: all. Which of them are played here changes none of them."""
        played = range(num_episodes) if played is None else played
        env = self._spec.env
        num_envs = num_evaluation_envs(env, self._spec.num_envs, len(played))
        recorder, schedule = self._begin(agent_state, seed, num_episodes, played, num_envs)
        try:
            engine = self._open_engine(recorder, schedule, num_envs)
        except Exception as error:  # of a constructor, which may raise anything
            return _evaluated(recorder, played, problem=f"the environments cannot be made: {first_line(error)}")
        is_kept, problem = False, ""
        try:
            engine.run()
            is_kept = env.runner.processes and not engine.states.lost
            problem = f"the first fault: {engine.faults[0]}" if engine.faults else ""
        except EnvsLostError as error:
            problem = first_line(error)
        finally:
            if not is_kept:
                self.close()
        ended = sorted((episode for episode, _ in engine.ended), key=lambda episode: episode.number)
        return _evaluated(recorder, played, [episode.metrics for episode in ended], problem)

    def frames(self, agent_state: AgentStates, seed: int, max_steps: int) -> Iterator[np.ndarray | None]:
        """Play one episode of at most `max_steps` steps in another process; yield what it renders."""
        with contextlib.closing(make_rendered_env(self._spec.env)) as base_env:
            recorder, schedule = self._begin(agent_state, seed, 1, range(1), 1)
            engine = self._make_engine(base_env, recorder, schedule, RestartPolicy(max_restarts=0))
            for _ in range(max_steps + 1):
                engine.observe()
                while engine.states.out:  # the env takes long
                    engine.observe()
                for fault in engine.faults:
                    raise EnvFaultError(str(fault), fault)
                yield base_env.try_render(0)
                if engine.schedule.is_finished(engine.states):
                    return
                engine.act()

    def _begin(
        self, agent_state: AgentStates, seed: int, num_episodes: int, played: range, num_envs: int
    ) -> tuple[ReturnsRecorder, DealtEpisodes]:
        """Make the recorder and the schedule of some episodes in `num_envs` environments."""
        self._players.begin(agent_state, num_envs)
        recorder = ReturnsRecorder(self._players, num_envs, num_episodes)
        return recorder, DealtEpisodes(num_episodes, num_envs, seed, played)

    def _open_engine(self, recorder: ReturnsRecorder, schedule: DealtEpisodes, num_envs: int) -> EpisodeEngine:
        """Return the engine, ready to play; make it and its environments unless there are as many as needed."""
        if self._base_env is not None and self._base_env.num_envs != num_envs:
            self.close()
        if self._base_env is None:
            make_fn = partial(
                make_envs, self._spec.env, num_envs, is_evaluation=True, longest_episode=MAX_EPISODE_STEPS
            )
            self._base_env = make_with_retries(make_fn, self._restart, self._spec.sleep)
        if self._engine is None:
            self._engine = self._make_engine(self._base_env, recorder, schedule, self._restart)
        self._engine.begin(recorder, schedule)
        return self._engine

    def _make_engine(
        self, base_env: BaseEnv, recorder: ReturnsRecorder, schedule: DealtEpisodes, restart: RestartPolicy
    ) -> EpisodeEngine:
        spec = self._spec
        on_invalid = spec.env.runner.on_invalid
        return EpisodeEngine(base_env, recorder, schedule, restart, on_invalid, clock=spec.clock, sleep=spec.sleep)


def joined(played: Mapping[Chunk, Evaluated], num_episodes: int, num_policies: int, problem: str = "") -> Evaluated:
    """Join the results of chunks; episodes that nobody played stay unfinished because of `problem`."""
    in_order = [played[chunk] for chunk in sorted(played, key=lambda chunk: chunk.first)]
    is_whole = sum(chunk.count for chunk in played) == num_episodes
    problem = next((part.problem for part in in_order if part.problem), "" if is_whole else problem)
    metrics = [metrics for part in in_order for metrics in part.metrics]
    whole = Evaluated(np.full((num_episodes, num_policies), np.nan), np.zeros(num_episodes, np.int32), metrics, problem)
    for chunk, part in played.items():
        whole.returns[chunk.jobs], whole.lengths[chunk.jobs] = part.returns, part.lengths
    return whole


def _evaluated(
    recorder: ReturnsRecorder, played: range, metrics: Sequence[Mapping[str, float]] = (), problem: str = ""
) -> Evaluated:
    mine = slice(played.start, played.stop)
    return Evaluated(recorder.returns[mine], recorder.lengths[mine], metrics, problem)


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
