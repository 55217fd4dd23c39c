"""Curves of a run: one value per metric, seed and record, thinned for drawing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.report.statistics import bootstrap_interval, interquartile_mean
from rookery.runs.records import ITERATIONS, SEED, STEPS


@dataclass(frozen=True)
class Series:
    """One metric of one run: `values[s, t]` of `seeds[s]` at `steps[t]`; NaN for missing or non-finite values."""

    seeds: tuple[int, ...]
    steps: np.ndarray
    values: np.ndarray
    num_not_finite: int

    @property
    def num_seeds(self) -> int:
        return len(self.values)

    @property
    def center(self) -> np.ndarray:
        """The interquartile mean over seeds, `[T]`."""
        return interquartile_mean(self.values)


@dataclass(frozen=True)
class Curve:
    """A series prepared for drawing: its center, the interval around it, and the curve of each seed.

    `low` and `high` are None for a single seed.
    """

    steps: np.ndarray
    center: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    seeds: tuple[tuple[np.ndarray, np.ndarray], ...] = ()


def read_series(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Group the rows of `metrics.jsonl` by metric.

    A record has one row per seed, all from the same iteration. If seeds differ in env steps, as in evolution, the
    record is placed at their mean.
    """
    rows = [row for row in rows if STEPS in row]
    seeds = sorted({row.get(SEED, 0) for row in rows})
    steps_of_records = _steps_of_records(rows)
    values: dict[str, dict[tuple[int, int], float]] = {}
    for row in rows:
        position = steps_of_records[_record_of(row)], seeds.index(row.get(SEED, 0))
        for name, value in row.items():
            if name not in (SEED, STEPS):
                values.setdefault(name, {})[position] = float(value)
    return {name: _series(by_position, tuple(seeds)) for name, by_position in values.items()}


def _steps_of_records(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, Any], int]:
    steps_of_rows: dict[tuple[str, Any], list[int]] = {}
    for row in rows:
        steps_of_rows.setdefault(_record_of(row), []).append(int(row[STEPS]))
    return {record: round(sum(steps) / len(steps)) for record, steps in steps_of_rows.items()}


def _record_of(row: Mapping[str, Any]) -> tuple[str, Any]:
    """Identify the record of a row by its iteration, or by its env steps without one."""
    name = ITERATIONS if ITERATIONS in row else STEPS
    return name, row[name]


def _series(by_position: Mapping[tuple[int, int], float], seeds: tuple[int, ...]) -> Series:
    steps = sorted({step for step, _ in by_position})
    column = {step: index for index, step in enumerate(steps)}
    values = np.full((len(seeds), len(steps)), np.nan)
    for (step, seed), value in by_position.items():
        if np.isfinite(value):
            values[seed, column[step]] = value
    num_not_finite = sum(not np.isfinite(value) for value in by_position.values())
    return Series(seeds, np.array(steps), values, num_not_finite)


def make_curve(series: Series, max_points: int, max_seed_points: int = 0) -> Curve:
    """Prepare a series for drawing; `max_seed_points=0` omits the curves of single seeds."""
    kept = thin_out(series.center, max_points)
    values = series.values[:, kept]
    low, high = bootstrap_interval(values) if series.num_seeds > 1 else (None, None)
    seeds = []
    if max_seed_points and series.num_seeds > 1:
        for of_seed in series.values:
            kept_of_seed = thin_out(of_seed, max_seed_points)
            seeds.append((series.steps[kept_of_seed], of_seed[kept_of_seed]))
    return Curve(series.steps[kept], series.center[kept], low, high, tuple(seeds))


def thin_out(values: np.ndarray, max_points: int) -> np.ndarray:
    """Return the indices of at most `max_points` values that preserve the shape of the curve.

    The values are split into segments of equal length, and the lowest and highest of each are kept, so that spikes
    remain; the first and last value are kept too.
    """
    if len(values) <= max_points:
        return np.arange(len(values))
    num_stretches = max_points // 2 - 1
    kept = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(len(values)), num_stretches):
        known = stretch[~np.isnan(values[stretch])]
        if len(known):
            kept |= {int(known[np.argmin(values[known])]), int(known[np.argmax(values[known])])}
        else:
            kept.add(int(stretch[0]))
    return np.array(sorted(kept))
