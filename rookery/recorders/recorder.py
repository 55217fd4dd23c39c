"""What a run tells its recorders, and in which order."""

# ruff: noqa: B027 - a recorder leaves out what it does not care for.

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError
from rookery.runs.directory import sync_to_disk

SEED = "seed"
ENV_STEPS = "time/total_timesteps"


@dataclass(frozen=True)
class RunDescription:
    """The run that is recorded; without a directory, recorders write no files."""

    title: str
    total_timesteps: int
    seeds: tuple[int, ...]
    directory: Path | None
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Position:
    """Where a resumed run goes on: after its first `num_records` records, at `env_steps` of the seed with the fewest.

    `recorded_steps` are the env steps of each seed at the last of these records, if they are not all `env_steps`.
    """

    num_records: int
    env_steps: int
    recorded_steps: tuple[int, ...] = ()

    def first_forgotten_step(self, seed_index: int) -> int:
        """The first number of env steps at which a record of a seed is not one of those kept."""
        if not self.num_records:
            return 0
        return (self.recorded_steps[seed_index] if self.recorded_steps else self.env_steps) + 1


class Recorder(ABC):
    """Takes what happens in a run, in the order in which it happens.

    `open` is called first and `close` last, also after an error or an interrupt, even one inside `open`; a closed
    recorder can be opened again. Env steps are those of the seed with the fewest: in evolution they differ.
    """

    @abstractmethod
    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        """Begin a run, or go on with one: whatever was recorded after `resumed_from` is forgotten."""

    def compiling(self, what: str) -> None:
        """Tell that a program is about to be compiled, which may take a minute."""

    def compiled(self, what: str, seconds: float) -> None:
        """Tell that the program announced by `compiling` is ready."""

    def advance(self, env_steps: int) -> None:
        """Tell how far the run is, between two records."""

    @abstractmethod
    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Take one row of metrics per seed, all of the same iteration.

        A row has `seed` and `time/total_timesteps`; a metric without a value is absent. Values may be numbers of
        Python, NumPy or JAX.
        """

    def sync(self) -> None:
        """Put every record taken so far on disk, before a checkpoint that counts on them is listed."""

    def finish(self, message: str) -> None:
        """Tell that the run has ended well."""

    @abstractmethod
    def close(self) -> None:
        """Release what `open` took; the second time, do nothing."""


def as_number(name: str, value: Any) -> int | float:
    """Return the value of a metric as a number of Python."""
    array = np.asarray(value)
    if array.shape == () and isinstance(number := array.item(), (int, float)):
        return number
    raise InvalidInputError(f"metric {name!r} must be one number, got {value!r}.")


def plotted_metrics(row: Mapping[str, float]) -> dict[str, int | float]:
    """Return the metrics of a row that are curves over env steps: all but the seed and the env steps themselves."""
    return {name: as_number(name, value) for name, value in row.items() if name not in (SEED, ENV_STEPS)}


class AppendedFile:
    """A file that grows: what `write` was given is out of this process when it returns, and an error names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        sync_to_disk(path.parent)

    def write(self, data: bytes) -> None:
        """Append `data` as a whole."""
        rest = memoryview(data)
        with self._naming_the_file():
            while rest:
                rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Put what was written on disk."""
        with self._naming_the_file():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @contextlib.contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
