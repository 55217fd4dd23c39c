"""Where compiled programs are kept."""

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from rookery import cli
from rookery.cli.compilation_cache import cache_folder, delete_oldest, enable_compilation_cache
from rookery.cli.doctor import cache_text


def test_programs_are_kept_in_the_cache_folder_even_if_they_compile_in_no_time(
    tmp_path: Path, environment: dict[str, str], run_in_a_process: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    environment.pop("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", None)
    result = run_in_a_process("check-env", "probe/action_reward", ROOKERY_CACHE_DIR=str(tmp_path))
    assert (result.returncode, result.stderr) == (0, "")
    assert any(path.name.startswith("jit_step") for path in (tmp_path / "jax").iterdir())


def test_a_cache_that_has_grown_too_large_loses_the_programs_that_were_used_least_recently(tmp_path: Path) -> None:
    for age, name in enumerate(["newest", "new", "old", "oldest"]):
        path = tmp_path / name
        path.write_bytes(bytes(10))
        os.utime(path, (1e9 - age, 1e9 - age))
    delete_oldest(tmp_path, max_bytes=40)
    assert len(list(tmp_path.iterdir())) == 4
    delete_oldest(tmp_path, max_bytes=39)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newest"]


@pytest.mark.usefixtures("cache")
def test_the_cache_is_in_the_users_cache_folder_unless_another_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert enable_compilation_cache() == tmp_path / "cache" / "jax"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache" / "jax")

    monkeypatch.delenv("ROOKERY_CACHE_DIR")
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "chosen_by_jax"))
    assert enable_compilation_cache() == tmp_path / "chosen_by_jax"

    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert enable_compilation_cache() == tmp_path / "xdg" / "rookery" / "jax"

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "rookery"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME", "ROOKERY_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        assert cli.main(["list", "agents"]) == 0
        assert enable_compilation_cache() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert "there is no home folder: set ROOKERY_CACHE_DIR" in cache_text(None)
