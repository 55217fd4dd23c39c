"""What a run does when parameters or losses become NaN or infinite."""

import itertools
import logging
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import RookeryError
from rookery.registry import build_workflow
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.divergence import DIVERGED, DivergedError, find_divergence
from rookery.runs.log import Progress
from rookery.workflows import loop
from rookery.workflows.training import NoEnvironments
from rookery.workflows.workflow import Workflow

STEPS = 16
"""Env steps of an iteration, with a record and a checkpoint each."""


def make_workflow(directory: Path | None, num_seeds: int = 1, agent: dict | None = None, **train: Any) -> Workflow:
    return build_workflow(
        {
            "agent": {"name": "a2c", "num_envs": 4, "rollout_length": 4, "network": {"hidden_sizes": [4]}}
            | (agent or {}),
            "env": {"name": "classic/cartpole"},
            "total_timesteps": 5 * STEPS,
            "record_interval": STEPS,
            "checkpoint": {"interval": STEPS},
            "evaluation": {"interval": STEPS, "num_episodes": 2},
            "num_seeds": num_seeds,
            "run_dir": None if directory is None else str(directory),
            "recorders": ["jsonl"],
            **train,
        }
    )


def poisoned(workflow: Workflow, *seeds: int) -> Any:
    """The first state, with NaN parameters in some seeds."""
    state = workflow.init(workflow.make_key())
    is_poisoned = jnp.isin(jnp.arange(workflow.layout.num_seeds), jnp.asarray(seeds))

    def poison(leaf: Any) -> Any:
        mask = is_poisoned.reshape(-1, *[1] * (leaf.ndim - 1)) if workflow.layout.num_seeds > 1 else is_poisoned[0]
        return jnp.where(mask, jnp.nan, leaf)

    params = jax.tree.map(poison, state.agent_state.params)
    return state.replace_learner(agent_state=state.agent_state.replace(params=params))


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return RunDirectory(directory).read_metrics()


def saved_steps(directory: Path) -> list[int]:
    return Checkpoints(directory / "checkpoints").steps()


def test_only_metrics_of_training_and_parameters_tell_divergence() -> None:
    nan = float("nan")
    assert (
        find_divergence({"rollout/ep_rew_mean": nan, "eval/mean_reward": nan, "evolution/fitness_min": nan}, True) == ""
    )
    assert find_divergence({"train/loss": nan}, True) == "train/loss is nan"
    assert find_divergence({"leader/train/loss": float("inf")}, True) == "leader/train/loss is inf"
    assert find_divergence({"train/loss": 1.0}, False) == "its parameters are not finite"


def test_a_diverged_run_stops_saves_nothing_and_names_metric_seed_step_and_checkpoint(tmp_path: Path) -> None:
    workflow = make_workflow(tmp_path / "run", agent={"learning_rate": 1e30}, seed=7)
    with pytest.raises(DivergedError) as error:
        workflow.learn(workflow.init(workflow.make_key()))
    found = re.search(r"seed 7 diverged at (\d+) env steps: train/\w+ is nan", str(error.value))
    assert found
    rows = rows_of(tmp_path / "run")
    assert rows[-1]["time/total_timesteps"] == int(found[1]) < 5 * STEPS
    assert [DIVERGED in row for row in rows] == [False] * (len(rows) - 1) + [True]
    assert "eval/mean_reward" not in rows[-1]
    last = saved_steps(tmp_path / "run")[-1]
    assert last == int(found[1]) - STEPS
    assert f"last good checkpoint is at {last} env steps" in str(error.value)
    assert f"rookery resume {tmp_path / 'run'} agent.NAME=VALUE" in str(error.value)


def test_without_a_run_directory_the_error_says_that_nothing_was_saved() -> None:
    workflow = make_workflow(None)
    with pytest.raises(
        DivergedError, match=r"parameters are not finite. Nothing was saved, because there is no run_dir"
    ):
        workflow.learn(poisoned(workflow, 0))


