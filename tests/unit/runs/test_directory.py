"""The run directory: what is written, who may write, and what is said of a folder that is no run."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rookery.errors import InvalidInputError
from rookery.runs import directory, files
from rookery.runs.directory import RunDirectory, RunInUseError, make_new_folder
from rookery.runs.files import write_atomically

CONFIG: dict[str, Any] = {
    "agent": {"name": "ppo", "learning_rate": 3e-4, "epsilon": 1e-8, "network": {"hidden_sizes": [64, 64]}},
    "env": {"name": "classic/cartpole", "episode_length": None, "kwargs": {}},
    "looks_like_another_type": ["on", "null", "0x10", "3", "2026-01-01", "${oc.env:HOME}", "a: b", ""],
    "numbers": [0, -1, 10**12, 1e16, 0.1, float("inf")],
    "title": "Äffchen 🐒",
}


def create(path: Path) -> RunDirectory:
    """A run that stands complete on disk."""
    return RunDirectory.create(path, CONFIG, backend="cpu", devices=["TFRT_CPU_0"])


def test_the_config_comes_back_as_it_was_written(tmp_path: Path) -> None:
    create(tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").config == CONFIG


def test_another_reader_of_yaml_finds_the_same_config(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    assert OmegaConf.to_container(OmegaConf.load(run.config_path), resolve=False) == CONFIG


def test_the_manifest_says_what_the_run_ran_on(tmp_path: Path) -> None:
    manifest = create(tmp_path / "run").manifest
    assert manifest["format_version"] == directory.FORMAT_VERSION
    assert (manifest["backend"], manifest["devices"]) == ("cpu", ["TFRT_CPU_0"])
    assert manifest["command"] == sys.argv
    assert manifest["versions"]["jax"] == version("jax")
    assert manifest["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert datetime.fromisoformat(manifest["created"]).utcoffset() == timedelta(0)


def test_a_folder_that_holds_a_run_is_not_used_for_another(tmp_path: Path) -> None:
    create(tmp_path / "a run")
    with pytest.raises(InvalidInputError, match=r"already contains a run.*rookery resume '.*a run'.*another run_dir"):
        RunDirectory.create(tmp_path / "a run", {"seed": 1})
    assert RunDirectory.open(tmp_path / "a run").config == CONFIG


def test_a_run_may_start_in_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    create(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_killed_before_its_config_was_written_can_be_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_before_config(path: Path, text: str) -> None:
        if path.name == "config.yaml":
            raise KeyboardInterrupt
        write_atomically(path, text)

    monkeypatch.setattr(directory, "write_atomically", killed_before_config)
    with pytest.raises(KeyboardInterrupt):
        create(tmp_path / "run")
    with pytest.raises(InvalidInputError, match=r"holds no config\.yaml, only lock, manifest\.json"):
        RunDirectory.open(tmp_path / "run")
    monkeypatch.undo()
    assert create(tmp_path / "run").config == CONFIG


def test_a_place_where_no_folder_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match=r"cannot create the run directory .*file/run: Not a directory"):
        create(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rnus/ppo-cartpol", "rnus/ppo-cartpol is not a run directory: it does not exist."),
        ("runs/ppo-cartpol", "it does not exist. Did you mean runs/ppo-cartpole?"),
        (
            "runs",
            "it holds no config.yaml, only a2c-pendulum, ppo-cartpole. Did you mean runs/ppo-cartpole or runs/a2c",
        ),
        ("runs/ppo-cartpole/checkpoints", "it is empty. Did you mean runs/ppo-cartpole?"),
        ("runs/ppo-cartpole/config.yaml", "it is a file. Did you mean runs/ppo-cartpole?"),
    ],
)
def test_a_folder_that_is_no_run_is_described_with_the_run_that_may_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    older, newer = create(Path("runs/a2c-pendulum")), create(Path("runs/ppo-cartpole"))
    os.utime(older.config_path, (1, 1))
    newer.checkpoints_path.mkdir()
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        RunDirectory.open(given)


def test_a_run_of_a_newer_rookery_asks_for_an_update(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.manifest_path.write_text(json.dumps({**run.manifest, "format_version": directory.FORMAT_VERSION + 1}))
    with pytest.raises(
        InvalidInputError, match=rf"format version {directory.FORMAT_VERSION + 1}.*pip install --upgrade"
    ):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x00"])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    create(tmp_path).manifest_path.write_text(content)
    with pytest.raises(InvalidInputError, match=r"manifest\.json"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize("content", ["agent: [", "just text", "\x00", "", "!!python/object/apply:os.mkdir [executed]"])
def test_a_damaged_config_is_named_and_nothing_in_it_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = create(tmp_path)
    run.config_path.write_text(content)
    with pytest.raises(InvalidInputError, match=r"config\.yaml"):
        _ = run.config
    assert not Path("executed").exists()


HOLDER = """
import sys
from rookery.runs.directory import RunDirectory

