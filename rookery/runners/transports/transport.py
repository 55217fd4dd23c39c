"""Environments that live somewhere, in this process or in others: each has a slot, and its failures are values."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError, RookeryError
from rookery.runners.faults import Failed

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

    A transport does not look into what they return. A slot holds at most one reply: a new request makes the reply to an
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
