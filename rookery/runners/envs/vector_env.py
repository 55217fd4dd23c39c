"""Environments with one agent each, many at once, as arrays."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rookery.errors import EnvironmentCheckError, check_count
from rookery.runners.envs.validation import (
    Errors,
    ObsStacker,
    StepChecker,
    as_failed,
    check_info,
    check_reply,
    row_of,
    stack_flags,
    stack_rewards,
    wrong_infos,
    zeros_of,
)
from rookery.runners.faults import EnvFaultError, Failed, Fault, Phase
from rookery.runners.transports.local import LocalTransport
from rookery.runners.transports.making import make_transport
from rookery.runners.transports.transport import EnvTransport
from rookery.spaces import ArraySpace, Dict, Discrete, Space, Tuple, from_gymnasium

if TYPE_CHECKING:
    import gymnasium

Reset = tuple[Any, Mapping]
"""The result of a reset: the first observation and an info."""


@dataclass(slots=True)
class VectorStep:
    """The results of a step of some envs, one row for each; the rows of envs that failed mean nothing."""

    obs: Any
    rewards: np.ndarray
    """float64 `[N]`"""
    terminated: np.ndarray
    """bool `[N]`"""
    truncated: np.ndarray
    """bool `[N]`"""
    infos: Mapping[int, Mapping] = field(default_factory=dict)
    """By env; empty infos are omitted."""
    failed: Mapping[int, Failed] = field(default_factory=dict)
    """By env."""
    is_quiet: bool = False
    """True if no env ended, failed or returned an info; False if that is not known."""
    envs: np.ndarray | None = None
    """The env of each row, ascending; None for those of the last `begin_step`."""


@dataclass(slots=True)
class VectorReset:
    """The results of resets, one row for each of `envs`, which did not fail."""

    envs: list[int]
    obs: Any
    infos: Mapping[int, Mapping] = field(default_factory=dict)
    """By env; empty infos are omitted."""
    failed: Mapping[int, Failed] = field(default_factory=dict)
    """By env."""


class VectorEnv(ABC):
    """Environments with one agent each that are stepped together.

    `VectorEnv.wrap` vectorizes Gymnasium environments. Subclass it for environments that step as arrays: implement
    `vector_reset`, `reset_at` and `vector_step`. An env whose episode is over is not stepped before it is reset.

    The runner begins resets and steps, and fetches the results later, so that envs in other processes work meanwhile.
    By default they are computed when they are fetched, an exception becomes a failure of the envs concerned, and
    results are checked.
    """

    is_asynchronous: bool = False
    """Whether envs work on their own, so that some may be stepped while others are not ready."""
    patience: float | None = None
    """The seconds after which a silent env is late; None: never."""

    def __init__(
        self,
        observation_space: Space | gymnasium.Space,
        action_space: Space | gymnasium.Space,
        num_envs: int,
        *,
        sample_bounds: bool = True,
    ) -> None:
        check_count("num_envs", num_envs)
        self.observation_space = as_space(observation_space)
        self.action_space = as_space(action_space)
        self.num_envs = num_envs
        self._first_stacker = ObsStacker(self.observation_space, sample_bounds)
        self._step_checker = StepChecker(self.observation_space, sample_bounds)
        self._begun_resets: dict[int, int | None] = {}
        self._begun_step: tuple[Any, np.ndarray | None] | None = None

    @abstractmethod
    def vector_reset(self, seeds: Sequence[int | None] | None = None) -> tuple[Any, Mapping[int, Mapping]]:
        """Reset all envs; return their observations `[B, ...]` and their infos by env."""

    @abstractmethod
    def reset_at(self, index: int, seed: int | None = None) -> Reset:
        """Reset one env."""

    @abstractmethod
    def vector_step(self, actions: Any, indexes: np.ndarray | None = None) -> VectorStep:
        """Step the envs `indexes` (None: all) with one row of `actions` for each."""

    def restart_at(self, index: int) -> None:  # noqa: B027
        """Restart an env, which is then reset; by default nothing but the reset happens."""

    def get_sub_environments(self) -> list[Any]:
        """Return the environment objects, if there are any in this process."""
        return []

    def try_render_at(self, index: int) -> np.ndarray | None:
        """Render one env as an RGB array; None if it cannot be rendered."""
        return None

    def close(self) -> None:  # noqa: B027
        """Close the environments; calling it twice does no harm."""

    @property
    def num_clipped(self) -> int:
        """Sampled observations that were outside of their bounds by rounding, and were clipped."""
        return self._first_stacker.num_clipped + self._step_checker.num_clipped

    def begin_reset(self, index: int, seed: int | None = None) -> None:
        """Begin to reset one env."""
        self._begun_resets[index] = seed

    def finished_resets(self, wait: Collection[int] = (), timeout: float | None = None) -> VectorReset:
        """Return the finished resets, after waiting for those of the envs `wait`, at most `timeout` seconds."""
        begun, self._begun_resets = self._begun_resets, {}
        if len(begun) == self.num_envs:
            return self._reset_all([begun[index] for index in range(self.num_envs)])
        return self._checked_resets({index: self._reset_one(index, seed) for index, seed in begun.items()})

    def begin_step(self, actions: Any, indexes: np.ndarray | None = None) -> None:
        """Send actions to the envs `indexes` (None: all)."""
        self._begun_step = actions, indexes

    def wait(self, timeout: float | None = None) -> None:  # noqa: B027
        """Wait for a result, at most `timeout` seconds; only asynchronous envs need it."""

    def finished_step(self) -> VectorStep | None:
        """Return the step that was begun or, of asynchronous envs, the steps that are finished; None without any."""
        assert self._begun_step is not None, "no step was begun"
        (actions, indexes), self._begun_step = self._begun_step, None
        rows = range(self.num_envs) if indexes is None else indexes.tolist()
        try:
            return self._checked_step(self.vector_step(actions, indexes), rows)
        except EnvironmentCheckError as error:
            return self._failed_step(dict.fromkeys(rows, as_failed(error, Phase.STEP)))
        except Exception as error:
            return self._failed_step(dict.fromkeys(rows, Failed.by_exception(error, Phase.STEP)))

    def abandon(self) -> None:
        """Forget the resets and steps that were begun: all envs are reset next."""
        self._begun_resets = {}
        self._begun_step = None

    @staticmethod
    def wrap(
        make_env: Callable[[int], gymnasium.Env] | None = None,
        existing_envs: Sequence[gymnasium.Env] = (),
        num_envs: int = 1,
        *,
        processes: bool = False,
        envs_per_process: int = 1,
        step_timeout: float | None = None,
        sample_bounds: bool = True,
    ) -> VectorEnv:
        """Vectorize Gymnasium environments: the existing ones, then those of `make_env(index)` up to `num_envs`.

        An env that raises or returns invalid data fails alone, and `make_env` replaces it. With `processes` they run in
        other processes, `envs_per_process` in each, where they may also crash, or hang for `step_timeout` seconds.
        Without `sample_bounds` observations may leave the bounds of their space.
        """
        num_envs = max(num_envs, len(existing_envs))
        transport = make_transport(make_env, existing_envs, num_envs, processes, envs_per_process, step_timeout)
        return TransportVectorEnv(transport, sample_bounds)

    def _reset_all(self, seeds: list[int | None]) -> VectorReset:
        everyone = range(self.num_envs)
        try:
            obs, infos = self.vector_reset(seeds)
            obs = self._step_checker.check_obs(obs, self.num_envs)
            errors = self._step_checker.check_infos(infos, everyone)
            errors |= self._step_checker.check_values(obs, self.num_envs)
        except EnvironmentCheckError as error:
            failure = as_failed(error, Phase.RESET)
        except Exception as error:
            failure = Failed.by_exception(error, Phase.RESET)
        else:
            kept = {env: info for env, info in infos.items() if env not in errors and info}
            return without_errors(VectorReset(list(everyone), obs, kept), errors)
        return VectorReset([], zeros_of(self.observation_space, 0), failed=dict.fromkeys(everyone, failure))

    def _reset_one(self, index: int, seed: int | None) -> Reset | Failed:
        try:
            reply = self.reset_at(index, seed)
            # The next reset may write into the same arrays.
            return (copy.deepcopy(reply[0]), *reply[1:]) if isinstance(reply, tuple) and reply else reply
        except Exception as error:
            return Failed.by_exception(error, Phase.RESET)

    def _checked_resets(self, replies: dict[int, Any]) -> VectorReset:
        """Return the results of resets with copies of their observations, and the errors of the others."""
        failed = {index: failure for index, reply in replies.items() if (failure := _failed_reset(reply)) is not None}
        if failed:
            replies = {index: reply for index, reply in replies.items() if index not in failed}
        obs, errors = self._first_stacker.stack([reply[0] for reply in replies.values()])
        infos = {index: reply[1] for index, reply in replies.items() if reply[1]}
        return without_errors(VectorReset(list(replies), obs, infos, failed), errors)

    def _checked_step(self, step: VectorStep, rows: Sequence[int]) -> VectorStep:
        checker, num_rows = self._step_checker, len(rows)
        obs = checker.check_obs(step.obs, num_rows)
        wrong_obs = checker.check_values(obs, num_rows)
        rewards, wrong_rewards = checker.check_rewards(step.rewards, num_rows)
        terminated = checker.check_flags("terminated", step.terminated, num_rows)
        truncated = checker.check_flags("truncated", step.truncated, num_rows)
        if self._begun_resets:  # which may write into the same arrays
            obs, rewards, terminated, truncated = jax.tree.map(np.copy, (obs, rewards, terminated, truncated))
        failed = {rows[row]: as_failed(error, Phase.STEP) for row, error in (wrong_obs | wrong_rewards).items()}
        failed |= {
            index: as_failed(error, Phase.STEP) for index, error in checker.check_infos(step.infos, rows).items()
        }
        return VectorStep(
            obs=obs,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            infos=step.infos,
            failed={**failed, **step.failed},
        )

    def _failed_step(self, failed: dict[int, Failed]) -> VectorStep:
        num_rows = len(failed)
        no_flags = np.zeros(num_rows, np.bool_)
        obs = zeros_of(self.observation_space, num_rows)
        return VectorStep(obs, np.zeros(num_rows), no_flags, no_flags, failed=failed)


class TransportVectorEnv(VectorEnv):
    """The Gymnasium environments of an `EnvTransport`; make it with `VectorEnv.wrap`.

    `vector_step` waits for all envs that it steps. An action of a `Discrete` space arrives as an int, others as
    read-only arrays, dicts or tuples of the declared dtypes. An episode of `time_limit` steps is truncated, which is
    cheaper for all envs at once than in a wrapper around each.
    """

    def __init__(self, transport: EnvTransport, sample_bounds: bool = True, time_limit: int | None = None) -> None:
        description = transport.describe()
        super().__init__(
            description.observation_space, description.action_space, transport.num_envs, sample_bounds=sample_bounds
        )
        self.description = description
        self.transport = transport
        self.is_asynchronous, self.patience = transport.is_asynchronous, transport.patience
        self._stacker = ObsStacker(self.observation_space, sample_bounds)
        self._blank: tuple = (zeros_of(self.observation_space), 0.0, False, False, {})
        self._everyone = list(range(self.num_envs))
        self._timer = None if time_limit is None else EpisodeTimer(time_limit, self.num_envs)
        self._stepping: Sequence[int] = ()
        """The envs in this process that were stepped last, or those in others that have not answered, ascending."""
        self._stepped: list[Any] = []
        """The replies of envs in this process."""
        self._resetting: set[int] = set()
        self._replies: dict[int, Any] = {}

    @property
    def num_clipped(self) -> int:
        return super().num_clipped + self._stacker.num_clipped

    def vector_reset(self, seeds: Sequence[int | None] | None = None) -> tuple[Any, Mapping[int, Mapping]]:
        seeds = [None] * self.num_envs if seeds is None else seeds
        for index, seed in zip(self._everyone, seeds, strict=True):
            self.begin_reset(index, seed)
        reset = self._good_resets(self._everyone, seeds)
        return reset.obs, reset.infos

    def reset_at(self, index: int, seed: int | None = None) -> Reset:
        self.begin_reset(index, seed)
        reset = self._good_resets([index], [seed])
        return row_of(reset.obs, reset.envs.index(index)), reset.infos.get(index, {})

    def vector_step(self, actions: Any, indexes: np.ndarray | None = None) -> VectorStep:
        self.begin_step(actions, indexes)
        if self.is_asynchronous:
            self._replies.update(self.transport.receive(self._stepping))
        step = self.finished_step()
        assert step is not None
        return step

    def restart_at(self, index: int) -> None:
        self.transport.rebuild(index)
        self._stepping = [env for env in self._stepping if env != index]

    def get_sub_environments(self) -> list[Any]:
        return self.transport.envs if isinstance(self.transport, LocalTransport) else []

    def try_render_at(self, index: int) -> np.ndarray | None:
        return self.transport.render(index)

    def close(self) -> None:
        self.transport.close()

    def begin_reset(self, index: int, seed: int | None = None) -> None:
        if self._timer is not None:
            self._timer.reset(index)
        self._replies.pop(index, None)
        if isinstance(self.transport, LocalTransport):
            self._replies[index] = self.transport.reset_now(index, seed)
        else:
            self.transport.send_reset(index, seed)
            self._resetting.add(index)

    def finished_resets(self, wait: Collection[int] = (), timeout: float | None = None) -> VectorReset:
        if isinstance(self.transport, LocalTransport):
            replies, self._replies = self._replies, {}
            return self._checked_resets(replies)
        if missing := [index for index in wait if index not in self._replies]:
            self._replies.update(self.transport.receive(missing, timeout))
        finished = sorted(self._resetting & self._replies.keys())
        self._resetting.difference_update(finished)
        return self._checked_resets({index: self._replies.pop(index) for index in finished})

    def begin_step(self, actions: Any, indexes: np.ndarray | None = None) -> None:
        stepping = self._everyone if indexes is None else indexes.tolist()
        if self._replies:
            for index in stepping:
                self._replies.pop(index, None)  # without a request, for instance if a shared process dies
        for_envs = split_actions(self.action_space, actions, len(stepping))
        if isinstance(self.transport, LocalTransport):
            self._stepped = self.transport.step_now(stepping, for_envs)
            self._stepping = stepping
        else:
            self.transport.send_steps(stepping, for_envs)
            self._stepping = sorted([*self._stepping, *stepping])

    def wait(self, timeout: float | None = None) -> None:
        self.transport.wait(timeout)

    def abandon(self) -> None:
        super().abandon()
        self._stepping, self._stepped = (), []
        self._resetting, self._replies = set(), {}

    def finished_step(self) -> VectorStep | None:
        stepping, replies = self._stepping, self._replies
        if not self.is_asynchronous:
            return self._stacked_step(stepping, self._stepped)
        replies.update(self.transport.receive())
        ready = [index for index in stepping if index in replies]
        if not ready:
            return None
        self._stepping = [index for index in stepping if index not in replies]
        step = self._stacked_step(ready, [replies.pop(index) for index in ready])
        step.envs = np.array(ready)
        return step

    def _stacked_step(self, indexes: Sequence[int], replies: list[Any]) -> VectorStep:
        failed: dict[int, Failed] = {}
        if [reply for reply in replies if type(reply) is not tuple or len(reply) != 5]:
            for row, (index, reply) in enumerate(zip(indexes, replies, strict=True)):
                if (failure := _failed_step(reply)) is not None:
                    failed[index], replies[row] = failure, self._blank
        obs_rows, reward_list, terminated_list, truncated_list, infos = zip(*replies, strict=True)
        obs, wrong_obs = self._stacker.stack(obs_rows)
        rewards, wrong_rewards = stack_rewards(reward_list)
        (terminated, truncated), wrong_flags = stack_flags(terminated_list, truncated_list)
        if not_dicts := wrong_infos(infos):
            infos = tuple({} if row in not_dicts else info for row, info in enumerate(infos))
        if wrong_obs or wrong_rewards or wrong_flags or not_dicts:
            for row, error in (wrong_obs | wrong_rewards | wrong_flags | not_dicts).items():
                failed[indexes[row]] = as_failed(error, Phase.STEP)
        late = None if self._timer is None else self._timer.late_after_step(indexes)
        if late is not None:
            truncated |= late
        kept = {index: info for index, info in zip(indexes, infos, strict=True) if info} if any(infos) else {}
        is_quiet = not (kept or failed or late is not None or any(terminated_list) or any(truncated_list))
        return VectorStep(obs, rewards, terminated, truncated, kept, failed, is_quiet)

    def _good_resets(self, indexes: Sequence[int], seeds: Sequence[int | None]) -> VectorReset:
        """Wait for resets; raise if one failed."""
        reset = self.finished_resets(indexes)
        for index, seed in zip(indexes, seeds, strict=True):
            if index in reset.failed:
                failed = reset.failed[index]
                fault = Fault(failed, self.description.name, index, seed, episode=0, step=0, action=None)
                raise EnvFaultError(str(fault), fault)
        return reset


class EpisodeTimer:
    """Finds the episodes at their time limit; checks them only when one may have reached it."""

    def __init__(self, time_limit: int, num_envs: int) -> None:
        self._time_limit = time_limit
        self._now = 0
        self._started = np.zeros(num_envs, np.int64)
        """When each episode began, in calls; later for envs that were not stepped in some calls."""
        self._due = time_limit
        """The earliest time at which an episode reaches its limit."""

    def reset(self, index: int) -> None:
        self._started[index] = self._now

    def late_after_step(self, indexes: Sequence[int]) -> np.ndarray | None:
        """Count a step of these envs; return which of them are at their limit, None if no env is."""
        self._now += 1
        if len(indexes) < len(self._started):
            is_idle = np.ones(len(self._started), np.bool_)
            is_idle[indexes] = False
            self._started += is_idle
        if self._now < self._due:
            return None
        late = self._now - self._started >= self._time_limit
        self._due = int(self._started[~late].min(initial=self._now)) + self._time_limit
        return late[indexes]


def split_actions(space: Space, actions: Any, num_rows: int) -> list[Any]:
    """Split a tree of actions `[N, ...]` into those of single envs, in the form of Gymnasium."""
    if (
        type(space) is Discrete
        and type(actions) is np.ndarray
        and actions.shape == (num_rows,)
        and actions.dtype.kind in "iu"
    ):
        return actions.tolist()  # the most common case, without the checks of the others
    space.check(actions, "actions", (num_rows,))
    return _split(space, actions)


def _split(space: Space, actions: Any) -> list[Any]:
    match space:
        case Discrete():
            return np.asarray(actions).tolist()
        case ArraySpace():
            array = np.asarray(actions).astype(space.dtype, copy=False).view()
            array.setflags(write=False)
            return list(array) if space.shape else [array[k, ...] for k in range(len(array))]
        case Dict():
            columns = [_split(part, actions[name]) for name, part in space.spaces.items()]
            return [dict(zip(space.spaces, row, strict=True)) for row in zip(*columns, strict=True)]
        case Tuple():
            return list(
                zip(*(_split(part, item) for part, item in zip(space.spaces, actions, strict=True)), strict=True)
            )
    raise AssertionError(f"{space} is not a space of rookery.spaces")


def as_space(space: Space | gymnasium.Space) -> Space:
    """Return a space of Rookery, converted from Gymnasium if needed."""
    return space if isinstance(space, Space) else from_gymnasium(space)


def rows_of(trees: Sequence[Any]) -> Any:
    """Stack trees of arrays along a new first axis."""
    if type(trees[0]) is np.ndarray:
        return np.array(trees)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def without_errors(reset: VectorReset, errors: Errors) -> VectorReset:
    """Count the envs whose rows have errors as failed."""
    if not errors:
        return reset
    good = [row for row in range(len(reset.envs)) if row not in errors]
    failed = {reset.envs[row]: as_failed(error, Phase.RESET) for row, error in errors.items()}
    return VectorReset(
        [reset.envs[row] for row in good],
        jax.tree.map(lambda leaf: leaf[good], reset.obs),
        {env: info for env, info in reset.infos.items() if env not in failed},
        {**reset.failed, **failed},
    )


def _failed_step(reply: Any) -> Failed | None:
    """Return the failure if `reply` is not a valid step result, else None."""
    if isinstance(reply, Failed):
        return reply
    try:
        check_reply(reply, Phase.STEP)
    except EnvironmentCheckError as error:
        return as_failed(error, Phase.STEP)
    return None


def _failed_reset(reply: Any) -> Failed | None:
    """Return the failure if `reply` is not a valid reset result, else None; observations are not checked."""
    if type(reply) is tuple and len(reply) == 2 and type(reply[1]) is dict:
        return None  # the most common case, without the checks of the others
    if isinstance(reply, Failed):
        return reply
    try:
        check_reply(reply, Phase.RESET)
        check_info(reply[1])
    except EnvironmentCheckError as error:
        return as_failed(error, Phase.RESET)
    return None
