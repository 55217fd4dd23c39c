"""The actor: the process on Ray that holds the runner of one slot.

JAX is imported by its first call, which sets the variables that JAX reads when it is imported.
"""

import functools
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rookery.runners.groups.episodes import Evaluated, Plan, Played, RandomlyPlayed, RandomRequest
    from rookery.runners.groups.group import ActingSpec, Delivery, Description, RunnerFailed, RunnerSpec, RunnerStart
    from rookery.runners.groups.jobs import Chunk
    from rookery.runners.passed import PassedParts

COMPARED_PACKAGES = ("rookery", "jax", "jaxlib", "numpy", "gymnasium")


@dataclass(frozen=True)
class Hello:
    """Where an actor is, and the versions of what it computes with."""

    node: str
    pid: int
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """What a call returned, and the seconds that it took."""

    value: Any
    seconds: float


def versions_here() -> dict[str, str]:
    """Return the versions that driver and runners must share."""
    packages = {package: importlib.metadata.version(package) for package in COMPARED_PACKAGES}
    return {"python": platform.python_version()} | packages


def answering(method: Callable) -> Callable:
    """Return answers, and exceptions as failures: one that cannot be pickled would otherwise hide its cause."""

    @functools.wraps(method)
    def call(self: "RunnerActor", *args: Any) -> Answer:
        start = time.monotonic()
        try:
            value = method(self, *args)
        except Exception as error:
            from rookery.runners.groups.group import RunnerFailed  # imports JAX, which `hello` has to prepare

            value = RunnerFailed.by_exception(error)
        return Answer(value, time.monotonic() - start)

    return call


class RunnerActor:
    """The runner of one slot. The constructor does nothing, so that Ray says when the process is placed."""

    def __init__(self) -> None:
        self._version: int | None = None
        """The version of the stored tree on the device: parameters or a plan."""
        self._stored: Any = None

    @answering
    def hello(self, variables: Mapping[str, str], jax_settings: Mapping[str, Any]) -> Hello:
        """Set environment variables and the settings of JAX."""
        os.environ.update(variables)
        import jax

        for name, value in jax_settings.items():
            jax.config.update(name, value)
        return Hello(platform.node(), os.getpid(), versions_here())

    @answering
    def describe(self, spec: "RunnerSpec", passed: "PassedParts", index: int) -> "Description":
        """Make the environments and describe them."""
        from rookery.runners.groups.group import HostedRunner

        self._hosted = HostedRunner(spec, index)
        with passed.known_here(spec.envs.env):
            return self._hosted.describe()

    @answering
    def start(self, acting: "ActingSpec", start: "RunnerStart") -> None:
        """Let these agents act from now on."""
        self._hosted.start(acting, start)

    @answering
    def prepare(self, role: str, version: int, agent_states: Mapping[str, Any]) -> None:
        """Make the runner, and compile what acts in its first fragment."""
        self._hosted.prepare(role, self._on_device(version, agent_states))

    @answering
    def sample(self, role: str, version: int, agent_states: Mapping[str, Any]) -> "Delivery | RunnerFailed":
        """Sample a fragment."""
        return self._hosted.sample(role, self._on_device(version, agent_states))

    @answering
    def play(self, chunk: "Chunk", individuals: Any, version: int, plan: "Plan") -> "Played | RunnerFailed":
        """Play the episodes of some individuals."""
        return self._hosted.play(self._on_device(version, plan), chunk, individuals)

    @answering
    def evaluate(
        self, seed: int, num_episodes: int, chunk: "Chunk", version: int, agent_states: Any
    ) -> "Evaluated | RunnerFailed":
        """Play some episodes of an evaluation."""
        return self._hosted.evaluate(self._on_device(version, agent_states), seed, num_episodes, chunk)

    @answering
    def play_at_random(self, request: "RandomRequest") -> "RandomlyPlayed | RunnerFailed":
        """Act at random in environments that are made for it."""
        return self._hosted.play_at_random(request)

    def _on_device(self, version: int, tree: Any) -> Any:
        """Return a stored tree as JAX arrays, which are made once per version."""
        import jax

        if version != self._version:
            self._version, self._stored = version, jax.device_put(tree)
        return self._stored
