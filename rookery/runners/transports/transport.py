"""The interface of transports: environments in numbered slots, whose failures are values."""

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
"""The result of `reset` or `step`, or a `Failed` in its place."""


class EnvCallError(RookeryError):
    """A method of an environment failed; the message has the traceback."""


@dataclass(frozen=True)
class EnvDescription:
    """The description of an environment, with Gymnasium spaces, in dicts by agent if it has several."""

    name: str
    observation_space: Any
    action_space: Any
    metadata: dict[str, Any] = field(default_factory=dict)
    possible_agents: tuple[Any, ...] | None = None
    """The agents of a multi-agent env; None for an env with one agent."""
    max_episode_steps: int | None = None


class EnvTransport(ABC):
    """Environments with `reset`, `step`, `render` and `close`, one in each slot, which fail individually.

    A transport does not check results. A slot holds at most one reply: a new request discards the reply to an earlier
    one. An env that could not be built answers every request with its failure, until it is rebuilt.
    """

    num_envs: int
    is_asynchronous: bool = False
    """Whether envs work on their own while the caller does something else."""
    patience: float | None = None
    """The seconds after which a silent env is late, so that others need not wait for it; None: never."""
    _env_name: str | None = None
    """The name of the envs, known after `describe`."""

    def describe(self) -> EnvDescription:
        """Return the description of the env in slot 0; raise `EnvCallError` if it cannot be built."""
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
        """Wait until these have replied or failed, at most `timeout` seconds; return all available replies."""

    def wait(self, timeout: float | None = None) -> None:  # noqa: B027
        """Wait for a reply if one is owed, at most `timeout` seconds; if it is interrupted, no reply is lost."""

    @abstractmethod
    def rebuild(self, index: int) -> None:
        """Rebuild an env, whatever it is doing, without waiting.

        An env that cannot be built returns its failure in place of its next reset.
        """

    @abstractmethod
    def apply(self, index: int, function: Callable[[Any], Any]) -> Any | Failed:
        """Call a function with an env, where the env runs, and return the result."""

    def render(self, index: int) -> np.ndarray | None:
        """Render an env; None if it returns no image; raise `EnvCallError` if rendering fails."""
        return self._applied(index, _image, "the image")

    def call(self, index: int, method: str, *args: Any) -> Any:
        """Call a method of an env and return the result; raise `EnvCallError` if it fails."""
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
    """Raise if a reply is awaited without a request."""
    for index in wait_for:
        if index not in asked:
            raise InvalidInputError(
                f"env {index} was sent no request since its last reply: there is no reply to wait for."
            )


def describe_env(env: Any) -> EnvDescription:
    """Return the description of a Gymnasium env or a multi-agent dict env."""
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


def _image(env: Any) -> np.ndarray | None:
    try:
        image = env.render() if hasattr(env, "render") else None
    except NotImplementedError:  # as Gymnasium's base class does
        return None
    return image if isinstance(image, np.ndarray) else None


def _space(env: Any, name: str, agents: Sequence[Any] | None) -> Any:
    """Return the space of an env, or a dict of the spaces of its agents."""
    if agents is None:
        return getattr(env, name)
    spaces = getattr(env, f"{name}s", None) or getattr(env, name)
    return {agent: spaces(agent) if callable(spaces) else spaces[agent] for agent in agents}


def _max_episode_steps(env: Any) -> int | None:
    """Return the limit of a `TimeLimit` among the wrappers."""
    while env is not None:
        if (limit := getattr(env, "_max_episode_steps", None)) is not None:
            return limit
        env = getattr(env, "env", None)
    return None
