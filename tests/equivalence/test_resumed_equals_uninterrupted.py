"""A run that is stopped and goes on, again and again, is the run that was never stopped, bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from rookery.recorders import RECORDERS
from rookery.registry import build_workflow
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.interruption import Interrupted
from tests.equivalence.interrupted_runs import StoppingRecorder, assert_equal, records_of

SMALL = {"num_envs": 4, "rollout_length": 8, "normalize_obs": True, "normalize_rewards": True}
SCHEDULE = {"start": 0.01, "end": 0.0}
ITERATION = 4 * 8
METHODS = {
    "ppo with several seeds": {
        "agent": {"name": "ppo", **SMALL, "learning_rate": SCHEDULE, "network": {"hidden_sizes": [8]}},
        "num_seeds": 2,
    },
    "impala with memory and actors that lag": {
        "agent": {
            "name": "impala",
            **SMALL,
            "num_minibatches": 2,
            "actor_lag": 3,
            "learning_rate": SCHEDULE,
            "network": {"hidden_sizes": [8], "core": "gru", "core_size": 4},
        },
    },
    "openes with several seeds": {
        "agent": {
            "name": "openes",
            "population_size": 2,
            "normalize_obs": True,
            "noise_std": {"start": 0.5, "end": 0.1},
            "network": {"hidden_sizes": [4]},
        },
        "num_seeds": 2,
    },
    "erl with discrete actions, a memory and several seeds": {
        "agent": {
            "name": "erl",
            "gradient": "sac",
            "population_size": 2,
            "strategy": {"num_elites": 1},
            "warmup_steps": 32,
            "update_ratio": 0.1,
            "learner": {
                "batch_size": 4,
                "sequence_length": 2,
                "network": {"hidden_sizes": [4], "core": "gru", "core_size": 4},
            },
        },
        "num_seeds": 2,
    },
    "map_elites": {
        "agent": {"name": "map_elites", "population_size": 2, "cells": [4, 4], "network": {"hidden_sizes": [4]}}
    },
}


@pytest.fixture(autouse=True)
def stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the recorder."""
    monkeypatch.setitem(RECORDERS, "stopping", f"{StoppingRecorder.__module__}:StoppingRecorder")


def build(method: str, run_dir: Path) -> Any:
    return build_workflow(
        {
            **METHODS[method],
            "env": {"name": "classic/cartpole", "episode_length": 11, "autoreset_mode": "envpool"},
            "total_timesteps": 20 * ITERATION - 5,
            "record_interval": 4 * ITERATION,
            "evaluation": {"interval": 8 * ITERATION, "num_episodes": 2},
            "checkpoint": {"interval": 8 * ITERATION, "keep": None},
            "run_dir": str(run_dir),
            "recorders": ["jsonl", "stopping"],
        }
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_run_stopped_between_and_at_records_ends_as_the_one_that_was_not(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = build(method, tmp_path / "whole")
    expected = whole.learn(whole.init(whole.make_key()))

    workflow = build(method, tmp_path / "stopped")
    # After the first iteration, which is a call of its own; in the midst of the run; and again at once.
    monkeypatch.setattr(StoppingRecorder, "stop_at", 1)
    with pytest.raises(Interrupted) as stopped:
        workflow.learn(workflow.init(workflow.make_key()))
    assert stopped.value.exit_code == 143
    assert 0 < Checkpoints(tmp_path / "stopped" / "checkpoints").steps()[-1] <= ITERATION
    for stop_at in (9 * ITERATION, 9 * ITERATION):
        monkeypatch.setattr(StoppingRecorder, "stop_at", stop_at)
        with pytest.raises(Interrupted):
            workflow.resume()
    monkeypatch.setattr(StoppingRecorder, "stop_at", None)
    state = build(method, tmp_path / "stopped").resume()
    assert_equal(state, expected)
    assert records_of(tmp_path / "stopped") == records_of(tmp_path / "whole")

    # From an earlier checkpoint: what came after it is forgotten and comes again.
    middle = Checkpoints(tmp_path / "stopped" / "checkpoints").steps()[2]
    assert_equal(workflow.resume(middle), expected)
    assert records_of(tmp_path / "stopped") == records_of(tmp_path / "whole")