def test_with_on_nan_warn_one_warning_is_shown_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workflow = make_workflow(tmp_path / "run", on_nan="warn")
    with caplog.at_level(logging.WARNING, "rookery"):
        workflow.learn(poisoned(workflow, 0))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("seed 0 diverged at 16 env steps: train/")
    assert [row[DIVERGED] for row in rows_of(tmp_path / "run")] == [1.0] * 5
    assert saved_steps(tmp_path / "run")[-1] == 5 * STEPS


def test_other_seeds_go_on_and_a_diverged_seed_stays_marked_also_after_resuming(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workflow = make_workflow(tmp_path / "run", num_seeds=3, checkpoint={"interval": STEPS, "keep": None})
    with caplog.at_level(logging.WARNING, "rookery"):
        workflow.learn(poisoned(workflow, 1))
    assert len(caplog.messages) == 1
    rows = rows_of(tmp_path / "run")
    assert {row["seed"] for row in rows if DIVERGED in row} == {1}
    assert sum(DIVERGED in row for row in rows) == 5
    assert all(np.isfinite(row["train/loss"]) for row in rows if row["seed"] != 1)
    make_workflow(tmp_path / "run", num_seeds=3).resume(2 * STEPS)
    rows = rows_of(tmp_path / "run")
    assert {row["time/total_timesteps"] for row in rows if row.get(DIVERGED) == 1.0} == {STEPS * i for i in range(1, 6)}
    assert len(caplog.messages) == 1


def test_a_run_stops_when_all_seeds_have_diverged(tmp_path: Path) -> None:
    workflow = make_workflow(tmp_path / "run", num_seeds=2)
    with pytest.raises(DivergedError, match="all 2 seeds diverged, the last: seed 1"):
        workflow.learn(poisoned(workflow, 0, 1))
    assert saved_steps(tmp_path / "run") == [0]


def test_a_signal_does_not_save_a_diverged_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = make_workflow(tmp_path / "run", record_interval=4 * STEPS)
    advance = workflow.training.advance

    class Interrupting:
        is_ready, compile = advance.is_ready, advance.compile

        def __call__(self, *args: Any) -> Any:
            signal.raise_signal(signal.SIGTERM)
            return advance(*args)

    monkeypatch.setattr(workflow.training, "advance", Interrupting())
    with pytest.raises(DivergedError):
        workflow.learn(poisoned(workflow, 0))
    assert saved_steps(tmp_path / "run") == [0]


def test_a_state_that_diverged_since_the_last_record_is_not_saved_and_the_other_seeds_are_saved_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at the clock takes four minutes, and every call of the program one iteration."""
    clock = itertools.count(0, 240)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(loop, "SECONDS_PER_CALL", 0.0)
    config = {"interval": 10 * STEPS, "keep": None, "keep_best": False}
    workflow = make_workflow(
        tmp_path / "run", num_seeds=2, checkpoint=config, record_interval=5 * STEPS, total_timesteps=10 * STEPS
    )
    workflow.learn(poisoned(workflow, 1))
    steps = saved_steps(tmp_path / "run")
    assert not [step for step in steps if 0 < step < 5 * STEPS]
    assert [step for step in steps if 5 * STEPS < step < 10 * STEPS]


def test_environments_that_fail_on_a_diverged_policy_are_reported_as_divergence(tmp_path: Path) -> None:
    class FailedEnvironments(NoEnvironments):
        failure = RookeryError("all environments are lost")

    workflow = make_workflow(tmp_path / "run", record_interval=4 * STEPS)
    workflow.training.environments = FailedEnvironments()
    with pytest.raises(DivergedError, match="seed 0 diverged at 16 env steps"):
        workflow.learn(poisoned(workflow, 0))
    assert saved_steps(tmp_path / "run") == [0]


def test_progress_survives_json() -> None:
    progress = Progress(num_records=2, recorded_steps=(3, 4), diverged={5: 6})
    mapping = progress.to_mapping()
    mapping["diverged"] = {str(seed): steps for seed, steps in mapping["diverged"].items()}
    assert Progress.from_mapping(mapping) == progress
