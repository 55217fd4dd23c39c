"""A search that is killed loses what was since its last checkpoint."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rookery import cli
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.search_directory import SearchDirectory
from rookery.tuning import batches

SEARCH = [
    "agent=a2c",
    "env=classic/cartpole",
    "agent.num_envs=4",
    "agent.rollout_length=4",
    "agent.network.hidden_sizes=[4]",
    "total_timesteps=3200",
    "record_interval=64",
    "evaluation.interval=640",
    "evaluation.num_episodes=4",
    "checkpoint.interval=64",
    "agent.learning_rate={low: 1e-4, high: 1e-1, scale: log}",
    "trials=2",
    "search=halving",
    "rungs=2",
]
"""A search whose second rung has 25 checkpoints: it takes long enough to be killed there."""


def has_begun(run: Path) -> bool:
    return len(Checkpoints(run / "checkpoints").steps()) > 0 and (run / "metrics.jsonl").exists()


def test_a_search_killed_in_its_second_rung_ends_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes some 10 seconds, because a process has to start and to compile."""
    monkeypatch.setattr(batches, "forget_programs", lambda: None)  # the two searches of this process share theirs
    command = [sys.executable, "-m", "rookery", "tune", *SEARCH, f"search_dir={tmp_path / 'killed'}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 240
        while not has_begun(tmp_path / "killed" / "runs" / "batch-1") and time.monotonic() < deadline:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    killed = SearchDirectory.open(tmp_path / "killed")
    assert {result.rung for result in killed.read_results()} == {1}

    assert cli.main(["tune", "--resume", str(killed.path)]) == 0
    assert cli.main(["tune", *SEARCH, f"search_dir={tmp_path / 'whole'}"]) == 0
    assert killed.trials_path.read_bytes() == SearchDirectory(tmp_path / "whole").trials_path.read_bytes()
    assert {result.rung for result in killed.read_results()} == {1, 2}
