"""Environments that live somewhere, in this process or in others: each has a slot, and its failures are values."""

import contextlib
import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError, RookeryError
from rookery.runners.faults import Failed, FaultKind, Phase

MakeEnvFn = Callable[[], Any]
"""Builds one environment."""
Reply = Any | Failed
"""What `reset` or `step` of an environment returned, as it is; or a `Failed` in its place."""


class EnvCallError(RookeryError):
    """A method of an environment, called for its own sake, failed; its traceback is in the message."""


@dataclass(frozen=True)
class EnvDescription:
    """What an environment says of itself; spaces are those of Gymnasium, in dicts by agent if it has several."""

    name: str
    observation_space: Any
    action_space: Any
    metadata: dict[str, Any] = field(default_factory=dict)
    possible_agents: tuple[Any, ...] | None = None
    """The agents of a multi-agent env; None for one that has only one."""
    max_episode_steps: int | None = None


class EnvTransport(ABC):
    """Environments with `reset`, `step`, `render` and `close`, one in each slot, which fail one by one.

    The group does not look into what they return. A slot holds at most one reply: a new request makes the reply to an
    earlier one void. An env that was not built answers every request with why, until it is rebuilt.
    """

    num_envs: int
    _env_name: str | None = None
    """The name of the envs, once they were described."""

    def describe(self) -> EnvDescription:
        """Say what the env in slot 0 is; raise `EnvCallError` if it cannot be built."""
        description = self._applied(0, describe_env, "the description")
        self._env_name = description.name
        return description

    @abstractmethod
    def send_reset(self, index: int, seed: int | None) -> None:
        """Begin to reset an env."""

    @abstractmethod
    def send_steps(self, indexes: Sequence[int], actions: Sequence[Any]) -> None:
        """Begin to step some envs, which must have been reset."""

    @abstractmethod
    def receive(self, wait_for: Collection[int] = (), timeout: float | None = None) -> dict[int, Reply]:
        """Wait until these have replied or failed, at most `timeout` seconds; return every reply that is there."""

    @abstractmethod
    def rebuild(self, index: int) -> None:
        """Throw an env away, whatever it is doing, and have it built anew.

        This waits for nothing: an env that cannot be built says so in place of its next reset.
        """

    @abstractmethod
    def apply(self, index: int, function: Callable[[Any], Any]) -> Any | Failed:
        """Wait for what a function returns of an env, in the place where the env is."""

    def render(self, index: int) -> np.ndarray | None:
        """Draw an env as it draws itself, None if it draws no pictures; raise `EnvCallError` if it fails to."""
        return self._applied(index, _picture, "the picture")

    def call(self, index: int, method: str, *args: Any) -> Any:
        """Call any method of an env and wait for what it returns; raise `EnvCallError` if it fails."""
        return self._applied(index, operator.methodcaller(method, *args), f"{method}()")

    @abstractmethod
    def close(self) -> None:
        """Close all envs, whatever state they are in; calling it twice does no harm."""

    def _applied(self, index: int, function: Callable[[Any], Any], what: str) -> Any:
        value = self.apply(index, function)
        if isinstance(value, Failed):
            env = f"env {index}" if self._env_name is None else f"env {index} ({self._env_name})"
            raise EnvCallError(f"{what} of {env} failed ({value.kind}): {value.error}.\n{value.traceback}".rstrip())
        return value


