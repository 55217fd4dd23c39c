"""Evaluation on host environments: greedy episodes, assigned to the environments in advance."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent
from rookery.envs.config import EnvConfig
from rookery.errors import RookeryError, check_count
from rookery.evaluators.evaluation_player import (
    MAX_EPISODE_STEPS,
    AgentStates,
    EvaluationPlayer,
    EvaluationSpec,
    first_line,
)
from rookery.evaluators.playback import RenderError
from rookery.metrics import EvaluateMetric
from rookery.runners.acting.actor import on_one_device
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.groups.episodes import Evaluated
from rookery.runners.recording.episode import EpisodeMeans
from rookery.types import Array, Key, PyTree, PyTreeDict, as_one_key, pytree_field

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


class EpisodeSource(Protocol):
    """Plays the episodes of evaluations elsewhere."""

    def evaluate(self, agent_state: AgentStates, seed: int, num_episodes: int) -> Evaluated: ...


class HostEvaluator:
    """Plays episodes with the greedy policy, in environments of its own.

    Environments in this process are made for each evaluation. Those in other processes are made for the first
    evaluation and kept until `close`, in at most one process for each core. With a `source`, runners elsewhere play.

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
        source: EpisodeSource | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._env = env
        self.max_episode_steps = env.episode_length or MAX_EPISODE_STEPS
        self._policies = None if assignment is None else assignment.names
        self._player = EvaluationPlayer(EvaluationSpec(env, agent, num_envs, assignment, clock, sleep), opened)
        self._source = source
        self._was_told: set[str] = set()

    def close(self) -> None:
        """Close the environments; the next evaluation makes new ones. May be called twice."""
        self._player.close()

    def evaluate(self, agent_state: AgentStates, key: Key, num_episodes: int) -> HostEvaluateMetric:
        """Play `num_episodes` episodes; return the return and the length of each that was finished."""
        check_count("num_episodes", num_episodes)
        agent_state, seed = on_one_device(agent_state), _seed_of(key)
        if self._source is None:
            evaluated = self._player.play(agent_state, seed, num_episodes)
        else:
            evaluated = self._source.evaluate(agent_state, seed, num_episodes)
        means = EpisodeMeans()
        for metrics in evaluated.metrics:
            means.add(metrics)
        finished = np.flatnonzero(evaluated.lengths)
        lengths = evaluated.lengths[finished]
        num_left_out = num_episodes - len(finished)
        num_cut = 0 if self._env.episode_length else int(np.sum(lengths == MAX_EPISODE_STEPS))
        if num_left_out:
            told = f"{num_left_out} of {num_episodes} episodes of {self._env.name} failed and are left out"
            message = f"The evaluation is incomplete: {told}; {evaluated.problem}"
            self._tell("left out", message, is_repeated=not len(finished))
        if num_cut:
            told = f"{num_cut} of {num_episodes} episodes of {self._env.name} did not end and were cut"
            self._tell("cut", f"In the evaluation {told} after {MAX_EPISODE_STEPS:,} steps: set env.episode_length.")
        return self.result_of(evaluated.returns[finished], lengths, num_left_out, num_cut, means.take())

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

    def frames(self, agent_state: AgentStates, key: Key, max_steps: int) -> Iterator[np.ndarray]:
        """Play one episode of at most `max_steps` steps in another process, which renders it.

        Raises `RenderError` if that fails, also if it ends the other process.
        """
        try:
            for image in self._player.frames(on_one_device(agent_state), _seed_of(key), max_steps):
                if image is None:
                    raise RenderError("render() returned None.")
                yield image
        except RookeryError as error:
            raise RenderError(f"{self._env.name} cannot be rendered: {_reason(error)}") from error

    def _tell(self, what: str, message: str, is_repeated: bool = False) -> None:
        """Log a warning, in general only the first time."""
        if is_repeated or what not in self._was_told:
            logger.warning("%s", message)
        self._was_told.add(what)


def _seed_of(key: Key) -> int:
    return int(jax.random.bits(as_one_key(key)))


def _reason(error: Exception) -> str:
    """Return the first line of an error; add advice to an error of MuJoCo."""
    reason = first_line(error)
    if "mujoco" not in str(error):
        return reason
    return f"{reason} MUJOCO_GL={os.environ.get('MUJOCO_GL', '')} selects how MuJoCo renders: try egl or osmesa."
