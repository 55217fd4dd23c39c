"""Final populations, read from `population.json` and validated."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError
from rookery.report.member_history import MemberHistory, parse_member_history
from rookery.runs.records import LARGEST


@dataclass(frozen=True)
class Front:
    """Objectives `points[n, m]` of individuals, and whether they are on the Pareto front."""

    axes: tuple[str, ...]
    points: np.ndarray
    is_front: np.ndarray


@dataclass(frozen=True)
class Archive:
    """The `fitness[c]` of the best individual in each cell; NaN for empty cells.

    A grid has `cells` along each of its axes, in row-major order; other archives have `centroids[c, k]`.
    """

    axes: tuple[str, ...]
    low: np.ndarray
    high: np.ndarray
    fitness: np.ndarray
    cells: tuple[int, ...] | None
    centroids: np.ndarray | None
    qd_offset: float = 0.0

    @property
    def num_filled(self) -> int:
        return int(np.count_nonzero(~np.isnan(self.fitness)))

    @property
    def qd_score(self) -> float:
        """The sum of the fitness and the offset over the filled cells."""
        return float(np.nansum(self.fitness + self.qd_offset))


Population = Front | Archive | MemberHistory


def parse_populations(entries: Sequence[Any]) -> tuple[Population, ...]:
    """Parse the entries of all seeds; errors name the damaged entry."""
    populations: list[Population] = []
    for number, entry in enumerate(entries):
        try:
            populations.append(_parse(entry))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidInputError(f"entry {number} of population.json is damaged: {problem}.") from None
        if (type(populations[0]), populations[0].axes) != (type(populations[-1]), populations[-1].axes):
            raise InvalidInputError(f"entry {number} of population.json is of a different kind than the first.")
    return tuple(populations)


def _parse(entry: Any) -> Population:
    if not isinstance(entry, Mapping):
        raise ValueError(f"it is {entry!r:.80}, expected an object")
    match entry["kind"]:
        case "front":
            return _parse_front(entry)
        case "archive":
            return _parse_archive(entry)
        case "members":
            return parse_member_history(entry)
        case kind:
            raise ValueError(f"its kind is {kind!r:.80}, expected 'front', 'archive' or 'members'")


def _parse_front(entry: Mapping[str, Any]) -> Front:
    axes = _axes(entry, at_least=2)
    points = _rows(entry, "points", len(axes))
    is_front = np.array(entry["is_front"], bool)
    _check_length("is_front", is_front, len(points))
    is_valid = ~np.isnan(points).any(axis=1)
    return Front(axes, points[is_valid], is_front[is_valid])


def _parse_archive(entry: Mapping[str, Any]) -> Archive:
    axes = _axes(entry, at_least=1)
    low, high, fitness = (_numbers(entry, name) for name in ("low", "high", "fitness"))
    _check_length("low", low, len(axes))
    _check_length("high", high, len(axes))
    if not np.all(low < high):
        raise ValueError(f"low={low.tolist()} is not below high={high.tolist()}")
    offset = float(entry.get("qd_offset", 0.0))
    if not math.isfinite(offset):
        raise ValueError(f"qd_offset={offset}, expected a finite number")
    if entry["cells"] is None:
        centroids = _rows(entry, "centroids", len(axes))
        _check_length("fitness", fitness, len(centroids))
        if not len(centroids):
            raise ValueError("there are no cells")
        if np.isnan(centroids).any():
            raise ValueError("centroids are not all numbers")
        return Archive(axes, low, high, fitness, None, centroids, offset)
    cells = tuple(int(number) for number in entry["cells"])
    if len(cells) != len(axes) or min(cells) < 1:
        raise ValueError(f"cells={list(cells)}, expected a number for each of {len(axes)} axes")
    _check_length("fitness", fitness, math.prod(cells))
    return Archive(axes, low, high, fitness, cells, None, offset)


def _axes(entry: Mapping[str, Any], at_least: int) -> tuple[str, ...]:
    axes = entry["axes"]
    if not isinstance(axes, list) or len(axes) < at_least:
        raise ValueError(f"axes={axes!r:.80}, expected a list of at least {at_least}")
    return tuple(map(str, axes))


def _numbers(entry: Mapping[str, Any], name: str) -> np.ndarray:
    """Read numbers; null and infinite values become NaN."""
    values = np.array(entry[name], np.float64)
    return np.where(np.abs(values) <= LARGEST, values, np.nan)


def _rows(entry: Mapping[str, Any], name: str, width: int) -> np.ndarray:
    values = _numbers(entry, name)
    if values.size == 0:
        return values.reshape(0, width)
    if values.shape[1:] != (width,):
        raise ValueError(f"{name} has the shape {list(values.shape)}, expected {width} numbers in each row")
    return values


def _check_length(name: str, values: np.ndarray, length: int) -> None:
    if values.shape != (length,):
        raise ValueError(f"{name} has the shape {list(values.shape)}, expected {[length]}")
