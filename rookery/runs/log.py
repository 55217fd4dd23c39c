"""The log of a run: progress, durations and records, passed to the recorders."""

import contextlib
import json
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

import jax
import numpy as np

from rookery.metrics import RunningMetrics, values_of_seed
from rookery.runs.directory import RunDirectory
from rookery.runs.divergence import (
    DIVERGED,
    DivergedError,
    Divergence,
    NotFiniteError,
    diverged_error,
    find_divergence,
)
from rookery.runs.files import write_atomically
from rookery.runs.recorder import Position, Recorder, RunDescription

MEAN_REWARD = "eval/mean_reward"
"""The metric of an evaluation that policy files name."""
FIRST_CALL = 1
"""Iterations of the first call, which measures the speed of the training program."""
UNLIMITED = 2**31 - 1


@dataclass
class Progress:
    """Counts and durations of a run; part of every checkpoint."""

    num_records: int = 0
    env_steps: int = 0
    compile_seconds: float = 0.0
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    recorded_steps: tuple[int, ...] = ()
    """Env steps of each seed at the last record."""
    diverged: dict[int, int] = field(default_factory=dict)
    """The seeds that have diverged, and their env steps when that was found."""
    best: dict[str, Any] | None = None
    """The best evaluation so far: its metric, value and step."""
    stop_reason: str | None = None
    """Why a hook ended the run before its `total_timesteps`."""
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The last evaluation of each seed: its env steps and mean return."""

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        best = mapping.get("best")
        converted = {
            "best": best if isinstance(best, Mapping) and {"metric", "value", "step"} <= set(best) else None,
            "recorded_steps": tuple(mapping.get("recorded_steps", ())),
            **{
                name: {int(seed): value for seed, value in mapping.get(name, {}).items()}
                for name in ("diverged", "evaluations")
            },
            "stop_reason": None,
        }
        return cls(**{**mapping, **converted})

    @property
    def position(self) -> Position:
        return Position(self.num_records, self.env_steps, self.recorded_steps)

    @property
    def best_step(self) -> int | None:
        return None if self.best is None else self.best["step"]

    @property
    def elapsed_seconds(self) -> float:
        return self.compile_seconds + self.train_seconds + self.evaluate_seconds


class Compilable(Protocol):
    """A program that compiles ahead of its first call."""

    def is_ready(self, *args: Any) -> bool:
        """Tell whether the program is compiled for arguments like these."""

    def compile(self, *args: Any) -> float:
        """Compile for arguments like these; return the seconds it took."""


class RunLog(contextlib.AbstractContextManager):
    """Passes the events of a run to its recorders and measures time.

    `env_steps` is the count of all seeds together at the start.
    """

    def __init__(
        self,
        run: RunDescription,
        recorders: Sequence[Recorder],
        resumed: Progress | None,
        env_steps: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run = run
        self._directory = None if run.directory is None else RunDirectory(run.directory)
        self._clock = clock
        self._resumed = resumed
        self.progress = resumed or Progress()
        self._recorders = recorders
        self._seconds_per_iteration: float | None = None
        self._seconds_of_call = 0.0
        self._num_iterations = 0
        self._best_before: dict[str, Any] | None = None
        self._steps_at_record = env_steps
        self._train_seconds_at_record = self._train_seconds_at_start = self.progress.train_seconds

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            for recorder in self._recorders:
                recorder.open(self._run, self._resumed.position if self._resumed else None)
            stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        with contextlib.ExitStack() as stack:
            for recorder in self._recorders:
                stack.callback(recorder.close)

    def compile(self, what: str, program: Compilable, *args: Any) -> None:
        """Compile a program unless it is compiled already, and report how long it took."""
        if program.is_ready(*args):
            return
        for recorder in self._recorders:
            recorder.compiling(what)
        seconds = program.compile(*args)
        self.progress.compile_seconds += seconds
        for recorder in self._recorders:
            recorder.compiled(what, seconds)

    def iterations_within(self, seconds: float) -> int:
        """Estimate how many iterations take `seconds`."""
        if jax.process_count() > 1:
            return UNLIMITED  # all processes must run the same iterations
        if self._seconds_per_iteration is None:
            return FIRST_CALL
        return min(max(1, int(seconds / self._seconds_per_iteration)), UNLIMITED)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Measure the time of some iterations; call `advance` afterwards."""
        start = self._clock()
        try:
            yield
        except NotFiniteError as error:
            divergence = Divergence(self._run.seeds[0], self.progress.env_steps, str(error))
            raise self.diverged_error(divergence) from error
        self._seconds_of_call = self._clock() - start
        self.progress.train_seconds += self._seconds_of_call

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Measure the time of an evaluation."""
        start = self._clock()
        yield
        self.progress.evaluate_seconds += self._clock() - start

    def advance(self, env_steps: int, num_iterations: int) -> None:
        """Report the env steps reached, and the iterations since the last call."""
        self._seconds_per_iteration = max(self._seconds_of_call / max(num_iterations, 1), 1e-9)
        self._num_iterations += num_iterations
        self.progress.env_steps = env_steps
        for recorder in self._recorders:
            recorder.advance(env_steps)

    def find_divergences(
        self, env_steps: Sequence[int], metrics: RunningMetrics, has_finite_params: Sequence[bool]
    ) -> list[Divergence]:
        """Return the seeds whose metrics or parameters are not finite."""
        metrics, found = jax.device_get(metrics), []
        if all(has_finite_params) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(metrics)):
            return []
        for index, seed in enumerate(self._run.seeds):
            if reason := find_divergence(values_of_seed(metrics, index), has_finite_params[index]):
                found.append(Divergence(seed, env_steps[index], reason))
        return found

    def mark_diverged(self, divergences: Iterable[Divergence]) -> list[Divergence]:
        """Mark the rows of these seeds from now on; return those that were not marked before."""
        new = [divergence for divergence in divergences if divergence.seed not in self.progress.diverged]
        self.progress.diverged |= {divergence.seed: divergence.env_steps for divergence in new}
        return new

    def diverged_error(self, last: Divergence) -> DivergedError:
        """Return the error that ends a run whose seeds have all diverged."""
        return diverged_error(last, len(self._run.seeds), self._directory)

    def record(
        self, counts: Mapping[str, list[Any]], metrics: RunningMetrics, evaluation: Mapping[str, Any]
    ) -> list[dict[str, float]]:
        """Record one row per seed and return the rows; metrics without a value are omitted."""
        progress, env_steps = self.progress, counts["time/total_timesteps"]
        train_seconds = progress.train_seconds
        speed = (sum(env_steps) - self._steps_at_record) / (train_seconds - self._train_seconds_at_record)
        metrics, evaluation = jax.device_get((dict(metrics), dict(evaluation)))
        rows = []
        for index, seed in enumerate(self._run.seeds):
            row: dict[str, float] = {"seed": seed, **{name: count[index] for name, count in counts.items()}}
            row |= values_of_seed(metrics, index)
            row |= {name: float(np.ravel(value)[index]) for name, value in evaluation.items()}
            row |= {DIVERGED: 1.0} if seed in progress.diverged else {}
            if MEAN_REWARD in evaluation and np.isfinite(row[MEAN_REWARD]):
                progress.evaluations[seed] = {"env_steps": env_steps[index], MEAN_REWARD: row[MEAN_REWARD]}
            rows.append(row | {"time/fps": speed, "time/time_elapsed": progress.elapsed_seconds})
        for recorder in self._recorders:
            recorder.record(rows)
        progress.num_records += 1
        progress.recorded_steps = tuple(env_steps)
        self._steps_at_record, self._train_seconds_at_record = sum(env_steps), train_seconds
        return rows

    def note_best(self, metric: str, rows: Sequence[Mapping[str, float]]) -> bool:
        """Return whether the rows of a record have the highest mean of a metric so far, and remember it."""
        values = [row[metric] for row in rows if metric in row and DIVERGED not in row]
        mean, best = float(np.mean(values)) if values else float("nan"), self.progress.best
        is_best = np.isfinite(mean) and (best is None or best["metric"] != metric or mean > best["value"])
        if is_best:
            self._best_before = best
            self.progress.best = {"metric": metric, "value": mean, "step": self.progress.env_steps}
        return bool(is_best)

    def forget_best(self, step: int) -> None:
        """Return to the best evaluation before, because the best at `step` has no checkpoint."""
        if self.progress.best_step == step:
            self.progress.best = self._best_before

    @property
    def consequence(self) -> str:
        """What a stopped run leaves behind, for the error message."""
        if self._directory is None:
            return "the exception has the state, which is not on disk, because there is no run_dir"
        command = f"rookery resume {shlex.quote(str(self._directory.path))}"
        return f"saved at {self.progress.env_steps:,} steps, continue with `{command}`"

    def sync(self) -> None:
        """Flush all records to disk."""
        for recorder in self._recorders:
            recorder.sync()

    def finish(self, collect_seconds: float | None, message: str = "") -> None:
        """Report that training is complete, show `message` and write `timing.json`.

        `collect_seconds` is the average time that an iteration spends on collecting experience.
        """
        directory, num_seeds = self._directory, len(self._run.seeds)
        if directory is not None and (self._seconds_per_iteration or not directory.timing_path.exists()):
            timing: dict[str, float] = {
                "env_steps": round(self._steps_at_record / num_seeds),
                "num_seeds": num_seeds,
            }
            timing |= {name: value for name, value in asdict(self.progress).items() if name.endswith("_seconds")}
            if collect_seconds is not None and self._num_iterations > 0:
                train_seconds = self.progress.train_seconds - self._train_seconds_at_start
                timing["collect_share"] = min(1.0, collect_seconds * self._num_iterations / train_seconds)
            write_atomically(directory.timing_path, json.dumps(timing, indent=2) + "\n")
        for recorder in self._recorders:
            recorder.finish(message)
