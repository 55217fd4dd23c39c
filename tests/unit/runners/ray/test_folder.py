"""The private folder of a Ray of our own."""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.errors import InvalidInputError
from rookery.runners.ray import folder as folders
from rookery.runners.ray.folder import LOCK_NAME, PREFIX, STALE_SECONDS, TOKEN_NAME, private_folder


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short name, in which temporary folders are made."""
    path = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    shutil.rmtree(path)


def test_only_the_user_enters_the_folder_and_reads_its_token(parent: Path) -> None:
    tokens = []
    for _ in range(2):
        with private_folder() as folder:
            assert folder.parent == parent
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE((folder / TOKEN_NAME).stat().st_mode) == 0o600
            tokens.append((folder / TOKEN_NAME).read_text())
        assert not folder.exists()
    assert len(set(tokens)) == 2
    assert all(len(bytes.fromhex(token)) * 8 == 256 for token in tokens)


def test_the_sockets_of_ray_fit_where_temporary_folders_have_long_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 10)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with private_folder() as folder:
        socket = folder / "ray" / "session_2026-01-01_00-00-00_000000_4194304" / "sockets" / "plasma_store"
        assert len(os.fsencode(socket)) <= 107


def test_no_short_folder_is_an_error_that_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.os, "access", lambda path, mode: False)
    with pytest.raises(InvalidInputError, match="set TMPDIR to such a folder"), private_folder():
        pass


def make_old(folder: Path) -> None:
    before = time.time() - 2 * STALE_SECONDS
    os.utime(folder, (before, before))


def test_folders_of_killed_processes_are_removed_and_those_in_use_are_kept(parent: Path) -> None:
    killed, new, other = (parent / f"{PREFIX}{name}" for name in ("killed", "new", "other"))
    for left in (killed, new, other):
        left.mkdir()
        if left is not other:
            (left / LOCK_NAME).touch()
    make_old(killed)
    make_old(other)
    with private_folder() as used:
        make_old(used)
        with private_folder():
            assert used.exists()
        assert not killed.exists()
        assert new.exists(), "another process may be making it"
        assert other.exists(), "not one of ours: it has no lock"
