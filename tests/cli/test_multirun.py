"""`rookery train --multirun`."""

import signal
from pathlib import Path
from typing import Any

import jax
import pytest

from rookery import cli
from rookery.cli import multirun, training
from rookery.cli.multirun import directory_name
from rookery.runs.directory import RunDirectory
from rookery.runs.divergence import DivergedError
from rookery.runs.interruption import Interrupted
from rookery.workflows import programs
from tests.report_runs import write_run


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the commands where they can leave things, at a time that is known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda format: "20250102-030405")
    return tmp_path


def test_every_combination_is_trained_and_a_failure_does_not_stop_the_others(
    small: list[str], working_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *small, "-m", "agent.rollout_length=0,4", "seed=7,8"]) == 1
    folder = working_directory / "multirun" / "20250102-030405"
    made = ["2-agent.rollout_length=4-seed=7", "3-agent.rollout_length=4-seed=8"]
    assert sorted(path.name for path in folder.iterdir()) == made
    assert [RunDirectory.open(folder / name).config["seed"] for name in made] == [7, 8]

    output = capsys.readouterr().out
    assert output.count("failed: agent.rollout_length=0 must be an integer of at least 1.\n") == 2
    heading, *rows = output.splitlines()[-5:]
    assert heading == "4 runs in multirun/20250102-030405"
    returns = [training.describe_results(RunDirectory.open(folder / name)) for name in made]
    assert [row.split() for row in rows] == [
        ["0-agent.rollout_length=0-seed=7", "failed"],
        ["1-agent.rollout_length=0-seed=8", "failed"],
        [made[0], returns[0]],
        [made[1], returns[1]],
    ]


def test_a_run_that_diverges_does_not_stop_the_others(
    working_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: dict[str, Any], console: Any, ray: None) -> RunDirectory:
        if config["seed"] == 1:
            raise DivergedError("seed 1 diverged at 16 env steps: train/loss is nan.")
        return write_run(Path(config["run_dir"]), [{"seed": 2, "time/total_timesteps": 9, "eval/mean_reward": 7.5}])

    monkeypatch.setattr(multirun, "train", train)
    assert cli.main(["train", "--multirun", "seed=1,2"]) == 1
    output = capsys.readouterr().out
    assert "failed: seed 1 diverged at 16 env steps: train/loss is nan.\n" in output
    assert [line.split() for line in output.splitlines()[-2:]] == [["0-seed=1", "diverged"], ["1-seed=2", "7.50"]]


def test_runs_that_differ_in_a_number_share_their_programs(
    small: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_shared", type(programs._shared)())
    with jax.log_compiles():
        assert cli.main(["train", *small, "-m", "agent.learning_rate=1e-3,1e-4"]) == 0
    finished = [record.getMessage() for record in caplog.records if "Finished XLA compilation" in record.getMessage()]
    for program in ("advance", "evaluate"):
        assert len([text for text in finished if f"jit({program})" in text]) == 1


def test_a_name_that_does_not_exist_is_an_error_before_the_first_run(
    working_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "--multirun", "agent=ppo,pppo"]) == 2
    assert capsys.readouterr().err == "rookery: error: unknown agent 'pppo'. Did you mean 'ppo'?\n"
    assert list(working_directory.iterdir()) == []


def test_one_run_directory_for_many_runs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--multirun", "seed=1,2", "run_dir=a"]) == 2
    assert "run_dir cannot be set for several runs" in capsys.readouterr().err


def test_a_signal_stops_the_whole_series(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started = []

    def train(config: dict[str, Any], console: Any, ray: None) -> RunDirectory:
        started.append(config["seed"])
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(multirun, "train", train)
    assert cli.main(["train", "--multirun", "seed=1,2"]) == 143
    assert started == [1]
    assert capsys.readouterr().err == "rookery: stopped by SIGTERM.\n"


def test_a_failure_shows_its_traceback_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: dict[str, Any], console: Any, ray: None) -> RunDirectory:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(multirun, "train", train)
    assert cli.main(["train", "--multirun", "seed=1,2", "--debug"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("Traceback") == 2
    assert captured.out.count("failed: RuntimeError: out of luck\n") == 2


def test_directories_have_names_that_every_shell_takes() -> None:
    assert directory_name(3, []) == "3"
    assert directory_name(0, ["env=classic/cartpole", "agent.network.hidden_sizes=[64,64]"]) == (
        "0-env=classic-cartpole-agent.network.hidden_sizes=-64-64"
    )
    assert len(directory_name(0, ["a=" + "b" * 300])) == 100