with RunDirectory(sys.argv[1]).lock():
    print("locked", flush=True)
    sys.stdin.read()
"""


def hold_lock(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock when this returns, until its input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_second_process_is_refused_and_told_who_holds_the_run_until_that_one_is_killed(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    holder = hold_lock(run.path)
    with (
        pytest.raises(RunInUseError, match=rf"run is in use by process {holder.pid} on .* \(since 20\d\d-"),
        run.lock(),
    ):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=30)
    with run.lock():
        pass


def test_a_new_run_is_not_created_where_another_process_trains(tmp_path: Path) -> None:
    holder = hold_lock(tmp_path)
    with pytest.raises(RunInUseError, match=f"process {holder.pid}"):
        create(tmp_path)
    holder.communicate("", timeout=30)
    create(tmp_path)


def test_the_lock_is_freed_after_an_error_and_is_not_given_twice_to_one_process(tmp_path: Path) -> None:
    run = create(tmp_path)
    with pytest.raises(RunInUseError, match=f"process {os.getpid()}"), run.lock(), RunDirectory(tmp_path).lock():
        pass
    with run.lock():
        pass


def test_metrics_that_json_cannot_hold_come_back_as_numbers(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.metrics_path.write_text('{"seed": 0, "train/loss": "NaN"}\n{"seed": 1, "a": "Infinity", "b": "-Infinity"}\n')
    first, second = run.read_metrics()
    assert math.isnan(first["train/loss"])
    assert second == {"seed": 1, "a": math.inf, "b": -math.inf}


@pytest.mark.parametrize("torn", ["", "{", '{"seed": 0', '{"seed": 0}', '{"name": "Ä'])
def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path, torn: str) -> None:
    run = create(tmp_path)
    run.metrics_path.write_bytes(b'{"seed": 0}\n{"seed": 1}\n' + torn.encode()[: len(torn)])
    assert run.read_metrics() == [{"seed": 0}, {"seed": 1}]


@pytest.mark.parametrize("line", ["{", "[1]", ""])
def test_a_damaged_line_in_the_middle_is_left_out_and_named(tmp_path: Path, line: str) -> None:
    run = create(tmp_path)
    run.metrics_path.write_text(f'{{"seed": 0}}\n{line}\n{{"seed": 1}}\n')
    rows, left_out = run.read_records()
    assert rows == [{"seed": 0}, {"seed": 1}]
    assert left_out == ("lines that are not a JSON object: 1, first in line 2",)


def test_a_run_without_records_has_no_metrics_and_no_timing(tmp_path: Path) -> None:
    run = create(tmp_path)
    assert run.read_metrics() == []
    assert run.read_timing() is None
    write_atomically(run.timing_path, json.dumps({"train_seconds": 2.5}))
    assert run.read_timing() == {"train_seconds": 2.5}


def test_an_episode_that_is_no_gif_is_not_put_into_a_report(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, {})
    assert run.read_episode() is None
    run.episode_path.write_bytes(b"-----BEGIN PRIVATE KEY-----")
    with pytest.raises(InvalidInputError, match="is not a GIF"):
        run.read_episode()


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(path: Path) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr(files, "sync_to_disk", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_temporary_files_of_a_killed_process_are_deleted_under_the_lock(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", {})
    leftovers = [run.path / f"{path.name}.123.tmp" for path in (run.timing_path, run.config_path)]
    others = [run.path / "report.html.123.tmp", run.path / "mine.tmp"]
    for path in (*leftovers, *others):
        path.touch()
    with run.lock():
        assert not any(path.exists() for path in leftovers)
        assert all(path.exists() for path in others)


def test_a_new_folder_gets_the_next_free_number_and_its_place_is_named_if_there_is_none(tmp_path: Path) -> None:
    made = [make_new_folder(tmp_path / "runs" / "a").name for _ in range(3)]
    assert made == ["a", "a-2", "a-3"]
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match=r"cannot create the folder .*file/a: Not a directory"):
        make_new_folder(tmp_path / "file" / "a")
