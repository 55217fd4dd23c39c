"""The log of a run: progress, durations and records, passed to the recorders."""

import contextlib
import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

import jax
import numpy as np

from rookery.metrics import Mean
from rookery.runs.directory import RunDirectory
from rookery.runs.files import write_atomically
from rookery.runs.recorder import Position, Recorder, RunDescription

SECONDS_AHEAD = "time/seconds_ahead"
"""The metric of the time spent on collecting env steps that are not counted yet."""
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

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        return cls(**{**mapping, "recorded_steps": tuple(mapping.get("recorded_steps", ()))})

    @property
    def position(self) -> Position:
        return Position(self.num_records, self.env_steps, self.recorded_steps)

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

    `env_steps` of all seeds together and `iterations` of each seed are the counts at the start.
    """

    def __init__(
        self,
        run: RunDescription,
        recorders: Sequence[Recorder],
        resumed: Progress | None,
        env_steps: int,
        iterations: int,
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
        self._iterations = self._iterations_at_start = iterations
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
        yield
        self._seconds_of_call = self._clock() - start
        self.progress.train_seconds += self._seconds_of_call

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Measure the time of an evaluation."""
        start = self._clock()
        yield
        self.progress.evaluate_seconds += self._clock() - start

    def advance(self, env_steps: int, iterations: int) -> None:
        """Report the env steps and iterations reached."""
        self._seconds_per_iteration = max(self._seconds_of_call / max(iterations - self._iterations, 1), 1e-9)
        self._iterations = iterations
        self.progress.env_steps = env_steps
        for recorder in self._recorders:
            recorder.advance(env_steps)

    def record(
        self, counts: Mapping[str, list[Any]], metrics: Mapping[str, Mean], evaluation: Mapping[str, Any]
    ) -> None:
        """Record one row per seed; means without samples are omitted.

        Time spent on collecting steps ahead belongs to the next record, which counts these steps.
        """
        progress, env_steps = self.progress, counts["time/total_timesteps"]
        train_seconds = progress.train_seconds - sum(counts.get(SECONDS_AHEAD, []))
        speed = (sum(env_steps) - self._steps_at_record) / (train_seconds - self._train_seconds_at_record)
        metrics, evaluation = jax.device_get((dict(metrics), dict(evaluation)))
        rows = []
        for index, seed in enumerate(self._run.seeds):
            row: dict[str, float] = {"seed": seed, **{name: count[index] for name, count in counts.items()}}
            for name, mean in metrics.items():
                total, weight = np.ravel(mean.total)[index], np.ravel(mean.weight)[index]
                if weight > 0:
                    row[name] = float(total / weight)
            row |= {name: float(np.ravel(value)[index]) for name, value in evaluation.items()}
            rows.append(row | {"time/fps": speed, "time/time_elapsed": progress.elapsed_seconds})
        for recorder in self._recorders:
            recorder.record(rows)
        progress.num_records += 1
        progress.recorded_steps = tuple(env_steps)
        self._steps_at_record, self._train_seconds_at_record = sum(env_steps), train_seconds

    @property
    def consequence(self) -> str:
        """What a stopped run leaves behind, for the error message."""
        if self._directory is None:
            return "nothing was saved, because there is no run_dir"
        command = f"rookery resume {shlex.quote(str(self._directory.path))}"
        return f"saved at {self.progress.env_steps:,} steps, continue with `{command}`"

    def sync(self) -> None:
        """Flush all records to disk."""
        for recorder in self._recorders:
            recorder.sync()

    def finish(self, collect_seconds: float | None) -> None:
        """Report that training is complete and write `timing.json`.

        `collect_seconds` is the average time that an iteration spends on collecting experience.
        """
        directory, num_seeds = self._directory, len(self._run.seeds)
        if directory is not None and (self._seconds_per_iteration or not directory.timing_path.exists()):
            timing: dict[str, float] = {
                "env_steps": round(self._steps_at_record / num_seeds),
                "num_seeds": num_seeds,
            }
            timing |= {name: value for name, value in asdict(self.progress).items() if name.endswith("_seconds")}
            num_iterations = self._iterations - self._iterations_at_start
            if collect_seconds is not None and num_iterations > 0:
                train_seconds = self.progress.train_seconds - self._train_seconds_at_start
                timing["collect_share"] = min(1.0, collect_seconds * num_iterations / train_seconds)
            write_atomically(directory.timing_path, json.dumps(timing, indent=2) + "\n")
        for recorder in self._recorders:
            recorder.finish("")
