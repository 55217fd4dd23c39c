"""What the tests of the command line share: running it in a process, a cache of its own, and a small finished run."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import rookery
from rookery import cli
from rookery.envs.libraries import LIBRARIES, Library
from rookery.runs.directory import RunDirectory
from tests.checkpoint_files import write_by_orbax

ROOT = Path(rookery.__file__).parent.parent
SMALL = [
    "agent=a2c",
    "agent.num_envs=4",
    "agent.rollout_length=4",
    "agent.network.hidden_sizes=[4]",
    "total_timesteps=64",
    "record_interval=16",
    "evaluation.interval=32",
    "evaluation.num_episodes=4",
    "checkpoint.interval=16",
]
"""Overrides of a training that is over at once: 4 iterations, each with a record and a checkpoint."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that the command line has trained, and what it printed."""

    directory: RunDirectory
    output: str

    @property
    def path(self) -> str:
        return str(self.directory.path)


def train(directory: Path, *overrides: str) -> FinishedRun:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert cli.main(["train", *SMALL, f"run_dir={directory}", *overrides]) == 0
    return FinishedRun(RunDirectory.open(directory), output.getvalue())


@pytest.fixture(scope="session")
def small() -> list[str]:
    """Overrides of a training that is over at once."""
    return SMALL


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run of one seed; tests leave it as it is."""
    return train(tmp_path_factory.mktemp("runs") / "one")


@pytest.fixture(scope="session")
def seeds_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run of three seeds; tests leave it as it is."""
    return train(tmp_path_factory.mktemp("runs") / "three", "num_seeds=3", "seed=5")


@pytest.fixture
def as_written_before(tmp_path: Path) -> Callable[[str, int], str]:
    """Copy a run with its checkpoints in an older format; return the path of the copy.

    Format 1 held the state of a learner without a name.
    """

    def copy(run: str, version: int) -> str:
        shutil.copytree(run, tmp_path / "before")
        for path in (tmp_path / "before" / "checkpoints").iterdir():
            write_by_orbax(
                path, version, rename=lambda name: name.replace(".learner.", ".", 1) if version == 1 else name
            )
        return str(tmp_path / "before")

    return copy


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the commands a compilation cache of their own, and the tests theirs back."""
    monkeypatch.setenv("ROOKERY_CACHE_DIR", str(tmp_path / "cache"))
    before = jax.config.jax_compilation_cache_dir
    yield tmp_path / "cache"
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.fixture
def environment() -> dict[str, str]:
    """The variables of a process that runs the command."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def run_in_a_process(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command as the shell does."""

    def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rookery", *argv]
        return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def missing_library(monkeypatch: pytest.MonkeyPatch) -> str:
    """Add a library of environments whose package is not installed."""
    monkeypatch.setitem(LIBRARIES, "absent", Library("rookery.envs.absent", "absent_package", extra="absent"))
    return "absent"
