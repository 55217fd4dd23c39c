"""Every recorder keeps the contract of `Recorder`."""

import copy
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.recorders import RECORDERS, Position, Recorder, RunDescription, make_recorder

ROWS = [
    {"seed": 0, "time/total_timesteps": 100, "rollout/ep_rew_mean": np.float32(1.5), "train/loss": jnp.float32(0.5)},
    {"seed": 1, "time/total_timesteps": 100, "train/loss": float("nan"), "eval/mean_reward": np.float64("-inf")},
]


class SilentWandb(types.ModuleType):
    """A stand-in for the library wandb that takes everything and keeps nothing."""

    Error = RuntimeError

    @staticmethod
    def Settings(**settings: object) -> None:  # noqa: N802
        pass

    @staticmethod
    def init(**arguments: object) -> types.SimpleNamespace:
        return types.SimpleNamespace(step=0, log=lambda *args, **kwargs: None, finish=lambda exit_code: None)


@pytest.fixture(params=RECORDERS)
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setitem(sys.modules, "wandb", SilentWandb("wandb"))
    return make_recorder(request.param)


def describe(directory: Path | None) -> RunDescription:
    return RunDescription("ppo on classic/cartpole", 1000, (0, 1), directory, {"seed": 0})


def live(recorder: Recorder, rows: list[dict[str, float]]) -> None:
    """Tell a recorder everything that can happen while a run lives."""
    recorder.compiling("training program")
    recorder.compiled("training program", 1.5)
    recorder.advance(50)
    recorder.record(rows)
    recorder.sync()


def test_takes_a_whole_run_and_leaves_the_rows_as_they_were(recorder: Recorder, tmp_path: Path) -> None:
    rows = copy.deepcopy(ROWS)
    recorder.open(describe(tmp_path))
    live(recorder, rows)
    recorder.finish("done")
    recorder.close()
    assert str(rows) == str(ROWS)


def test_can_be_closed_before_it_is_opened_and_twice(recorder: Recorder, tmp_path: Path) -> None:
    recorder.close()
    recorder.open(describe(tmp_path))
    recorder.close()
    recorder.close()


def test_a_run_that_failed_can_be_opened_again_where_it_was(recorder: Recorder, tmp_path: Path) -> None:
    recorder.open(describe(tmp_path))
    live(recorder, ROWS)
    recorder.close()
    recorder.open(describe(tmp_path), Position(num_records=1, env_steps=100))
    live(recorder, [row | {"time/total_timesteps": 200} for row in ROWS])
    recorder.close()


def test_without_a_directory_no_file_is_written(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorder.open(describe(None))
    live(recorder, ROWS)
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_an_array_as_a_metric_is_an_error_that_names_it(recorder: Recorder, tmp_path: Path) -> None:
    recorder.open(describe(tmp_path))
    with pytest.raises(InvalidInputError, match="metric 'rollout/ep_rew_mean' must be one number"):
        recorder.record([row | {"rollout/ep_rew_mean": np.zeros(2)} for row in ROWS])
    recorder.close()


def test_what_was_recorded_survives_a_kill_at_the_next_moment(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from rookery.recorders import RunDescription, make_recorder

recorders = [make_recorder(name) for name in ("jsonl", "tensorboard")]
for recorder in recorders:
    recorder.open(RunDescription("a run", 1000, (0,), Path({str(tmp_path)!r}), {{}}))
    recorder.record([{{"seed": 0, "time/total_timesteps": 100, "train/loss": 0.5}}])
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "JAX_PLATFORMS": "cpu"}, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes()
