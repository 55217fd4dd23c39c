"""Files of a run directory: what is opened, what is refused, and that nothing outside is touched."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookery.errors import InvalidInputError
from rookery.recorders.appended_file import AppendedFile
from rookery.recorders.jsonl import keep_first_lines
from rookery.recorders.tensorboard import TensorBoardRecorder
from rookery.report import write_report
from rookery.runs import files
from rookery.runs.directory import RunDirectory
from rookery.runs.documents import read_json, read_yaml
from rookery.runs.files import UnsafeFileError, make_folder, open_inside, read_bytes, write_atomically, write_output
from rookery.runs.recorder import RunDescription

SECRET = "keep this\n" * 3


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that no run may read or change."""
    path = tmp_path / "outside.txt"
    path.write_text(SECRET)
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    config = {"agent": {"name": "ppo"}, "env": {"name": "classic/cartpole"}}
    return RunDirectory.create(tmp_path / "run", config, backend="cpu")


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def device(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def unix_socket(path: Path, outside: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(here)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("plant", [link, pipe, device, unix_socket, folder])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_APPEND])
def test_only_plain_files_are_opened(
    run: RunDirectory, outside: Path, plant: Callable[[Path, Path], None], flags: int
) -> None:
    plant(run.path / "file", outside)
    with pytest.raises(UnsafeFileError, match=r"run/file is a (link|pipe|socket|folder), expected a plain file"):
        open_inside(run.path, "file", flags)


