"""Runs that are ended from outside, in processes of their own: nothing is lost and nothing is counted twice."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rookery.registry import build_workflow
from rookery.runs.directory import RunDirectory

RECORD_STEPS = 8 * 4 * 20
NUM_RECORDS = 24
TRAIN = [
    "train",
    "agent=a2c",
    "env=classic/cartpole",
    "agent.num_envs=8",
    "agent.rollout_length=4",
    "agent.normalize_obs=true",
    "agent.normalize_rewards=true",
    "agent.network.hidden_sizes=[8]",
    "agent.learning_rate={start: 1e-2, end: 0.0}",
    f"record_interval={RECORD_STEPS}",
    f"total_timesteps={NUM_RECORDS * RECORD_STEPS - 100}",
    f"evaluation.interval={7 * RECORD_STEPS}",
    "evaluation.num_episodes=4",
    f"checkpoint.interval={2 * RECORD_STEPS}",
    "recorders=[jsonl]",
]
NUM_KILLS = 6
DEADLINE_SECONDS = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@contextlib.contextmanager
def rookery(folder: Path, *arguments: str) -> Iterator[subprocess.Popen]:
    """Start a command; it is gone when the block ends."""
    environment = os.environ | {"ROOKERY_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rookery", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_to_the_end(folder: Path, *arguments: str) -> tuple[int, str]:
    with rookery(folder, *arguments) as process:
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, errors


def num_lines(folder: Path, name: str) -> int:
    path = folder / name / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_lines(folder: Path, name: str, number: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while num_lines(folder, name) < number and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> str:
    code, errors = run_to_the_end(folder, *TRAIN, "run_dir=uninterrupted")
    assert code == 0, errors
    return "uninterrupted"


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` without what the clock says."""
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    counted = ("time/total_timesteps", "time/iterations")
    return [{key: row[key] for key in row if not key.startswith("time/") or key in counted} for row in rows]


def last_state(folder: Path, name: str) -> list[np.ndarray]:
    run = RunDirectory.open(folder / name)
    state = build_workflow(run.config | {"run_dir": str(run.path)}).restore()
    leaves = [
        jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(state)
    ]
    return [np.asarray(leaf) for leaf in leaves]


def assert_same_run(folder: Path, name: str, reference: str) -> None:
    assert records(folder, name) == records(folder, reference)
    for left, right in zip(last_state(folder, name), last_state(folder, reference), strict=True):
        np.testing.assert_array_equal(left, right)


def test_the_uninterrupted_run_has_every_record_once(folder: Path, uninterrupted: str) -> None:
    steps = [row["time/total_timesteps"] for row in records(folder, uninterrupted)]
    assert steps[:-1] == [RECORD_STEPS * number for number in range(1, NUM_RECORDS)]
    assert steps[-1] >= NUM_RECORDS * RECORD_STEPS - 100
    assert "eval/mean_reward" in records(folder, uninterrupted)[-1]


def test_a_run_killed_many_times_ends_as_one_that_never_was(folder: Path, uninterrupted: str) -> None:
    """The moments are random, from before the first record to the writing of checkpoints."""
    moments = random.Random(0)
    command = [*TRAIN, "run_dir=killed"]
    num_kills = 0
    for _ in range(NUM_KILLS):
        with rookery(folder, *command) as process:
            before = num_lines(folder, "killed")
            wait_for_lines(folder, "killed", min(before, NUM_RECORDS - 4) + moments.randint(0, 3), process)
            time.sleep(moments.uniform(0.0, 0.05))
            process.send_signal(signal.SIGKILL)
            num_kills += process.wait() == -signal.SIGKILL
        if (folder / "killed" / "config.yaml").exists():
            command = ["resume", "killed"]
    assert num_kills >= NUM_KILLS // 2
    code, errors = run_to_the_end(folder, *command)
    assert code == 0, errors
    assert_same_run(folder, "killed", uninterrupted)


def test_sigterm_saves_and_exits_with_143_and_the_resumed_run_is_the_same(folder: Path, uninterrupted: str) -> None:
    with rookery(folder, *TRAIN, "run_dir=terminated") as process:
        wait_for_lines(folder, "terminated", 3, process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 143, errors
    assert "rookery resume" in errors
    assert len(errors.strip().splitlines()) == 1
    assert any((folder / "terminated" / "checkpoints").iterdir())
    assert num_lines(folder, "terminated") < NUM_RECORDS
    code, errors = run_to_the_end(folder, "resume", "terminated")
    assert code == 0, errors
    assert_same_run(folder, "terminated", uninterrupted)


def test_a_second_process_is_refused_while_the_first_trains(folder: Path, uninterrupted: str) -> None:
    with rookery(folder, *TRAIN, "run_dir=shared", "total_timesteps=1e9", "record_interval=640") as process:
        wait_for_lines(folder, "shared", 1, process)
        code, errors = run_to_the_end(folder, "resume", "shared")
        assert process.poll() is None
    assert code == 2
    assert str(process.pid) in errors


def test_a_damaged_checkpoint_is_named_and_the_last_good_one_offered(folder: Path, uninterrupted: str) -> None:
    shutil.copytree(folder / uninterrupted, folder / "damaged")
    *_, good, last = sorted((folder / "damaged" / "checkpoints").iterdir())
    data = last / "arrays.safetensors"
    content = data.read_bytes()
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 0xFF]))
    code, errors = run_to_the_end(folder, "resume", "damaged")
    assert code == 2
    assert str(data.relative_to(last)) in errors
    assert f"--step {int(good.name)}" in errors
    code, errors = run_to_the_end(folder, "resume", "damaged", "--step", str(int(good.name)), "--yes")
    assert code == 0, errors
    assert_same_run(folder, "damaged", uninterrupted)
