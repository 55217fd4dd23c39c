"""What a run tells about itself while it trains: where it stands, how long things took, and the records."""

import contextlib
import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import jax
import numpy as np

from rookery.metrics import Mean
from rookery.recorders import Position, Recorder, RunDescription
from rookery.runs.directory import RunDirectory, write_atomically
from rookery.workflows.config import Settings
from rookery.workflows.programs import Program

SECONDS_AHEAD = "time/seconds_ahead"
"""The metric of the time that went into collecting steps which are not counted yet."""
FIRST_CALL = 1
"""Iterations of the first call of a program, by which its speed is measured."""
UNLIMITED = 2**31 - 1


@dataclass
class Progress:
    """Where a run stands: part of every checkpoint."""

    num_records: int = 0
    env_steps: int = 0
    compile_seconds: float = 0.0
    train_seconds: float = 0.0
    evaluate_seconds: float = 0.0
    recorded_steps: tuple[int, ...] = ()
    """The env steps of each seed at the last record."""

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


class RunLog(contextlib.AbstractContextManager):
    """Hands what happens to the recorders and keeps the time.

    `env_steps` are those that the state has seen at the start, over all seeds; `iterations` those of each.
    """

    def __init__(
        self,
        settings: Settings,
        recorders: list[Recorder],
        run: RunDirectory | None,
        resumed: Progress | None,
        env_steps: int,
        iterations: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._settings = settings
        self._run = run
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
        train = self._settings.train
        description = RunDescription(
            title=f"{self._settings.agent_name} on {train.env.name}",
            total_timesteps=train.total_timesteps,
            seeds=train.seeds,
            directory=None if self._run is None else self._run.path,
            config=self._settings.to_mapping(),
        )
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            for recorder in self._recorders:
                recorder.open(description, self._resumed.position if self._resumed else None)
            stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        with contextlib.ExitStack() as stack:
            for recorder in self._recorders:
                stack.callback(recorder.close)

    def compile(self, what: str, program: Program, *args: Any) -> None:
        """Compile a program now if that is still to be done, and tell how long it took."""
        if program.is_ready(*args):
            return
        for recorder in self._recorders:
            recorder.compiling(what)
        seconds = program.compile(*args)
        self.progress.compile_seconds += seconds
        for recorder in self._recorders:
            recorder.compiled(what, seconds)

    def iterations_within(self, seconds: float) -> int:
        """Return how many iterations take about so many seconds."""
        if jax.process_count() > 1:
            return UNLIMITED  # every process must do the same
        if self._seconds_per_iteration is None:
            return FIRST_CALL
        return min(max(1, int(seconds / self._seconds_per_iteration)), UNLIMITED)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Count the time of some iterations; `advance` is then told how many they were."""
        start = self._clock()
        yield
        self._seconds_of_call = self._clock() - start
        self.progress.train_seconds += self._seconds_of_call

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the time of an evaluation."""
        start = self._clock()
        yield
        self.progress.evaluate_seconds += self._clock() - start

    def advance(self, env_steps: int, iterations: int) -> None:
        """Tell how far the training has come."""
        self._seconds_per_iteration = max(self._seconds_of_call / max(iterations - self._iterations, 1), 1e-9)
        self._iterations = iterations
        self.progress.env_steps = env_steps
        for recorder in self._recorders:
            recorder.advance(env_steps)

    def record(
        self, counts: Mapping[str, list[Any]], metrics: Mapping[str, Mean], evaluation: Mapping[str, Any]
    ) -> None:
        """Make a record: one row per seed. A mean of nothing is left out.

        The time of collecting steps ahead, which the next record counts, belongs to that record.
        """
        progress, env_steps = self.progress, counts["time/total_timesteps"]
        train_seconds = progress.train_seconds - sum(counts.get(SECONDS_AHEAD, []))
        speed = (sum(env_steps) - self._steps_at_record) / (train_seconds - self._train_seconds_at_record)
        metrics, evaluation = jax.device_get((dict(metrics), dict(evaluation)))
        rows = []
        for index, seed in enumerate(self._settings.train.seeds):
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
        """What to tell the user of a run that was stopped before its end."""
        if self._run is None:
            return "nothing was saved, because there is no run_dir"
        command = f"rookery resume {shlex.quote(str(self._run.path))}"
        return f"saved at {self.progress.env_steps:,} steps, go on with `{command}`"

    def sync(self) -> None:
        """Make sure that what was recorded is on disk."""
        for recorder in self._recorders:
            recorder.sync()

    def finish(self, collect_seconds: float | None) -> None:
        """Tell that the training has ended, and write down how the time was spent.

        `collect_seconds` of an iteration were spent on gathering experience, on average.
        """
        if self._run is not None and (self._seconds_per_iteration or not self._run.timing_path.exists()):
            timing: dict[str, float] = {
                "env_steps": round(self._steps_at_record / self._settings.train.num_seeds),
                "num_seeds": self._settings.train.num_seeds,
            }
            timing |= {name: value for name, value in asdict(self.progress).items() if name.endswith("_seconds")}
            num_iterations = self._iterations - self._iterations_at_start
            if collect_seconds is not None and num_iterations > 0:
                train_seconds = self.progress.train_seconds - self._train_seconds_at_start
                timing["collect_share"] = min(1.0, collect_seconds * num_iterations / train_seconds)
            write_atomically(self._run.timing_path, json.dumps(timing, indent=2) + "\n")
        for recorder in self._recorders:
            recorder.finish("")
