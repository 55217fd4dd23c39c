"""The W&B recorder against a stand-in for the library that checks what it is given, as the library does."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.errors import InvalidInputError, MissingExtraError
from rookery.recorders import Position, Recorder, RunDescription, make_recorder


class FakeRun:
    """A W&B run: its steps only grow, also over resumptions; after `finish` it takes nothing."""

    def __init__(self) -> None:
        self.history: list[tuple[int, dict[str, float]]] = []
        self.exit_codes: list[int] = []
        self.is_active = True

    @property
    def step(self) -> int:
        return self.history[-1][0] + 1 if self.history else 0

    def log(self, data: dict[str, float], step: int, commit: bool) -> None:
        assert self.is_active
        assert commit
        assert step >= self.step, "W&B ignores steps that do not grow"
        self.history.append((step, data))

    def finish(self, exit_code: int) -> None:
        self.is_active = False
        self.exit_codes.append(exit_code)


class FakeWandb(types.ModuleType):
    """The part of the library that we use."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: dict[str, FakeRun] = {}
        self.calls: list[dict[str, Any]] = []
        self.Settings = lambda **settings: settings
        self.has_account = True

    def init(self, **arguments: Any) -> FakeRun:
        if not self.has_account:
            raise self.Error("No API key configured.")
        self.calls.append(arguments)
        run = self.runs.setdefault(arguments["id"], FakeRun())
        run.is_active = True
        return run


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWandb]:
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return module


def open_recorder(directory: Path | None, num_seeds: int = 1, resumed_from: Position | None = None) -> Recorder:
    recorder = make_recorder("wandb")
    config = {"agent": {"name": "ppo"}}
    recorder.open(RunDescription("ppo on x", 100, tuple(range(num_seeds)), directory, config), resumed_from)
    return recorder


def make_row(env_steps: int, seed: int = 0) -> dict[str, float]:
    return {"seed": seed, "time/total_timesteps": env_steps, "train/loss": 0.5 + seed}


def test_without_the_library_the_error_holds_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rookery\[wandb\]'"):
        make_recorder("wandb")


def test_metrics_are_sent_over_env_steps_with_the_config(wandb: FakeWandb, tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path)
    recorder.record([make_row(10)])
    recorder.record([make_row(20)])
    (run,) = wandb.runs.values()
    assert run.history == [(10, {"train/loss": 0.5}), (20, {"train/loss": 0.5})]
    assert wandb.calls[0]["config"] == {"agent": {"name": "ppo"}}
    assert wandb.calls[0]["project"] == "rookery"
    recorder.close()


def test_several_seeds_are_told_apart_by_name(wandb: FakeWandb, tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path, num_seeds=2)
    recorder.record([make_row(10, seed) for seed in range(2)])
    (run,) = wandb.runs.values()
    assert run.history == [(10, {"seed_0/train/loss": 0.5, "seed_1/train/loss": 1.5})]
    recorder.close()


def test_a_resumed_run_keeps_its_id_and_sends_no_record_twice(wandb: FakeWandb, tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path)
    for env_steps in (10, 20, 30):
        recorder.record([make_row(env_steps)])
    recorder.close()
    recorder = open_recorder(tmp_path, resumed_from=Position(num_records=1, env_steps=10))
    for env_steps in (20, 30, 40):
        recorder.record([make_row(env_steps)])
    recorder.close()
    ((run_id, run),) = wandb.runs.items()
    assert [step for step, _ in run.history] == [10, 20, 30, 40]
    assert (tmp_path / "wandb_id").read_text() == run_id
    assert {call["resume"] for call in wandb.calls} == {"allow"}


def test_runs_of_two_directories_are_two_runs(wandb: FakeWandb, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        open_recorder(tmp_path / name).close()
    assert len(wandb.runs) == 2


def test_a_run_that_did_not_finish_is_marked_as_failed(wandb: FakeWandb, tmp_path: Path) -> None:
    open_recorder(tmp_path).close()
    recorder = open_recorder(tmp_path, resumed_from=Position(0, 0))
    recorder.finish("done")
    recorder.close()
    recorder.close()
    (run,) = wandb.runs.values()
    assert run.exit_codes == [1, 0]


def test_without_an_account_the_error_says_how_to_do_without(wandb: FakeWandb, tmp_path: Path) -> None:
    wandb.has_account = False
    with pytest.raises(InvalidInputError, match=r"No API key configured.*WANDB_MODE=offline"):
        open_recorder(tmp_path)
