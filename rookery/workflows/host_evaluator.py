"""Evaluation on host environments: exactly so many greedy episodes, dealt out to the environments beforehand."""

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.errors import InvalidInputError, RookeryError, check_count
from rookery.evaluators.playback import RenderError
from rookery.metrics import EvaluateMetric
from rookery.runners.acting.policy_map import Actor
from rookery.runners.envs.base_env import Actions, BaseEnv, End, EnvOutputs
from rookery.runners.faults import EnvFaultError, Failed, Fault, FaultKind, RestartPolicy
from rookery.runners.seeds import episode_seed
from rookery.types import Key, as_one_key
from rookery.workflows.config import TrainConfig
from rookery.workflows.host import make_envs, on_one_device

MAX_EPISODE_STEPS = 108_000
"""An episode that goes on for longer is taken for one that never ends: the time limit of Atari games, in frames."""


class EpisodePlayer(ABC):
    """Plays episodes with the greedy policy in environments of its own, which live as long as an evaluation.

    Episode k is played by env k modulo their number, and has its own seed: which episodes count is fixed before they
    are played. An env that fails is built anew and plays the episode again, from another start; an episode that fails
    too often is left out of the result, which is NaN if there is no other.
    """

    num_policies: int = 1
    num_left_out: int = 0
    """How many episodes of the last evaluation were left out."""

    def __init__(self, train: TrainConfig, num_envs: int) -> None:
        self.max_episode_steps = train.env.episode_length or MAX_EPISODE_STEPS
        self._train = train
        self._num_envs = num_envs

    @abstractmethod
    def begin(self, agent_state: Any, num_envs: int) -> None:
        """Make ready to play in so many envs."""

    @abstractmethod
    def act(self, polled: EnvOutputs) -> Actions:
        """Act in the envs that were heard of and whose episode goes on."""

    def policies_of(self, polled: EnvOutputs) -> np.ndarray:
        """Say by number whose policy each row is about."""
        return np.zeros(len(polled.envs), np.int64)

    def result_of(self, returns: np.ndarray, lengths: np.ndarray) -> EvaluateMetric:
        """Make the result of the returns `[episode, policy]` and the lengths `[episode]`."""
        return EvaluateMetric(
            episode_returns=jnp.asarray(returns.sum(axis=1), jnp.float32), episode_lengths=jnp.asarray(lengths)
        )

    def evaluate(self, agent_state: Any, key: Key, num_episodes: int) -> EvaluateMetric:
        """Play exactly `num_episodes` episodes; return the return and the length of each."""
        check_count("num_episodes", num_episodes)
        num_envs = min(num_episodes, self._num_envs)
        with contextlib.closing(make_envs(self._train, num_envs, is_evaluation=True)) as base_env:
            return self._play(base_env, agent_state, _seed_of(key), num_episodes)

    def frames(self, agent_state: Any, key: Key, max_steps: int) -> Iterator[np.ndarray]:
        """Play one episode, or its first `max_steps` steps, and draw it; raise `RenderError` if it cannot be drawn."""
        seed = episode_seed(_seed_of(key), 0, 0)
        try:
            base_env = make_envs(self._train, 1, render=True, is_evaluation=True)
        except RookeryError as error:
            raise RenderError(f"{self._train.env.name} cannot be drawn: {_why(error)}") from error
        with contextlib.closing(base_env):
            self.begin(agent_state, 1)
            base_env.try_reset(0, seed)
            for num_steps in range(max_steps + 1):
                polled = base_env.poll()
                if polled.failed:
                    raise self._error(polled.failed[0], 0, 0, seed, num_steps)
                yield _draw(base_env)
                if polled.over:
                    return
                base_env.send_actions(self.act(polled))

    def _play(self, base_env: BaseEnv, agent_state: Any, seed: int, num_episodes: int) -> EvaluateMetric:
        num_envs = base_env.num_envs
        returns, lengths = np.zeros((num_episodes, self.num_policies)), np.zeros(num_episodes, np.int32)
        episodes = np.arange(num_envs)  # which one each env plays
        num_faults = np.zeros(num_envs, np.int64)  # of each in the present episode
        self.begin(agent_state, num_envs)
        for env in range(num_envs):
            base_env.try_reset(env, episode_seed(seed, 0, env))
        num_left = num_episodes
        restart = RestartPolicy(max_restarts=self._train.env.runner.max_restarts)
        while num_left:
            polled = base_env.poll()
            for env, failed in polled.failed.items():
                episode, num_faults[env] = int(episodes[env]), num_faults[env] + 1
                self._check_fault(failed, env, episode, lengths[episode])
                returns[episode], lengths[episode] = 0.0, 0
                if num_faults[env] > restart.max_restarts:
                    returns[episode] = np.nan
                    num_left -= 1
                    episodes[env] += num_envs
                    num_faults[env] = 0
                if episodes[env] < num_episodes:
                    time.sleep(restart.delay(max(0, int(num_faults[env]) - 1)))
                    number = int(num_faults[env]) * num_episodes + int(episodes[env])
                    base_env.try_restart(env, episode_seed(seed, 0, number))
            is_step = ~polled.is_reset
            played_by = episodes[polled.envs[is_step]], self.policies_of(polled)[is_step]
            np.add.at(returns, played_by, polled.rewards[is_step])
            played = episodes[np.asarray(polled.stepped, np.int64)]
            lengths[played] += 1
            check_episodes_end(base_env.name, lengths[played], self.max_episode_steps)
            for env in polled.over:
                num_left -= 1
                episodes[env] += num_envs
                num_faults[env] = 0
                if episodes[env] < num_episodes:
                    base_env.try_reset(env, episode_seed(seed, 0, int(episodes[env])))
            base_env.send_actions(self.act(polled))
        finished = np.flatnonzero(~np.isnan(returns).any(axis=1))
        self.num_left_out = num_episodes - len(finished)
        counted = finished if len(finished) else slice(1)
        return self.result_of(returns[counted], lengths[counted])

    def _check_fault(self, failed: Failed, env: int, episode: int, num_steps: int) -> None:
        """Raise if the settings do not allow such a fault."""
        if failed.kind is FaultKind.INVALID and self._train.env.runner.on_invalid == "raise":
            raise self._error(failed, env, episode, None, num_steps)

    def _error(self, failed: Failed, env: int, episode: int, seed: int | None, num_steps: int) -> EnvFaultError:
        fault = Fault(
            failed=failed,
            env_name=self._train.env.name,
            env_index=env,
            seed=seed,
            episode=episode,
            step=int(num_steps),
            action=None,
            consequence="the evaluation is given up",
        )
        return EnvFaultError(str(fault), fault)


