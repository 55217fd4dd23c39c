"""Gymnasium environments that fail in known ways, for tests of environment runners.

A fault is a function that can be called in any phase: `FaultyEnv(kill_process, at_step=8)`.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

import gymnasium
import numpy as np

StepResult = tuple[Any, Any, Any, Any, Any]
"""Observation, reward, terminated, truncated and info."""


class CountingEnv(gymnasium.Env):
    """Episodes of `length` steps; the observation is the number of steps, float32 `[1]`, and each reward is 1."""

    def __init__(self, length: int = 10, truncates: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length = length
        self.truncates = truncates
        self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.num_steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> StepResult:
        self.num_steps += 1
        is_over = self.num_steps >= self.length
        return self._obs(), 1.0, is_over and not self.truncates, is_over and self.truncates, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.num_steps], np.float32)


class FaultyEnv(CountingEnv):
    """Calls `fault_fn` in step `at_step` of each episode, counted from 0, and in any step with `probability`.

    `at_reset` calls it in that reset of the env, counted from 0; `at_make` in the constructor. A fault that returns has
    no effect.
    """

    def __init__(
        self,
        fault_fn: Callable[[], None],
        at_step: int | None = None,
        probability: float = 0.0,
        at_reset: int | None = None,
        at_make: bool = False,
        length: int = 10,
    ) -> None:
        super().__init__(length)
        self.fault_fn = fault_fn
        self.at_step = at_step
        self.probability = probability
        self.at_reset = at_reset
        self.num_resets = 0
        if at_make:
            fault_fn()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, Any]:
        self.num_resets += 1
        if self.num_resets - 1 == self.at_reset:
            self.fault_fn()
        return super().reset(seed=seed)

    def step(self, action: Any) -> StepResult:
        if self.num_steps == self.at_step or (self.probability and self.np_random.random() < self.probability):
            self.fault_fn()
        return super().step(action)


class UnpicklableError(Exception):
    """An error that cannot be sent to another process."""

    def __init__(self, message: str) -> None:
        super().__init__(message, threading.Lock())


def raise_error() -> NoReturn:
    raise ValueError("bad leg")


def raise_without_arguments() -> NoReturn:
    raise RuntimeError


def raise_unpicklable() -> NoReturn:
    raise UnpicklableError("bad leg")


def raise_system_exit() -> NoReturn:
    sys.exit(3)


def hang() -> None:
    """Wait forever."""
    threading.Event().wait()


def hang_in_c() -> None:
    """Wait forever and block all other Python threads and signal handlers of the process."""
    library = ctypes.PyDLL(None)
    while True:
        library.pause()


def segfault() -> None:
    """Read from address 0."""
    ctypes.string_at(0)


def exit_process() -> NoReturn:
    """Exit the process without cleanup."""
    os._exit(3)


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def print_a_lot() -> None:
    """Fill any pipe that is not read."""
    for stream in (sys.stdout, sys.stderr):
        print("x" * 1_000_000, file=stream, flush=True)


def fork_child() -> None:
    """Leave a child process that runs forever and keeps all open files."""
    if os.fork() == 0:
        while True:
            signal.pause()


def start_session() -> None:
    """Start a process in a session of its own, without a parent, which runs forever and ignores polite signals."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for ignored in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(ignored, signal.SIG_IGN)
            while True:
                signal.pause()
        os._exit(0)


def close_descriptors() -> None:
    """Close everything that is open, as a careless daemon does."""
    os.closerange(3, 1024)


def eat_memory() -> None:
    """Use more and more memory, for at most a gigabyte."""
    eaten = []
    for _ in range(100):
        eaten.append(np.ones(10_000_000, np.uint8))
        threading.Event().wait(0.02)
    threading.Event().wait()


def raise_keyboard_interrupt() -> NoReturn:
    raise KeyboardInterrupt


def kill_parent_group() -> None:
    """Kill the process group of the parent process, and wait."""
    os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
    threading.Event().wait()


class FlakyEnv(CountingEnv):
    """Fails in its constructor or in resets the first `num_failures` times, over all envs that share `log`.

    `log` is a file with a line `make` for each construction and `reset` for each reset, in any process.
    """

    def __init__(
        self, log: Path, num_failures: int, fails_in: Literal["make", "reset"] = "reset", length: int = 10
    ) -> None:
        super().__init__(length)
        self.log = log
        self.num_failures = num_failures
        self.fails_in = fails_in
        self._attempt("make")

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, Any]:
        self._attempt("reset")
        return super().reset(seed=seed)

    def _attempt(self, phase: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{phase}\n")
        if phase == self.fails_in and self.log.read_text().split().count(phase) <= self.num_failures:
            raise RuntimeError(f"{phase} does not work yet")


class BadCloseEnv(CountingEnv):
    """Raises in `close`."""

    def close(self) -> NoReturn:
        raise OSError("already gone")


class ReusedBufferEnv(CountingEnv):
    """Returns the same array in every step, with new contents."""

    def __init__(self, length: int = 10) -> None:
        super().__init__(length)
        self._buffer = np.zeros(1, np.float32)

    def _obs(self) -> np.ndarray:
        self._buffer[0] = self.num_steps
        return self._buffer


class LyingEnv(CountingEnv):
    """Returns `lie_fn` of the true result in step `at_step` of each episode, counted from 0."""

    def __init__(self, lie_fn: Callable[[StepResult], StepResult], at_step: int = 0, length: int = 10) -> None:
        super().__init__(length)
        self.lie_fn = lie_fn
        self.at_step = at_step

    def step(self, action: Any) -> StepResult:
        is_lie = self.num_steps == self.at_step
        truth = super().step(action)
        return self.lie_fn(truth) if is_lie else truth


def with_nan_reward(truth: StepResult) -> StepResult:
    obs, _, *others = truth
    return (obs, float("nan"), *others)


def with_two_rewards(truth: StepResult) -> StepResult:
    obs, reward, *others = truth
    return (obs, np.array([reward, reward]), *others)


def with_wrong_shape(truth: StepResult) -> StepResult:
    obs, *others = truth
    return (np.concatenate([obs, obs]), *others)


def with_wrong_dtype(truth: StepResult) -> StepResult:
    obs, *others = truth
    return (obs.astype(np.float64), *others)


def with_nan_obs(truth: StepResult) -> StepResult:
    obs, *others = truth
    return (np.full_like(obs, np.nan), *others)


def with_list_info(truth: StepResult) -> StepResult:
    *others, _ = truth
    return (*others, ["not", "a", "dict"])


def with_four_values(truth: StepResult) -> Any:
    """Return the four values of Gym's old `step`, without truncation."""
    obs, reward, terminated, truncated, info = truth
    return obs, reward, terminated or truncated, info
