"""Curves of a run: one value per metric, seed and record, thinned for drawing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rookery.report.statistics import bootstrap_interval, interquartile_mean
from rookery.runs.divergence import DIVERGED
from rookery.runs.records import SEED, STEPS

MAX_CELLS = 1_000_000
"""The maximum number of values on a grid, over all seeds."""
OF_THE_RUN = ("time/", "faults/", "runners/", "rollout/steps_discarded", "rollout/staleness")
"""Metrics that hold for a seed also after it has diverged."""


@dataclass(frozen=True)
class Series:
    """One metric of one run: `values[s]` of `seeds[s]` at its own `steps[s]`; NaN for values that are not finite.

    A seed that diverged has no values from then on.
    """

    seeds: tuple[int, ...]
    steps: tuple[np.ndarray, ...]
    values: tuple[np.ndarray, ...]
    is_diverged: tuple[bool, ...]
    num_not_finite: int

    @property
    def num_seeds(self) -> int:
        return len(self.seeds)

    @cached_property
    def grid(self) -> np.ndarray:
        """The steps `[T]` of all seeds, from the largest first step to the smallest last step of a seed."""
        known = [index for index, steps in enumerate(self.steps) if len(steps)]
        steps = np.unique(np.concatenate([self.steps[index] for index in known]))
        first = max(self.steps[index][0] for index in known)
        last = min((self.steps[index][-1] for index in known if not self.is_diverged[index]), default=steps[-1])
        common = steps[(steps >= first) & (steps <= last)]
        max_points = max(2, MAX_CELLS // self.num_seeds)
        if len(common) > max_points:
            common = common[np.linspace(0, len(common) - 1, max_points).astype(int)]
        return common

    @cached_property
    def on_grid(self) -> np.ndarray:
        """The values `[S, T]` of all seeds on the grid, interpolated between their own steps."""
        return np.array(
            [
                np.interp(self.grid, steps, values, left=np.nan, right=np.nan)
                if len(steps)
                else np.full(len(self.grid), np.nan)
                for steps, values in zip(self.steps, self.values, strict=True)
            ]
        )

    @cached_property
    def center(self) -> np.ndarray:
        """The interquartile mean over seeds on the grid, `[T]`."""
        return interquartile_mean(self.on_grid)

    @property
    def last_values(self) -> np.ndarray:
        """The last value of each seed `[S]`; NaN for those that diverged."""
        ends = zip(self.values, self.is_diverged, strict=True)
        return np.array([values[-1] if len(values) and not is_diverged else np.nan for values, is_diverged in ends])


@dataclass(frozen=True)
class Curve:
    """A series prepared for drawing: its center, the interval around it, and the curve of each seed.

    `low` and `high` are None for a single seed. `ends` are the last steps and values of seeds that diverged.
    """

    steps: np.ndarray
    center: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    seeds: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    ends: tuple[tuple[int, float], ...] = ()


def read_series(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Group the rows of `metrics.jsonl` by metric and seed. Seeds may differ in env steps, as in evolution.

    Of several rows of a seed at the same env steps, the last value of each metric counts.
    """
    rows = sorted((row for row in rows if STEPS in row), key=lambda row: row[STEPS])
    seeds = tuple(sorted({row.get(SEED, 0) for row in rows}))
    diverged = diverged_seeds(rows)
    found: dict[str, dict[int, dict[int, float]]] = {}
    for row in rows:
        seed, step = row.get(SEED, 0), int(row[STEPS])
        for name, value in row.items():
            is_over = step >= diverged.get(seed, step + 1) and not name.startswith(OF_THE_RUN)
            if name not in (SEED, STEPS, DIVERGED) and not is_over:
                found.setdefault(name, {}).setdefault(seed, {})[step] = float(value)
    return {
        name: _series(by_seed, seeds, {} if name.startswith(OF_THE_RUN) else diverged)
        for name, by_seed in found.items()
    }


def diverged_seeds(rows: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return the seeds that diverged, and the env steps at which that was found."""
    found: dict[int, int] = {}
    for row in rows:
        if row.get(DIVERGED):
            seed, step = row.get(SEED, 0), int(row[STEPS])
            found[seed] = min(step, found.get(seed, step))
    return found


def _series(by_seed: Mapping[int, Mapping[int, float]], seeds: tuple[int, ...], diverged: Mapping[int, int]) -> Series:
    steps = tuple(np.array(list(by_seed.get(seed, {})), int) for seed in seeds)
    values = [np.array(list(by_seed.get(seed, {}).values()), float) for seed in seeds]
    num_not_finite = sum(int(np.count_nonzero(~np.isfinite(of_seed))) for of_seed in values)
    finite = tuple(np.where(np.isfinite(of_seed), of_seed, np.nan) for of_seed in values)
    return Series(seeds, steps, finite, tuple(seed in diverged for seed in seeds), num_not_finite)


def make_curve(series: Series, max_points: int, max_seed_points: int = 0) -> Curve:
    """Prepare a series for drawing; `max_seed_points=0` omits the curves of single seeds."""
    kept = thin_out(series.center, max_points)
    low, high = bootstrap_interval(series.on_grid[:, kept]) if series.num_seeds > 1 else (None, None)
    seeds, ends = [], []
    for steps, values, is_diverged in zip(series.steps, series.values, series.is_diverged, strict=True):
        if max_seed_points and series.num_seeds > 1:
            kept_of_seed = thin_out(values, max_seed_points)
            seeds.append((steps[kept_of_seed], values[kept_of_seed]))
        if is_diverged and (max_seed_points or series.num_seeds == 1) and not np.isnan(values).all():
            last = np.flatnonzero(~np.isnan(values))[-1]
            ends.append((int(steps[last]), float(values[last])))
    return Curve(series.grid[kept], series.center[kept], low, high, tuple(seeds), tuple(ends))


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
