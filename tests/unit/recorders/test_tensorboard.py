"""TensorBoard events, read back frame by frame with tensorboardX's protocol buffers."""

import math
import os
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog

from rookery.recorders import Position, RunDescription
from rookery.recorders.tensorboard import TensorBoardRecorder

Curves = dict[str, list[tuple[int, float]]]


def describe(directory: Path, seeds: tuple[int, ...] = (0,)) -> RunDescription:
    return RunDescription("a run", 1000, seeds, directory, {})


def read_events(path: Path) -> Iterator[Event]:
    data = path.read_bytes()
    while data:
        (size,) = struct.unpack_from("<Q", data)
        if len(data) < size + 16:
            return  # torn by a kill
        yield Event.FromString(data[12 : 12 + size])
        data = data[size + 16 :]


def read_curves(folder: Path) -> Curves:
    """Read a folder as the strictest of TensorBoard's readers does.

    Files are read in the order of their names; the start of a session purges its step and later ones, except for the
    first start of a folder, which purges nothing.
    """
    curves: Curves = defaultdict(list)
    seen_start = False
    for path in sorted(folder.glob("*tfevents*")):
        for event in read_events(path):
            if event.session_log.status == SessionLog.START:
                if seen_start:
                    for curve in curves.values():
                        curve[:] = [point for point in curve if point[0] < event.step]
                seen_start = True
            for value in event.summary.value:
                curves[value.tag].append((event.step, value.simple_value))
    return dict(curves)


def make_row(env_steps: int, seed: int = 0, loss: float = 0.5) -> dict[str, float]:
    return {"seed": seed, "time/total_timesteps": env_steps, "train/loss": loss}


def record_losses(recorder: TensorBoardRecorder, losses: dict[int, float]) -> None:
    for env_steps, loss in losses.items():
        recorder.record([make_row(env_steps, loss=loss)])


def test_curves_are_over_env_steps_and_neither_seed_nor_env_steps_are_curves(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder()
    recorder.open(describe(tmp_path))
    recorder.record([make_row(2**33, loss=np.float32(0.5)) | {"eval/mean_reward": math.nan}])
    recorder.record([make_row(2**34, loss=0.25)])
    recorder.close()
    curves = read_curves(tmp_path / "tensorboard")
    assert curves["train/loss"] == [(2**33, 0.5), (2**34, 0.25)]
    ((step, value),) = curves["eval/mean_reward"]
    assert step == 2**33
    assert math.isnan(value)
    assert curves.keys() == {"train/loss", "eval/mean_reward"}


def test_the_file_is_framed_as_the_library_would_frame_it(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder()
    recorder.open(describe(tmp_path), Position(num_records=1, env_steps=5))
    record_losses(recorder, {10: 0.5, 20: 0.25})
    recorder.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    events = list(read_events(path))
    assert events[0].file_version == "brain.Event:2"
    library = RecordWriter(str(tmp_path / "library"))
    for event in events:
        library.write(event.SerializeToString())
    library.close()
    assert path.read_bytes() == (tmp_path / "library").read_bytes()


def test_a_value_that_float32_cannot_hold_is_infinite(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder()
    recorder.open(describe(tmp_path))
    record_losses(recorder, {0: 1e300, 300: -1e300})
    recorder.close()
    assert read_curves(tmp_path / "tensorboard") == {"train/loss": [(0, math.inf), (300, -math.inf)]}


def test_an_installed_pytorch_is_not_imported_to_train_and_record(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("print('torch is imported')")
    code = (
        "import rookery.cli.training, rookery.algorithms.ppo\n"
        "from rookery.recorders import make_recorder\n"
        "for name in ('console', 'jsonl', 'tensorboard'): make_recorder(name)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_seeds_that_stand_at_different_steps_are_each_resumed_where_they_were(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder()
    recorder.open(describe(tmp_path, seeds=(0, 1)))
    recorder.record([make_row(50, seed=0, loss=0.5), make_row(10, seed=1, loss=0.25)])
    recorder.record([make_row(90, seed=0, loss=0.1), make_row(20, seed=1, loss=0.1)])
    recorder.close()
    recorder.open(describe(tmp_path, seeds=(0, 1)), Position(num_records=1, env_steps=10, recorded_steps=(50, 10)))
    recorder.record([make_row(95, seed=0, loss=0.2), make_row(25, seed=1, loss=0.2)])
    recorder.close()
    assert read_curves(tmp_path / "tensorboard" / "seed_0")["train/loss"] == [(50, 0.5), (95, pytest.approx(0.2))]
    assert read_curves(tmp_path / "tensorboard" / "seed_1")["train/loss"] == [(10, 0.25), (25, pytest.approx(0.2))]


def test_several_seeds_have_a_folder_each(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder()
    recorder.open(describe(tmp_path, seeds=(3, 4)))
    recorder.record([make_row(10, seed=3, loss=0.5), make_row(10, seed=4, loss=0.25)])
    recorder.close()
    assert read_curves(tmp_path / "tensorboard" / "seed_3") == {"train/loss": [(10, 0.5)]}
    assert read_curves(tmp_path / "tensorboard" / "seed_4") == {"train/loss": [(10, 0.25)]}


def test_an_event_is_in_the_file_before_the_recorder_is_closed(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder()
    recorder.open(describe(tmp_path))
    record_losses(recorder, {10: 0.5})
    assert read_curves(tmp_path / "tensorboard") == {"train/loss": [(10, 0.5)]}
    recorder.sync()
    recorder.close()


@pytest.mark.parametrize("num_kills", [1, 2])
def test_a_run_killed_and_resumed_within_a_second_shows_the_curve_of_the_uninterrupted_one(
    tmp_path: Path, num_kills: int
) -> None:
    folder = tmp_path / "tensorboard"
    recorder = TensorBoardRecorder()
    recorder.open(describe(tmp_path))
    record_losses(recorder, {10: 1.0, 20: 0.5})
    for _ in range(num_kills):
        record_losses(recorder, {30: 99.0, 40: 99.0})
        recorder.close()
        newest = max(folder.iterdir())
        newest.write_bytes(newest.read_bytes()[:-7])
        recorder.open(describe(tmp_path), Position(num_records=2, env_steps=20))
    record_losses(recorder, {30: 0.25, 40: 0.125})
    recorder.close()
    assert read_curves(folder) == {"train/loss": [(10, 1.0), (20, 0.5), (30, 0.25), (40, 0.125)]}


def test_a_clock_that_is_set_back_does_not_change_the_order_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = TensorBoardRecorder()
    for now, host, losses in [(2e9, "b", {10: 1.0, 20: 99.0}), (1.9e9, "a", {20: 0.5}), (1.9e9, "0", {30: 0.25})]:
        monkeypatch.setattr("time.time", lambda now=now: now)
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        first = min(losses)
        recorder.open(describe(tmp_path), Position(first // 10 - 1, first - 10) if first > 10 else None)
        record_losses(recorder, losses)
        recorder.close()
    assert read_curves(tmp_path / "tensorboard") == {"train/loss": [(10, 1.0), (20, 0.5), (30, 0.25)]}
