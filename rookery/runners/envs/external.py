"""External environments: simulators that begin and end episodes themselves and ask for actions."""

import enum
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import jax
import numpy as np

from rookery.errors import InvalidInputError, RookeryError, check_count
from rookery.runners.envs.base_env import SINGLE_AGENT, Actions, AgentID, BaseEnv, End, EnvOutputs
from rookery.runners.envs.validation import ObsStacker, check_info, check_reward, row_of, zeros_of
from rookery.runners.envs.vector_env import as_space, rows_of, split_actions
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.spaces import Dict, Space, Tuple, check_discrete_range
from rookery.types import PyTreeDict

CLOSE_TIMEOUT = 1.0
"""Seconds that `close` waits for simulators; their threads do not keep the program alive."""


class ExternalEnvClosedError(RookeryError):
    """The environment was closed while the simulator used it."""


class EpisodeLostError(RookeryError):
    """The runner has discarded an episode that the simulator still plays."""


class _Stage(enum.Enum):
    """Whose turn it is in a slot."""

    QUIET = enum.auto()
    """The runner has not asked for an episode."""
    FREE = enum.auto()
    """The simulator may begin one."""
    PLAYING = enum.auto()
    """The simulator computes."""
    SHOWN = enum.auto()
    """There is a row to poll."""
    ASKED = enum.auto()
    """The runner has seen an observation and chooses an action."""


_AWAITED = (_Stage.FREE, _Stage.PLAYING, _Stage.ASKED)
"""The stages in which the simulator acts next."""


@dataclass(slots=True)
class _Shown:
    """An output of the simulator: a row of `EnvOutputs`."""

    obs: Any
    reward: float
    end: End
    is_reset: bool
    info: dict[str, Any]
    logged_action: Any = None


@dataclass(eq=False, slots=True)
class _Episode:
    """An episode that the simulator plays."""

    id: str
    has_begun: bool = False
    reward: float = 0.0
    """The reward since the last observation."""
    info: dict[str, Any] = field(default_factory=dict)
    action: Any = None