@pytest.mark.parametrize(
    ("plant", "problem"),
    [(link, "symbolic links|Not a directory"), (pipe, "is a pipe, expected a plain file|Not a directory")],
)
@pytest.mark.parametrize("replaced", ["folder/file", "folder"])
def test_a_file_that_is_replaced_after_its_check_is_neither_followed_nor_waited_for(
    run: RunDirectory,
    outside: Path,
    plant: Callable[[Path, Path], None],
    problem: str,
    replaced: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (run.path / "folder").mkdir()
    (run.path / "folder" / "file").touch()
    check_kind = files._check_kind

    def check_and_replace(folder: Path, name: str, *others: Any) -> None:
        check_kind(folder, name, *others)
        if name == replaced:
            (run.path / name).rename(run.path / "before")
            plant(run.path / name, outside if name != "folder" else outside.parent)

    monkeypatch.setattr(files, "_check_kind", check_and_replace)
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for the other end of a pipe"))
    signal.alarm(10)
    with pytest.raises((OSError, UnsafeFileError), match=problem):
        read_bytes(run.path, "folder/file")
    signal.alarm(0)


@pytest.mark.parametrize("name", ["../outside.txt", "/dev/zero", "a/../../outside.txt", "", ".", "a\0b"])
def test_a_name_that_leaves_the_folder_is_refused(run: RunDirectory, outside: Path, name: str) -> None:
    with pytest.raises(UnsafeFileError, match="is not the name of a file inside"):
        read_bytes(run.path, name)


def test_a_linked_folder_on_the_way_is_refused(run: RunDirectory, outside: Path) -> None:
    (run.path / "checkpoints").symlink_to(outside.parent)
    with pytest.raises(UnsafeFileError, match="checkpoints is a link, expected a folder"):
        read_bytes(run.path, "checkpoints/outside.txt")
    with pytest.raises(UnsafeFileError, match="checkpoints is a link, expected a folder"):
        make_folder(run.path, "checkpoints/new")
    assert not (outside.parent / "new").exists()


def test_the_run_directory_itself_may_be_a_link(run: RunDirectory) -> None:
    latest = run.path.with_name("latest")
    latest.symlink_to(run.path)
    assert RunDirectory.open(latest).config == run.config


def test_a_file_with_a_second_name_is_read_but_not_changed(run: RunDirectory, outside: Path) -> None:
    os.link(outside, run.metrics_path)
    assert read_bytes(run.path, "metrics.jsonl") == SECRET.encode()
    with pytest.raises(UnsafeFileError, match="hard link"):
        keep_first_lines(run.metrics_path, 1)
    assert outside.read_text() == SECRET


def test_a_large_file_is_refused_before_it_is_read(run: RunDirectory) -> None:
    with open(run.path / "config.yaml", "wb") as file:
        file.truncate(2**40)  # takes no space
    with pytest.raises(UnsafeFileError, match="more than 65,536 bytes"):
        _ = run.config


def test_a_linked_lock_is_not_emptied(run: RunDirectory, outside: Path) -> None:
    run.lock_path.unlink()
    run.lock_path.symlink_to(outside)
    with pytest.raises(UnsafeFileError, match="lock is a link"), run.lock():
        pass
    assert outside.read_text() == SECRET


def test_linked_records_are_neither_cut_nor_continued(run: RunDirectory, outside: Path) -> None:
    run.metrics_path.symlink_to(outside)
    with pytest.raises(UnsafeFileError, match="is a link"):
        keep_first_lines(run.metrics_path, 1)
    with pytest.raises(UnsafeFileError, match="is a link"):
        AppendedFile(run.metrics_path)
    with pytest.raises(UnsafeFileError, match="is a link"):
        run.read_metrics()
    assert outside.read_text() == SECRET


def test_a_linked_episode_is_not_read(run: RunDirectory, outside: Path) -> None:
    outside.write_bytes(b"GIF89a")
    run.episode_path.symlink_to(outside)
    with pytest.raises(UnsafeFileError, match=r"episode\.gif is a link"):
        run.read_episode()


def test_events_are_not_written_through_a_linked_folder(run: RunDirectory, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run.tensorboard_path.symlink_to(elsewhere)
    with pytest.raises(UnsafeFileError, match="tensorboard is a link"):
        TensorBoardRecorder().open(RunDescription("", 1, (0,), run.path, {}))
    assert not list(elsewhere.iterdir())


def test_a_written_file_replaces_a_link_and_its_temporary_file_follows_none(tmp_path: Path, outside: Path) -> None:
    target = tmp_path / "report.html"
    target.symlink_to(outside)
    target.with_name(f"report.html.{os.getpid()}.tmp").symlink_to(outside)
    write_atomically(target, "page")
    assert (target.read_text(), target.is_symlink(), outside.read_text()) == ("page", False, SECRET)


def test_an_output_that_is_a_link_is_written_in_place(tmp_path: Path, outside: Path) -> None:
    target = tmp_path / "page.html"
    target.symlink_to(outside)
    write_output(target, "page")
    assert target.is_symlink()
    assert outside.read_text() == "page"


def test_an_output_that_is_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    target, received = tmp_path / "pipe", []
    os.mkfifo(target)
    reader = threading.Thread(target=lambda: received.append(target.read_text()))
    reader.start()
    write_output(target, "page")
    reader.join(timeout=30)
    assert received == ["page"]
    assert target.is_fifo()


def test_the_report_in_a_run_directory_replaces_a_link(run: RunDirectory, outside: Path) -> None:
    run.report_path.symlink_to(outside)
    write_report([run], run.report_path)
    assert run.report_path.read_text().startswith("<!doctype html>")
    assert outside.read_text() == SECRET


def aliases(num_levels: int) -> str:
    levels = ["a0: &a0 [1, 1, 1]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, num_levels)]
    return "\n".join(levels)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (aliases(12), "more than 20,000 entries"),
        ("a0: &a0 {x: 1}\na1: {<<: [*a0, *a0]}", "merge keys"),
        ("&a [*a]", "nested more than 32 deep"),
        ("[" * 20_000, "nested more than 32 deep"),
        ("a: " + "9" * 5_000, "4300 digits"),
        ("a: 0x" + "f" * 5_000, "more than 1000 bits"),
        ("a: 2001-99-99", "month must be in"),
        ("? !!binary aa==\n: 1", "neither a number nor text"),
    ],
)
def test_yaml_that_stands_for_a_huge_tree_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(InvalidInputError, match=rf"config\.yaml is not valid YAML: .*{reason}"):
        read_yaml(tmp_path, "config.yaml")


def test_aliases_that_safe_dump_writes_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: &id001 [1, 2]\nb: *id001\n")
    assert read_yaml(tmp_path, "config.yaml") == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 40 + "1" + "}" * 40])
def test_json_that_nests_deeply_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "timing.json").write_text(content)
    with pytest.raises(InvalidInputError, match=r"timing\.json is not valid JSON: nested more than 32 deep"):
        read_json(tmp_path, "timing.json")
