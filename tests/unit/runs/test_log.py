"""The durations that a run reports, measured by a fake clock."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.recorders import Position, Recorder, RunDescription
from rookery.runs.directory import RunDirectory
from rookery.runs.log import Progress, RunLog
from tests.runner_envs import FakeTime


def describe(directory: Path | None) -> RunDescription:
    return RunDescription("a run", total_timesteps=1000, seeds=(0,), directory=directory, config={})


class RowRecorder(Recorder):
    """Keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, float]] = []

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        pass

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        self.rows += rows

    def close(self) -> None:
        pass


def train(log: RunLog, time: FakeTime, seconds: float, env_steps: int, num_iterations: int) -> None:
    with log.training():
        time.now += seconds
    log.advance(env_steps, num_iterations)


def test_a_resumed_run_is_measured_by_what_it_did_itself(tmp_path: Path) -> None:
    time, recorder, run = FakeTime(), RowRecorder(), RunDirectory(tmp_path)
    before = Progress(num_records=3, env_steps=500, train_seconds=1000.0)
    with RunLog(describe(tmp_path), [recorder], before, env_steps=500, clock=time.clock) as log:
        train(log, time, seconds=6.0, env_steps=700, num_iterations=2)
        train(log, time, seconds=2.0, env_steps=900, num_iterations=2)
        log.record({"time/total_timesteps": [900]}, {}, {})
        train(log, time, seconds=2.0, env_steps=1000, num_iterations=1)
        log.record({"time/total_timesteps": [1000]}, {}, {})
        log.finish(collect_seconds=0.5)
    assert [row["time/fps"] for row in recorder.rows] == [400 / 8, 100 / 2]
    timing: Any = run.read_timing()
    assert timing["train_seconds"] == 1010.0
    assert timing["collect_share"] == 5 * 0.5 / 10.0


def test_progress_is_read_back_from_the_metadata_of_a_checkpoint() -> None:
    evaluation = {"env_steps": 64, "eval/mean_reward": 5.0}
    progress = Progress(recorded_steps=(3, 4), diverged={7: 2}, evaluations={7: evaluation, 8: evaluation})
    assert Progress.from_mapping(json.loads(json.dumps(progress.to_mapping()))) == progress
    assert Progress.from_mapping({"num_records": 2}).evaluations == {}  # as older versions wrote it
