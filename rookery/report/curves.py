"""From the records of a run to curves: one value per metric, seed and record, drawn with few enough points."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.report.statistics import bootstrap_interval, interquartile_mean

STEPS = "time/total_timesteps"
SEED = "seed"


@dataclass(frozen=True)
class Series:
    """One metric of one run: `values[s, t]` of seed `s` at `steps[t]`, NaN where there is no finite value."""

    steps: np.ndarray
    values: np.ndarray
    num_not_finite: int

    @property
    def num_seeds(self) -> int:
        return len(self.values)

    @property
    def center(self) -> np.ndarray:
        """The interquartile mean over the seeds, `[T]`."""
        return interquartile_mean(self.values)


@dataclass(frozen=True)
class Curve:
    """A series made ready to be drawn: its center, the interval around it, and the curve of each seed.

    `low` and `high` are None for a single seed.
    """

    steps: np.ndarray
    center: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    seeds: tuple[tuple[np.ndarray, np.ndarray], ...] = ()


def read_series(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Sort the rows of `metrics.jsonl` by metric."""
    rows = [row for row in rows if STEPS in row]
    seeds = sorted({row.get(SEED, 0) for row in rows})
    values: dict[str, dict[tuple[int, int], float]] = {}
    for row in rows:
        position = int(row[STEPS]), seeds.index(row.get(SEED, 0))
        for name, value in row.items():
            if name not in (SEED, STEPS):
                values.setdefault(name, {})[position] = float(value)
    return {name: _series(by_position, len(seeds)) for name, by_position in values.items()}


def _series(by_position: Mapping[tuple[int, int], float], num_seeds: int) -> Series:
    steps = sorted({step for step, _ in by_position})
    column = {step: index for index, step in enumerate(steps)}
    values = np.full((num_seeds, len(steps)), np.nan)
    for (step, seed), value in by_position.items():
        if np.isfinite(value):
            values[seed, column[step]] = value
    num_not_finite = sum(not np.isfinite(value) for value in by_position.values())
    return Series(np.array(steps), values, num_not_finite)


def make_curve(series: Series, max_points: int, max_seed_points: int = 0) -> Curve:
    """Prepare a series for drawing; `max_seed_points=0` leaves the curves of single seeds out."""
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
    """Return the indices of at most `max_points` values that look like all of them.

    The values are cut into stretches of equal length, and of each the lowest and the highest are kept, so that no spike
    is lost; the first and the last value are kept too.
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