@dataclass(eq=False, slots=True)
class _Slot:
    """A place for one episode at a time."""

    stage: _Stage = _Stage.QUIET
    episode: _Episode | None = None
    shown: _Shown | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a row to poll of a running episode."""
        return self.stage is _Stage.SHOWN and self.shown is not None and self.shown.end is End.RUNNING

    def clear(self, stage: _Stage) -> None:
        self.stage, self.episode, self.shown = stage, None, None


class ExternalEnv(ABC):
    """A simulator that is in control: implement `run`, which plays episodes for ever, and pass it to `to_base_env`.

    `run` is called in its own thread. In it, or in threads that it starts, the simulator calls `start_episode`, then
    `get_action` or `log_action` at each step and `log_returns` for the rewards, and `end_episode`. If `run` raises or
    returns, the open episodes fail, and it is called again. Up to `max_episodes` are played at once.
    """

    def __init__(
        self,
        observation_space: Space | gymnasium.Space,
        action_space: Space | gymnasium.Space,
        max_episodes: int = 1,
    ) -> None:
        check_count("max_episodes", max_episodes)
        self.observation_space = as_space(observation_space)
        self.action_space = as_space(action_space)
        self._slots = [_Slot() for _ in range(max_episodes)]
        self._stacker = ObsStacker(self.observation_space)
        self._changed = threading.Condition()
        self._is_closed = False
        self._stopped: Failed | None = None
        self._thread: threading.Thread | None = None

    @abstractmethod
    def run(self) -> None:
        """Play episodes."""

    def start_episode(self, episode_id: str | None = None) -> str:
        """Begin an episode as soon as the runner requests one; return its id."""
        with self._changed:
            episode = _Episode(uuid.uuid4().hex if episode_id is None else episode_id)
            self._check_startable(episode.id)
            self._wait_for(lambda: self._free_slot() is not None)
            self._check_startable(episode.id)
            slot = self._free_slot()
            assert slot is not None
            slot.stage, slot.episode = _Stage.PLAYING, episode
            return episode.id

    def get_action(self, episode_id: str, obs: Any) -> Any:
        """Return the action of the policy on an observation."""
        with self._changed:
            slot, episode = self._open(episode_id)
            self._show(slot, episode, obs)
            self._wait_for(lambda: slot.stage is _Stage.PLAYING, slot, episode)
            return episode.action

    def log_action(self, episode_id: str, obs: Any, action: Any) -> None:
        """Log the action that the simulator chose itself on an observation."""
        action = jax.tree.map(np.asarray, action)
        self.action_space.check(action, "the logged action")
        check_discrete_range(self.action_space, action, "the logged action")
        action = _as_policies_act(self.action_space, action)
        with self._changed:
            self._show(*self._open(episode_id), obs, logged_action=action)

    def log_returns(self, episode_id: str, reward: float, info: Mapping[str, Any] | None = None) -> None:
        """Log the reward of the last action; rewards until the next observation are summed up."""
        number = check_reward(reward)
        check_info(info or {})
        with self._changed:
            _, episode = self._open(episode_id)
            if not episode.has_begun:
                raise InvalidInputError(
                    f"episode {episode_id!r} gets a reward before its first observation: it can be for no action."
                )
            episode.reward += number
            episode.info.update(info or {})

    def end_episode(self, episode_id: str, obs: Any, truncated: bool = False) -> None:
        """End an episode with its last observation; `truncated` if it could have gone on."""
        with self._changed:
            slot, episode = self._open(episode_id)
            if episode.has_begun:
                self._show(slot, episode, obs, end=End.TRUNCATED if truncated else End.TERMINATED)
                slot.episode = None
            else:
                slot.clear(_Stage.FREE)

    def _show(
        self, slot: _Slot, episode: _Episode, obs: Any, end: End = End.RUNNING, logged_action: Any = None
    ) -> None:
        """Show a row to the runner, after it has answered the one before."""
        stacked, errors = self._stacker.stack([obs])
        for error in errors.values():
            raise error
        self._wait_for(lambda: slot.stage is _Stage.PLAYING, slot, episode)
        is_reset = not episode.has_begun
        slot.shown = _Shown(row_of(stacked, 0), episode.reward, end, is_reset, episode.info, logged_action)
        slot.stage = _Stage.SHOWN
        episode.has_begun, episode.reward, episode.info = True, 0.0, {}
        self._changed.notify_all()

    def _wait_for(self, is_so: Callable[[], bool], slot: _Slot | None = None, episode: _Episode | None = None) -> None:
        """Wait; raise if the env is closed meanwhile or the episode is given up."""

        def is_lost() -> bool:
            return slot is not None and slot.episode is not episode

        self._changed.wait_for(lambda: self._is_closed or is_lost() or is_so())
        if self._is_closed:
            raise ExternalEnvClosedError("the environment was closed: end the simulator.")
        if is_lost():
            assert episode is not None
            raise EpisodeLostError(f"the runner has discarded episode {episode.id!r}: start another.")

    def _open(self, episode_id: str) -> tuple[_Slot, _Episode]:
        for slot in self._slots:
            if slot.episode is not None and slot.episode.id == episode_id:
                return slot, slot.episode
        raise InvalidInputError(f"no open episode {episode_id!r}: it was never started, has ended or was discarded.")

    def _free_slot(self) -> _Slot | None:
        return next((slot for slot in self._slots if slot.stage is _Stage.FREE), None)

    def _check_startable(self, episode_id: str) -> None:
        open_ids = [slot.episode.id for slot in self._slots if slot.episode is not None]
        if episode_id in open_ids:
            raise InvalidInputError(f"episode {episode_id!r} is open already: end it first, or choose another id.")
        if len(open_ids) == len(self._slots):
            raise InvalidInputError(
                f"max_episodes={len(self._slots)} episodes are open already: end one first, or allow more."
            )


class ExternalBaseEnv(BaseEnv):
    """External simulators as a `BaseEnv`: each episode that they may play at once is an env.

    A requested episode begins when a simulator begins it. Seeds have no effect. Actions on observations for which the
    simulator chose itself are ignored.
    """

    is_external = True

    def __init__(self, envs: Sequence[ExternalEnv], name: str | None = None) -> None:
        first = envs[0]
        for env in envs:
            if (env.observation_space, env.action_space) != (first.observation_space, first.action_space):
                raise InvalidInputError("external environments that are sampled together must have the same spaces.")
        self.name = name or type(first).__name__
        self._envs = envs
        self._changed = threading.Condition()
        for env in envs:
            env._changed = self._changed
        self._slots = [slot for env in envs for slot in env._slots]
        self._owners = [env for env in envs for _ in env._slots]
        self.num_envs = len(self._slots)
        self._was_polled = False

    @property
    def spaces(self) -> Mapping[AgentID, tuple[Space, Space]]:
        return {SINGLE_AGENT: (self._envs[0].observation_space, self._envs[0].action_space)}

    def poll(self, timeout: float | None = None) -> EnvOutputs:
        with self._changed:
            if not self._was_polled:
                self._was_polled = True
                for index in range(self.num_envs):
                    self.try_restart(index, None)
            self._changed.wait_for(lambda: self._envs[0]._is_closed or self._shown() or self._failed(), timeout)
            if self._envs[0]._is_closed:
                raise ExternalEnvClosedError(f"{self.name} was closed.")
            shown, failed = self._shown(), self._failed()
            for index, row in shown.items():
                self._slots[index].stage = _Stage.ASKED if row.end is End.RUNNING else _Stage.QUIET
            for index in failed:
                self._slots[index].clear(_Stage.QUIET)
            return self._polled(shown, failed)

    def send_actions(self, actions: Actions) -> None:
        envs = actions.envs.tolist()
        with self._changed:
            for index in envs:
                if self._slots[index].stage is not _Stage.ASKED:
                    raise InvalidInputError(f"env {index} of {self.name} has not asked for an action: poll first.")
            for index, action in zip(
                envs, split_actions(self.spaces[SINGLE_AGENT][1], actions.actions, len(envs)), strict=True
            ):
                slot = self._slots[index]
                if slot.episode is not None:
                    slot.episode.action = action
                slot.stage = _Stage.PLAYING
            self._changed.notify_all()

    def try_reset(self, env: int, seed: int | None) -> None:
        if self._was_polled:
            with self._changed:
                self._slots[env].clear(_Stage.FREE)
                self._changed.notify_all()

    def try_restart(self, env: int, seed: int | None) -> None:
        with self._changed:
            self.try_reset(env, seed)
            owner = self._owners[env]
            if owner._thread is None or owner._stopped is not None:
                owner._stopped = None
                owner._thread = threading.Thread(target=_run, args=(owner,), name=self.name, daemon=True)
                owner._thread.start()

    def close(self) -> None:
        with self._changed:
            for env in self._envs:
                env._is_closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for env in self._envs:
            if env._thread is not None:
                env._thread.join(max(0.0, deadline - time.monotonic()))

    def _shown(self) -> dict[int, _Shown]:
        """Return the rows to poll, without those of episodes whose simulator has stopped."""
        return {
            index: slot.shown
            for index, (slot, owner) in enumerate(zip(self._slots, self._owners, strict=True))
            if slot.stage is _Stage.SHOWN and slot.shown is not None and not (owner._stopped and slot.is_running)
        }

    def _failed(self) -> dict[int, Failed]:
        """Return the failures of slots that wait for a simulator that has stopped."""
        failed = {}
        for index, (slot, owner) in enumerate(zip(self._slots, self._owners, strict=True)):
            if owner._stopped is not None and (slot.stage in _AWAITED or slot.is_running):
                phase = Phase.RESET if slot.stage is _Stage.FREE else Phase.STEP
                failed[index] = replace(owner._stopped, phase=phase)
        return failed

    def _polled(self, shown: dict[int, _Shown], failed: dict[int, Failed]) -> EnvOutputs:
        rows = list(shown.values())
        obs_space = self._envs[0].observation_space
        return EnvOutputs(
            envs=np.fromiter(shown, np.int64, len(rows)),
            agents=None,
            obs=rows_of([row.obs for row in rows]) if rows else zeros_of(obs_space, 0),
            rewards=np.array([row.reward for row in rows], np.float64),
            ends=np.array([row.end for row in rows], np.uint8),
            is_reset=np.array([row.is_reset for row in rows], np.bool_),
            resets=[index for index, row in shown.items() if row.is_reset],
            over=[index for index, row in shown.items() if row.end is not End.RUNNING],
            stepped=[index for index, row in shown.items() if not row.is_reset],
            infos={index: {SINGLE_AGENT: row.info} for index, row in shown.items() if row.info},
            off_policy_actions={
                index: {SINGLE_AGENT: row.logged_action}
                for index, row in shown.items()
                if row.logged_action is not None
            },
            failed=failed,
        )


def _as_policies_act(space: Space, action: Any) -> Any:
    """Convert an action to the dtypes of policy actions."""
    match space:
        case Dict():
            return PyTreeDict({name: _as_policies_act(part, action[name]) for name, part in space.spaces.items()})
        case Tuple():
            return tuple(_as_policies_act(part, item) for part, item in zip(space.spaces, action, strict=True))
    return action.astype(space.sample_dtype)  # type: ignore[attr-defined]


def _run(env: ExternalEnv) -> None:
    """Run a simulator, and keep the reason why it ended."""
    try:
        env.run()
        stopped = Failed(FaultKind.EXITED, Phase.STEP, "run() returned")
    except BaseException as error:
        stopped = Failed.by_exception(error, Phase.STEP)
    with env._changed:
        env._stopped = stopped
        env._changed.notify_all()