class LocalTransport(EnvTransport):
    """Environments in this process; a request is done at once and its reply kept.

    Envs are built when they are first needed. `existing_envs` are taken for the first slots as they are; one of
    these can be rebuilt only if its entry in `make_env_fns` is not None.
    """

    def __init__(self, make_env_fns: Sequence[MakeEnvFn | None], existing_envs: Sequence[Any] = ()) -> None:
        self.num_envs = len(make_env_fns)
        self._make_env_fns = tuple(make_env_fns)
        if not 0 < self.num_envs >= len(existing_envs):
            raise InvalidInputError(
                f"{len(existing_envs)} existing envs for {self.num_envs} slots: give an entry of make_env_fns for each "
                "slot, None for an existing env that cannot be rebuilt."
            )
        for index in range(len(existing_envs), self.num_envs):
            if make_env_fns[index] is None:
                raise InvalidInputError(f"slot {index} has neither an existing env nor a function that makes one.")
        # The env of each slot; None before it is built, a Failed if it could not be.
        self._is_closed = False
        self._envs: list[Any] = [*existing_envs, *[None] * (self.num_envs - len(existing_envs))]
        self._replies: dict[int, Reply] = {}

    @property
    def envs(self) -> list[Any]:
        """The env objects, those that were not built yet or could not be left out."""
        return [env for env in self._envs if env is not None and not isinstance(env, Failed)]

    def build(self, index: int) -> Any | Failed:
        """Build the env of a slot if there is none; return it, or why there is none."""
        if self._envs[index] is None:
            self._envs[index] = self._made(index)
        return self._envs[index]

    def send_reset(self, index: int, seed: int | None) -> None:
        self._replies[index] = self.reset_now(index, seed)

    def reset_now(self, index: int, seed: int | None) -> Reply:
        """Reset an env and return its reply, which `receive` then does not give."""
        env = self._envs[index]
        if env is None:
            env = self.build(index)
        if isinstance(env, Failed):
            return env
        try:
            return env.reset(seed=seed)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Failed.by_exception(error, Phase.RESET)

    def send_steps(self, indexes: Sequence[int], actions: Sequence[Any]) -> None:
        self._replies |= zip(indexes, self.step_now(indexes, actions), strict=True)

    def step_now(self, indexes: Sequence[int], actions: Sequence[Any]) -> list[Reply]:
        """Step some envs and return their replies in order, which `receive` then does not give."""
        envs = self._envs
        replies: list[Reply] = []
        for index, action in zip(indexes, actions, strict=True):
            try:
                replies.append(envs[index].step(action))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                replies.append(self._failed_step(index, error))
        return replies

    def receive(self, wait_for: Collection[int] = (), timeout: float | None = None) -> dict[int, Reply]:
        check_all_asked(wait_for, self._replies)
        replies, self._replies = self._replies, {}
        return replies

    def rebuild(self, index: int) -> None:
        self._replies.pop(index, None)
        if not self._is_closed:
            self._close_env(index)
            self._envs[index] = None

    def apply(self, index: int, function: Callable[[Any], Any]) -> Any | Failed:
        env = self.build(index)
        if isinstance(env, Failed):
            return env
        try:
            return function(env)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Failed.by_exception(error, Phase.RENDER)

    def close(self) -> None:
        self._is_closed = True
        for index in range(self.num_envs):
            self._close_env(index)
            self._envs[index] = Failed(FaultKind.EXITED, Phase.MAKE, "the envs were closed")

    def _made(self, index: int) -> Any | Failed:
        make_env_fn = self._make_env_fns[index]
        if make_env_fn is None:
            error = "it was given as an object, without a make_env to build it anew"
            return Failed(FaultKind.EXITED, Phase.MAKE, error)
        try:
            return make_env_fn()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Failed.by_exception(error, Phase.MAKE)

    def _failed_step(self, index: int, error: BaseException) -> Failed:
        match self._envs[index]:
            case None:
                raise InvalidInputError(f"env {index} was stepped before it was reset.") from None
            case Failed() as failed:
                return failed
            case _:
                return Failed.by_exception(error, Phase.STEP)

    def _close_env(self, index: int) -> None:
        """Close an env that nobody will use again: what it has to say to that does not matter."""
        env = self._envs[index]
        if env is None or isinstance(env, Failed):
            return
        with contextlib.suppress(Exception, SystemExit):
            env.close()


def make_env_group(
    make_env: Callable[[int], Any] | None,
    existing_envs: Sequence[Any] = (),
    num_envs: int = 1,
    processes: bool = False,
    envs_per_process: int = 1,
    step_timeout: float | None = None,
) -> EnvTransport:
    """Put environments into slots, here or in other processes: the existing ones, then those that `make_env` makes."""
    if processes and existing_envs:
        raise InvalidInputError("existing environments cannot move to other processes: give make_env alone.")
    if make_env is None:
        if processes or len(existing_envs) < num_envs:
            raise InvalidInputError(
                f"num_envs={num_envs} and processes={processes} with {len(existing_envs)} existing environments and no "
                "make_env: give one, which makes the others, and all if they are to live in other processes."
            )
        return LocalTransport([None] * num_envs, existing_envs)
    make_env_fns = [functools.partial(make_env, index) for index in range(num_envs)]
    if not processes:
        return LocalTransport(make_env_fns, existing_envs)
    from rookery.runners.transports.subprocesses import ProcessTransport

    return ProcessTransport(make_env_fns, envs_per_process=envs_per_process, step_timeout=step_timeout)


def check_all_asked(wait_for: Collection[int], asked: Collection[int]) -> None:
    """Raise if a reply is waited for that nothing will give."""
    for index in wait_for:
        if index not in asked:
            raise InvalidInputError(f"env {index} was sent no request since its last reply: there is none to wait for.")


def describe_env(env: Any) -> EnvDescription:
    """Read off a Gymnasium env, or a dict env of several agents, what it says of itself."""
    agents = getattr(env, "possible_agents", None)
    bare = getattr(env, "unwrapped", env)
    spec = getattr(bare, "spec", None)
    return EnvDescription(
        name=type(bare).__name__ if spec is None else spec.id,
        observation_space=_space(env, "observation_space", agents),
        action_space=_space(env, "action_space", agents),
        metadata=dict(getattr(env, "metadata", None) or {}),
        possible_agents=None if agents is None else tuple(agents),
        max_episode_steps=_max_episode_steps(env),
    )


def _picture(env: Any) -> np.ndarray | None:
    try:
        picture = env.render() if hasattr(env, "render") else None
    except NotImplementedError:  # what Gymnasium's own does
        return None
    return picture if isinstance(picture, np.ndarray) else None


def _space(env: Any, name: str, agents: Sequence[Any] | None) -> Any:
    """Return the space of an env, or a dict of those of its agents, in which form soever it holds them."""
    if agents is None:
        return getattr(env, name)
    spaces = getattr(env, f"{name}s", None) or getattr(env, name)
    return {agent: spaces(agent) if callable(spaces) else spaces[agent] for agent in agents}


def _max_episode_steps(env: Any) -> int | None:
    """Return the limit that a `TimeLimit` among the wrappers keeps."""
    while env is not None:
        if (limit := getattr(env, "_max_episode_steps", None)) is not None:
            return limit
        env = getattr(env, "env", None)
    return None
