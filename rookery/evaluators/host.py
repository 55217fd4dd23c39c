"""Evaluation on host environments: greedy episodes, assigned to the environments in advance."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
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
from rookery.runners.acting.players import GreedyPlayers, GreedyTeams
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.engine import EpisodeEngine
from rookery.runners.envs.base_env import AgentID, BaseEnv
from rookery.runners.faults import EnvFaultError, EnvsLostError
from rookery.runners.health import RestartPolicy
from rookery.runners.host_envs import make_envs
from rookery.runners.recording.returns import ReturnsRecorder
from rookery.runners.schedule import DealtEpisodes
from rookery.types import Array, Key, PyTreeDict, as_one_key

MAX_EPISODE_STEPS = 108_000
"""The default time limit of an episode: that of Atari games, in frames."""

logger = logging.getLogger(__name__)


class HostEvaluateMetric(EvaluateMetric):
    """The finished episodes, and the number of episodes that failed."""

    num_left_out: int

    def summary(self, prefix: str) -> dict[str, Array]:
        return super().summary(prefix) | {f"{prefix}episodes_left_out": jnp.float32(self.num_left_out)}


class MultiPolicyEvaluateMetric(HostEvaluateMetric):
    """`episode_returns` sums over all agents, `policy_returns` over the agents of each policy."""

    policy_returns: PyTreeDict

    def summary(self, prefix: str) -> dict[str, Array]:
        returns = {f"{name}/{prefix}mean_reward": jnp.mean(values) for name, values in self.policy_returns.items()}
        return super().summary(prefix) | returns


class HostEvaluator:
    """Plays episodes with the greedy policy, in environments that it makes for each evaluation.

    Env k of n plays episodes k, k + n, k + 2n, ..., each with its own seed, so the speed of an env does not decide
    which episodes count. A failed episode is played again with another seed. After `max_restarts` faults the episode is
    left out of the result. The result is NaN if no episode finished. The other envs play the episodes of a lost env.

    If `policy_of` gives the policy of each agent, agent states are given by policy. The first evaluation uses the
    `opened` environments if it needs the same number.
    """

    def __init__(
        self,
        env: EnvConfig,
        agent: Agent,
        num_envs: int,
        policy_of: Mapping[AgentID, PolicyID] | None = None,
        *,
        opened: BaseEnv | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._env = env
        self._num_envs = num_envs
        self.max_episode_steps = env.episode_length or MAX_EPISODE_STEPS
        self._players: Any = GreedyPlayers(agent) if policy_of is None else GreedyTeams(agent, policy_of)
        self._policies = None if policy_of is None else list(dict.fromkeys(policy_of.values()))
        self._opened = opened
        self._clock, self._sleep = clock, sleep

    def close(self) -> None:
        """Close unused `opened` environments. May be called twice."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None

    def evaluate(
        self, agent_state: AgentState | Mapping[PolicyID, AgentState], key: Key, num_episodes: int
    ) -> HostEvaluateMetric:
        """Play `num_episodes` episodes; return the return and the length of each."""
        check_count("num_episodes", num_episodes)
        num_envs = min(num_episodes, self._num_envs)
        with contextlib.closing(self._take_envs(num_envs)) as base_env:
            restart = RestartPolicy(max_restarts=self._env.runner.max_restarts)
            engine, recorder = self._begin(base_env, agent_state, key, num_episodes, restart)
            try:
                engine.run()
            except EnvsLostError as error:
                logger.warning("The evaluation is incomplete: %s", _first_line(error))
        finished = np.flatnonzero(recorder.is_finished)
        counted = finished if len(finished) else slice(1)
        num_left_out = num_episodes - len(finished)
        return self.result_of(recorder.returns[counted], recorder.lengths[counted], num_left_out)

    def result_of(self, returns: np.ndarray, lengths: np.ndarray, num_left_out: int = 0) -> HostEvaluateMetric:
        """Make the result from returns `[episode, policy]` and lengths `[episode]`."""

        def as_array(numbers: np.ndarray) -> Array:
            return jnp.asarray(numbers, jnp.float32)

        fields: dict[str, Any] = {
            "episode_returns": as_array(returns.sum(axis=1)),
            "episode_lengths": jnp.asarray(lengths),
            "num_left_out": num_left_out,
        }
        if self._policies is None:
            return HostEvaluateMetric(**fields)
        by_policy = {policy: as_array(returns[:, index]) for index, policy in enumerate(self._policies)}
        return MultiPolicyEvaluateMetric(**fields, policy_returns=PyTreeDict(by_policy))

    def frames(
        self, agent_state: AgentState | Mapping[PolicyID, AgentState], key: Key, max_steps: int
    ) -> Iterator[np.ndarray]:
        """Play and render one episode of at most `max_steps` steps; raise `RenderError` if that fails."""
        try:
            base_env = make_envs(self._env, 1, render=True, is_evaluation=True)
        except RookeryError as error:
            raise RenderError(f"{self._env.name} cannot be rendered: {_reason(error)}") from error
        with contextlib.closing(base_env):
            engine, _ = self._begin(base_env, agent_state, key, 1, RestartPolicy(max_restarts=0))
            for _ in range(max_steps + 1):
                engine.observe()
                for fault in engine.faults:
                    raise EnvFaultError(str(fault), fault)
                yield _render(base_env)
                if engine.schedule.is_finished(engine.states):
                    return
                engine.act()

    def _take_envs(self, num_envs: int) -> BaseEnv:
        """Return the opened environments, or new ones."""
        opened = self._opened
        if opened is not None and opened.num_envs == num_envs:
            self._opened = None
            return opened
        self.close()
        return make_envs(self._env, num_envs, is_evaluation=True)

    def _begin(
        self,
        base_env: BaseEnv,
        agent_state: AgentState | Mapping[PolicyID, AgentState],
        key: Key,
        num_episodes: int,
        restart: RestartPolicy,
    ) -> tuple[EpisodeEngine, ReturnsRecorder]:
        """Make the engine and the recorder for episodes in these environments."""
        num_envs = base_env.num_envs
        self._players.begin(on_one_device(agent_state), num_envs)
        recorder = ReturnsRecorder(self._players, num_envs, num_episodes, self.max_episode_steps, base_env.name)
        schedule = DealtEpisodes(num_episodes, num_envs, int(jax.random.bits(as_one_key(key))))
        on_invalid, clock, sleep = self._env.runner.on_invalid, self._clock, self._sleep
        return EpisodeEngine(base_env, recorder, schedule, restart, on_invalid, clock=clock, sleep=sleep), recorder


def _render(base_env: BaseEnv) -> np.ndarray:
    try:
        frame = base_env.try_render(0)
    except Exception as error:
        raise RenderError(f"{base_env.name} cannot be rendered: {_reason(error)}") from error
    if frame is None:
        raise RenderError(f"{base_env.name} cannot be rendered: render() returned None.")
    return frame


def _reason(error: Exception) -> str:
    """Return the first line of an error; add advice to an error of MuJoCo."""
    reason = _first_line(error)
    if "mujoco" not in str(error):
        return reason
    return f"{reason} MUJOCO_GL={os.environ.get('MUJOCO_GL', '')} selects how MuJoCo renders: try egl or osmesa."


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
