"""`rookery train`."""

import json
import logging
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.stats
import yaml
from PIL import Image

from rookery import cli
from rookery.cli import training
from rookery.cli.train import EPILOG
from rookery.configs import compose, sweep


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the commands where they can leave things."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_training_leaves_everything_in_the_run_directory(finished_run) -> None:
    run = finished_run.directory
    assert run.config["agent"]["name"] == "a2c"
    assert [row["time/total_timesteps"] for row in run.read_metrics()] == [16, 32, 48, 64]
    assert run.read_timing()["env_steps"] == 64
    assert any(run.tensorboard_path.iterdir())
    assert sorted(path.name for path in run.checkpoints_path.iterdir())[-1] == f"{64:012d}"
    assert Image.open(run.episode_path).n_frames > 5
    assert run.report_path.read_text().startswith("<!doctype html>")


def test_the_last_lines_say_where_things_are_how_good_it_is_and_what_to_do_next(finished_run) -> None:
    (last,) = [row["eval/mean_reward"] for row in finished_run.directory.read_metrics()][-1:]
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in finished_run.output.splitlines()[-5:]]
    assert rows == [
        ["run", finished_run.path],
        ["evaluation", f"{last:.2f}"],
        ["report", f"{finished_run.path}/report.html"],
        ["next", f"rookery evaluate {finished_run.path} --episodes 100 --video episode.gif"],
        [f"rookery report {finished_run.path}"],
    ]
    assert finished_run.output.startswith(f"run directory {finished_run.path}\n")


def test_several_seeds_are_summed_up_by_their_interquartile_mean(seeds_run) -> None:
    last = {
        row["seed"]: row["eval/mean_reward"] for row in seeds_run.directory.read_metrics() if "eval/mean_reward" in row
    }
    assert list(last) == [5, 6, 7]
    found = re.search(r"evaluation  (\S+) \[(\S+), (\S+)\], interquartile mean of 3 seeds\n", seeds_run.output)
    assert found is not None
    mean, low, high = map(float, found.groups())
    assert mean == pytest.approx(scipy.stats.trim_mean(list(last.values()), 0.25), abs=0.01)
    assert min(last.values()) - 0.01 <= low <= mean <= high <= max(last.values()) + 0.01


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agent=pppo"], "unknown agent 'pppo'. Did you mean 'ppo'?"),
        (["env=classic/cartpol"], "unknown environment 'classic/cartpol'. Did you mean 'classic/cartpole'"),
        (["agent.lerning_rate=1"], "unknown key 'agent.lerning_rate'. Did you mean 'agent.learning_rate'?"),
        (["+agent.lerning_rate=1"], "agent: unknown key 'lerning_rate'. Did you mean 'learning_rate'"),
        (["agent.num_envs=0"], "agent.num_envs=0 must be an integer of at least 1."),
        (["agent.num_envs=many"], "agent.num_envs='many': expected an integer."),
        (["agent.discount=99"], "agent.discount=99 must lie between 0 and 1."),
        (["agent.learning_rate={start: 1}"], "agent.learning_rate={'start': 1}: a schedule is"),
        (["agent.num_minibatches=3"], "num_minibatches=3 does not divide 8192 samples: use 2 or 4."),
        (["agent.network.activation=tan"], "agent.network: unknown activation 'tan'. Did you mean 'tanh'?"),
        (["env.autoreset_mode=nrmal"], "env.autoreset_mode='nrmal': expected one of normal, fast, envpool, disabled."),
        (["env.kwargs.gravity=3"], "classic/cartpole: unknown argument 'gravity'"),
        (["total_timesteps=2.5"], "total_timesteps=2.5: expected an integer."),
        (["+agent._target_=os.system"], "agent._target_: a config names no Python objects"),
        (["run_dir=3"], "run_dir=3: expected a string."),
        (["devices=7", "agent.num_envs=7"], "devices=7: JAX has already started with 1; start the command with the"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_compiled_or_written(
    overrides: list[str],
    message: str,
    working_directory: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        assert cli.main(["train", *overrides]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"rookery: error: {message}")
    assert captured.err.count("\n") == 1
    assert not [record.message for record in caplog.records if "ompil" in record.message]
    assert list(working_directory.iterdir()) == []
