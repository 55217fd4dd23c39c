"""What the trials of a search reached: one result for each trial and rung."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rookery.configuration import check_settings, from_mapping, setting

FINISHED, DIVERGED, FAILED = "finished", "diverged", "failed"


@dataclass(frozen=True)
class TrialResult:
    """What a trial reached at the end of a rung."""

    trial: int
    rung: int
    """The number of budgets that the trial has spent; of a search without rungs, 1."""
    values: Mapping[str, Any]
    """The searched settings by their keys, as a config takes them."""
    status: str = setting(FINISHED, choices=(FINISHED, DIVERGED, FAILED))
    env_steps: int = 0
    fitness: float | None = None
    """The mean over the seeds; None if the training of a seed diverged or failed."""
    fitness_of_seeds: tuple[float | None, ...] = ()
    error: str | None = None
    """Why a trial failed."""

    def __post_init__(self) -> None:
        check_settings(self)

    def to_line(self) -> str:
        """Return the result as a line of JSON."""
        return json.dumps(asdict(self), allow_nan=False) + "\n"

    @classmethod
    def from_row(cls, row: Any, path: str) -> "TrialResult":
        """Read the result from JSON data; `path` names its place in errors."""
        return from_mapping(cls, row, path)


def mean_fitness(of_seeds: Sequence[float | None]) -> float | None:
    """Return the mean over seeds; None if one is missing."""
    known = [value for value in of_seeds if value is not None]
    mean = math.fsum(known) / len(known) if known and len(known) == len(of_seeds) else math.nan
    return mean if math.isfinite(mean) else None


def ranked(results: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the last result of each trial, the best first: later rungs before earlier ones, then by fitness."""
    last = {result.trial: result for result in sorted(results, key=lambda result: result.rung)}
    return sorted(last.values(), key=_rank)


def best_of(results: Sequence[TrialResult]) -> TrialResult | None:
    """Return the best result; None if no trial has a fitness."""
    with_fitness = [result for result in results if result.fitness is not None]
    return ranked(with_fitness)[0] if with_fitness else None


def shown_number(value: Any) -> Any:
    """Return a searched value as it is shown and drawn: of a schedule, its start."""
    return value["start"] if isinstance(value, Mapping) and "start" in value else value


def describe(value: Any) -> str:
    """Format a searched value in a few characters."""
    shown = shown_number(value)
    return f"{shown:.4g}" if isinstance(shown, float) else str(shown).replace(" ", "")


def _rank(result: TrialResult) -> tuple[bool, int, float, int]:
    fitness = -math.inf if result.fitness is None else result.fitness
    return result.fitness is None, -result.rung, -fitness, result.trial
