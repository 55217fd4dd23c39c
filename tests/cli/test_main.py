"""The command as a whole: help, errors, exit codes."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rookery
from rookery import cli
from rookery.cli import doctor

COMMANDS = ("train", "resume", "evaluate", "report", "list", "check-env", "client", "bench", "doctor")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n    {command} " in text for command in COMMANDS)


@pytest.mark.parametrize("command", ["evaluate", "resume"])
def test_only_the_run_is_missing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main([command])
    assert "the following arguments are required: RUN; see" in capsys.readouterr().err


def test_without_a_command_the_help_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: rookery")


def test_the_module_runs_as_the_command_and_imports_no_optional_library(
    run_in_a_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    result = run_in_a_process("--version", PYTHONPROFILEIMPORTTIME="1")
    assert (result.returncode, result.stdout) == (0, f"rookery {rookery.__version__}\n")
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "rookery.cli" in imported
    assert imported.isdisjoint(
        {"brax", "gymnax", "jumanji", "gymnasium", "flax", "rich", "hydra", "optax", "orbax", "rookery.envs"}
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["list", "envs", "prob"], "unknown environment library 'prob'. Did you mean 'probe'"),
        (["list", "agents", "probe"], "libraries apply only to environments: rookery list envs probe"),
        (["check-env", "probe/conter"], "unknown environment 'probe/conter'. Did you mean 'probe/counter'"),
        (["check-env", "absent/thing"], "absent_package is not installed: pip install 'rookery[absent]'"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_exit_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], missing_library: str
) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"rookery: error: {message}")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [["--debug", "check-env", "probe/conter"], ["check-env", "probe/conter", "--debug"]],
    ids=["before", "after"],
)
def test_debug_shows_the_traceback(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("Traceback")
    assert "UnknownNameError: unknown environment 'probe/conter'" in captured.err


def test_an_error_sends_no_commands_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", "runs/\x1b[2J\x07"]) == 2
    assert "runs/?[2J? is not a run directory" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> dict[str, str]:
        raise KeyError("some\nthing")

    monkeypatch.setattr(doctor, "extras", fail)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr().err == "rookery: error: KeyError: 'some\\nthing' (--debug shows the traceback)\n"


def test_an_interrupt_ends_quietly(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> dict[str, str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "extras", interrupt)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "rookery: interrupted\n"


def test_closed_standard_streams_are_not_taken_for_files(
    small: list[str], tmp_path: Path, environment: dict[str, str]
) -> None:
    """The first file that opens would get the number of standard output, and all that is printed."""
    command = f"{shlex.quote(sys.executable)} -m rookery train {shlex.join(small)} run_dir=run >&- 2>&- <&-"
    assert subprocess.run(command, shell=True, env=environment, cwd=tmp_path).returncode == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["time/total_timesteps"] for line in lines] == [16, 32, 48, 64]


@pytest.mark.parametrize("output", ["full", "gone"])
def test_training_outlasts_its_standard_output(
    output: str, small: list[str], tmp_path: Path, environment: dict[str, str]
) -> None:
    read, write = os.pipe() if output == "gone" else (None, os.open("/dev/full", os.O_WRONLY))
    if read is not None:
        os.close(read)
    command = [sys.executable, "-m", "rookery", "train", *small, "run_dir=run"]
    result = subprocess.run(command, env=environment, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (result.returncode, result.stderr) == (0, b"")
    assert (tmp_path / "run" / "report.html").exists()


def test_a_reader_that_leaves_early_is_no_error(environment: dict[str, str]) -> None:
    command = [sys.executable, "-u", "-m", "rookery", "list", "envs", "probe"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