class HostEvaluator(EpisodePlayer):
    """Plays in environments with one agent."""

    def __init__(self, train: TrainConfig, agent: Agent, num_envs: int) -> None:
        super().__init__(train, num_envs)
        self._actor = Actor(agent, jax.random.key(0), explore=False)

    def begin(self, agent_state: AgentState, num_envs: int) -> None:
        self._actor.set_state(on_one_device(agent_state))
        self._actor.reserve(num_envs)

    def act(self, polled: EnvOutputs) -> Actions:
        rows = np.flatnonzero(polled.ends == End.RUNNING)
        rows = rows[np.argsort(polled.envs[rows])]
        envs = polled.envs[rows]
        if not len(envs):
            return Actions(envs, None)
        obs = jax.tree.map(lambda leaf: leaf[rows], polled.obs)
        return Actions(envs, self._actor.act(obs, len(envs), envs, polled.is_reset[rows]).actions)


def check_episodes_end(env_name: str, lengths: np.ndarray, max_episode_steps: int) -> None:
    """Raise if an episode is longer than any that ends."""
    if (lengths > max_episode_steps).any():
        raise InvalidInputError(
            f"an episode of {env_name} goes on after {max_episode_steps:,} steps: set env.episode_length."
        )


def _seed_of(key: Key) -> int:
    return int(jax.random.bits(as_one_key(key)))


def _why(error: Exception) -> str:
    """Leave out the traceback that an error of an environment has in its message; say what to try if it is MuJoCo's."""
    why = str(error).partition("\n")[0]
    if "mujoco" not in str(error):
        return why
    return f"{why} MUJOCO_GL={os.environ.get('MUJOCO_GL', '')} says how MuJoCo draws: try egl or osmesa."


def _draw(base_env: BaseEnv) -> np.ndarray:
    try:
        frame = base_env.try_render(0)
    except Exception as error:
        raise RenderError(f"{base_env.name} could not be drawn: {_why(error)}") from error
    if frame is None:
        raise RenderError(f"{base_env.name} cannot be drawn: it has no picture of itself.")
    return frame
