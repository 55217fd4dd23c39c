"""The interface of recorders: what a run reports, and in which order."""

# ruff: noqa: B027 - a recorder overrides only the events it uses.

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunDescription:
    """The run to record; without a directory, recorders write no files."""

    title: str
    total_timesteps: int
    seeds: tuple[int, ...]
    directory: Path | None
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Position:
    """Where a resumed run continues: after `num_records` records, at `env_steps` of the seed with the fewest steps.

    `recorded_steps` are the env steps of each seed at the last of these records; empty if all equal `env_steps`.
    """

    num_records: int
    env_steps: int
    recorded_steps: tuple[int, ...] = ()

    def first_discarded_step(self, seed_index: int) -> int:
        """Return the env step from which on older records of a seed are discarded."""
        if not self.num_records:
            return 0
        return (self.recorded_steps[seed_index] if self.recorded_steps else self.env_steps) + 1


class Recorder(ABC):
    """Receives the events of a run in the order in which they happen.

    `open` comes first and `close` last, also after an error or an interrupt, even inside `open`. A closed recorder can
    be opened again. Env steps are those of the seed with the fewest: in evolution they differ between seeds.
    """

    @abstractmethod
    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        """Start a run, or continue one: records made after `resumed_from` are discarded."""

    def compiling(self, what: str) -> None:
        """A program is about to compile, which may take a minute."""

    def compiled(self, what: str, seconds: float) -> None:
        """The program named by `compiling` is ready."""

    def advance(self, env_steps: int) -> None:
        """The run reached `env_steps`; called between two records."""

    @abstractmethod
    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Record one row of metrics per seed, all from the same iteration.

        A row contains `seed` and `time/total_timesteps`; metrics without a value are absent. Values may be Python,
        NumPy or JAX numbers.
        """

    def sync(self) -> None:
        """Flush all records to disk; called before a checkpoint that counts on them."""

    def finish(self, message: str) -> None:
        """The run completed without an error."""

    @abstractmethod
    def close(self) -> None:
        """Release what `open` acquired; a second call does nothing."""
