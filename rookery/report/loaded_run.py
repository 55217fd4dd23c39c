"""A run loaded for the report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError
from rookery.report.curves import Series, diverged_seeds, read_series
from rookery.report.fronts_and_archives import Population, parse_populations
from rookery.report.statistics import bootstrap_interval, interquartile_mean
from rookery.runs.directory import RunDirectory
from rookery.runs.records import LARGEST, MAX_COUNT, Records

EVALUATION_RETURN = "eval/mean_reward"
BEST_EVALUATION_RETURN = "eval/best_mean_reward"
TRAINING_RETURN = "rollout/ep_rew_mean"
EPISODE_LENGTH = "rollout/ep_len_mean"
STEPS_PER_SECOND = "time/fps"
SECONDS_ELAPSED = "time/time_elapsed"
TIMING = ("env_steps", "compile_seconds", "train_seconds", "evaluate_seconds")
COLLECT_SHARE = "collect_share"


@dataclass(frozen=True)
class Estimate:
    """A statistic over seeds and its interval, which is NaN for fewer than two seeds."""

    value: float
    low: float
    high: float
    num_seeds: int

    @property
    def has_interval(self) -> bool:
        return not np.isnan(self.low)


@dataclass(frozen=True)
class BestRecord:
    """The highest value of a metric, and the env steps at which it was reached."""

    value: float
    steps: int


@dataclass(frozen=True)
class LoadedRun:
    """The contents of a run directory; `style` is the color of its curves.

    `populations` has the final population of each seed, of evolution or of members; `population_problem` explains
    why it is unusable.
    """

    name: str
    style: int
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    timing: Mapping[str, float] | None
    series: Mapping[str, Series]
    episode: bytes | None
    populations: tuple[Population, ...]
    population_problem: str
    diverged: Mapping[int, int]
    """The seeds that diverged, and the env steps at which that was found."""
    left_out: tuple[str, ...] = ()
    """What the run directory has, but the report cannot show."""

    @property
    def title(self) -> str:
        """The names of the agent and the environment."""
        agent, env = (_entry(self.config, group, "name") for group in ("agent", "env"))
        return f"{agent} on {env}"

    @property
    def num_seeds(self) -> int:
        return max((series.num_seeds for series in self.series.values()), default=_count(self.config, "num_seeds") or 1)

    def seed_name(self, index: int) -> str:
        """Return the name of a seed; its index if the records do not name it."""
        seeds = next((series.seeds for series in self.series.values()), ())
        return f"seed {seeds[index] if index < len(seeds) else index}"

    @property
    def env_steps(self) -> tuple[int, int]:
        """The env steps up to the last record, of the seeds with the fewest and the most."""
        last_steps: dict[int, int] = {}
        for series in self.series.values():
            for seed, steps in zip(series.seeds, series.steps, strict=True):
                last_steps[seed] = max([last_steps.get(seed, 0), *steps[-1:].tolist()])
        return min(last_steps.values(), default=0), max(last_steps.values(), default=0)

    @property
    def total_timesteps(self) -> int | None:
        """The configured number of env steps of one seed."""
        return _count(self.config, "total_timesteps")

    @property
    def seconds(self) -> float | None:
        """The duration of the run, including compilation."""
        return sum(self.seconds_by_part.values()) or self.last(SECONDS_ELAPSED)

    @property
    def steps_per_second(self) -> float | None:
        """The env steps of all seeds per second of training; from the last record without timing."""
        if self.timing is not None and self.timing["train_seconds"] > 0:
            return self.timing["env_steps"] * self.num_seeds / self.timing["train_seconds"]
        return self.last(STEPS_PER_SECOND)

    @property
    def seconds_by_part(self) -> dict[str, float]:
        """Durations by part; empty until they are known."""
        if self.timing is None:
            return {}
        train, collect_share = self.timing["train_seconds"], self.timing.get("collect_share")
        if collect_share is None:
            training = {"train": train}
        else:
            training = {"collect": train * collect_share, "learn": train * (1.0 - collect_share)}
        return {"compile": self.timing["compile_seconds"], **training, "evaluate": self.timing["evaluate_seconds"]}

    @property
    def return_metric(self) -> str:
        """The best available measure of performance: the evaluation return, else the training return."""
        return EVALUATION_RETURN if EVALUATION_RETURN in self.series else TRAINING_RETURN

    def final_return(self) -> Estimate | None:
        """Return the estimate of the last return over the seeds that did not diverge."""
        if self.return_metric not in self.series:
            return None
        last = self.series[self.return_metric].last_values
        low, high = bootstrap_interval(last)
        return Estimate(
            float(interquartile_mean(last)), float(low), float(high), int(np.count_nonzero(~np.isnan(last)))
        )

    def best_return(self) -> BestRecord | None:
        """Return the record with the highest return."""
        series = self.series.get(self.return_metric)
        if series is None or np.isnan(series.center).all():
            return None
        best = np.nanargmax(series.center)
        return BestRecord(float(series.center[best]), int(series.grid[best]))

    def last(self, metric: str) -> float | None:
        """Return the last value of a metric, averaged over seeds; None without one."""
        if metric not in self.series:
            return None
        value = float(interquartile_mean(self.series[metric].last_values))
        return None if np.isnan(value) else value


def load_runs(directories: Sequence[RunDirectory]) -> list[LoadedRun]:
    """Read run directories."""
    names = unique_names([directory.path for directory in directories])
    return [_load(*numbered) for numbered in zip(directories, names, range(len(names)), strict=True)]


def _load(directory: RunDirectory, name: str, style: int) -> LoadedRun:
    left_out: list[str] = []

    def read(read_fn: Callable[[], Any], otherwise: Any = None) -> Any:
        try:
            return read_fn()
        except InvalidInputError as error:
            left_out.append(str(error))
            return otherwise

    records = read(directory.read_records, Records([], ()))
    left_out += [f"{directory.metrics_path}: {what}" for what in records.left_out]
    populations: tuple[Population, ...] = ()
    population_problem = ""
    try:
        populations = parse_populations(directory.read_populations())
    except InvalidInputError as error:
        population_problem = str(error)
    return LoadedRun(
        name=name,
        style=style,
        config=directory.config,
        manifest=directory.manifest,
        timing=read(lambda: _checked_timing(directory)),
        series=read_series(records.rows),
        episode=read(directory.read_episode),
        populations=populations,
        population_problem=population_problem,
        diverged=diverged_seeds(records.rows),
        left_out=tuple(left_out),
    )


def _checked_timing(directory: RunDirectory) -> dict[str, float] | None:
    """Read the durations of a run; raise unless they are numbers."""
    timing = directory.read_timing()
    if timing is None:
        return None
    known = {name: timing[name] for name in (*TIMING, COLLECT_SHARE) if name in timing}
    for name in TIMING:
        if name not in known:
            raise InvalidInputError(f"{directory.timing_path}: {name} is missing.")
    for name, value in known.items():
        highest = 1.0 if name == COLLECT_SHARE else LARGEST
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= highest:
            raise InvalidInputError(f"{directory.timing_path}: {name} is {value!r:.80}, expected a number.")
    return known


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Name run directories by the shortest ends of their paths that are unique."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1)):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _count(config: Mapping[str, Any], name: str) -> int | None:
    """Return a count of the config; None if it is not a count."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= MAX_COUNT:
        return None
    return int(value)


def _entry(config: Mapping[str, Any], group: str, name: str) -> str:
    entries = config.get(group)
    return str(entries[name]) if isinstance(entries, Mapping) and name in entries else f"unknown {group}"
