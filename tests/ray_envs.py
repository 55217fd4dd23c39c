"""Environments for tests on Ray, where a test cannot reach into the process that steps them."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rookery.testing.misbehaving_envs import (
    CountingEnv,
    StepResult,
    exit_process,
    hang,
    hang_in_c,
    kill_process,
    raise_system_exit,
    raise_unpicklable,
    raise_without_arguments,
    segfault,
)


def hang_in_c_and_ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang_in_c()


COMMANDS = {
    "exit": exit_process,
    "system exit": raise_system_exit,
    "kill": kill_process,
    "segfault": segfault,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": hang,
    "hang in C": hang_in_c_and_ignore_sigterm,
    "raise": raise_unpicklable,
    "raise nothing": raise_without_arguments,
}


class CommandedEnv(CountingEnv):
    """Counts its steps, writes the seed of each episode to a file, and does what another file says.

    `folder/command` is taken by the first environment that sees it: at a step, or, for `make: ...`, when it is made.
    A step takes `seconds`.
    """

    def __init__(self, folder: str, length: int = 10, seconds: float = 0.0) -> None:
        super().__init__(length)
        self.folder = Path(folder)
        self.seconds = seconds
        self._obey("make: ")

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, Any]:
        with open(self.folder / "seeds", "a") as file:
            file.write(f"{seed}\n")
        return super().reset(seed=seed)

    def step(self, action: Any) -> StepResult:
        self._obey("")
        time.sleep(self.seconds)
        return super().step(action)

    def _obey(self, prefix: str) -> None:
        path = self.folder / "command"
        taken = self.folder / f"command.{os.getpid()}"
        try:
            if path.read_text().startswith("make: ") != bool(prefix):
                return
            path.rename(taken)
        except OSError:
            return
        COMMANDS[taken.read_text().removeprefix(prefix)]()


class MaskedEnv(gymnasium.Env):
    """Observes a dict and allows two of three actions, which change; another one is an error."""

    action_space = gymnasium.spaces.Discrete(3)
    observation_space = gymnasium.spaces.Dict(
        position=gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32),
        action_mask=gymnasium.spaces.Box(0, 1, (3,), np.int8),
    )

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if action == self._forbidden:
            raise ValueError(f"{action} is not allowed")
        self._num_steps += 1
        return self._obs(), float(action), self._num_steps == 10, False, {}

    def _obs(self) -> dict[str, np.ndarray]:
        self._forbidden = int(self.np_random.integers(3))
        mask = np.ones(3, np.int8)
        mask[self._forbidden] = 0
        return {"position": self.np_random.random(2, np.float32), "action_mask": mask}


def give_command(folder: Path, command: str) -> None:
    """Let the first environment that sees it obey."""
    (folder / "given").write_text(command)
    (folder / "given").rename(folder / "command")


def seeds_in(folder: Path) -> list[int]:
    """Return the seeds of all episodes so far; that of the trial reset, which every runner makes, is left out."""
    path = folder / "seeds"
    return [int(line) for line in path.read_text().split() if line != "0"] if path.exists() else []
