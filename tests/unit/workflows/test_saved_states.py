"""Training states as checkpoints."""

from pathlib import Path
from typing import Any

import jax
import pytest

from rookery.registry import build_workflow
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.workflows.hooks import RecordEvent
from rookery.workflows.saved.states import HYPERPARAMETERS


def build(path: Path, learning_rate: Any) -> Any:
    agent = {"name": "a2c", "network": {"hidden_sizes": [4]}, "num_envs": 4, "rollout_length": 8}
    common = {"total_timesteps": 256, "record_interval": 32, "recorders": ["jsonl"], "evaluation": {"num_episodes": 2}}
    common |= {"env": {"name": "classic/cartpole", "episode_length": 20}, "checkpoint": {"keep_best": False}}
    return build_workflow({"agent": agent | {"learning_rate": learning_rate}, **common, "run_dir": str(path)})


def shapes_in(tree: Any) -> list[tuple[int, ...]]:
    return [leaf.shape for leaf in jax.tree.leaves(tree)]


def stop(event: RecordEvent) -> None:
    raise RuntimeError("stopped by the test")


@pytest.mark.parametrize("rate", [1e-4, {"start": 1e-4, "end": 1e-4}], ids=["constant", "schedule"])
def test_other_hyperparameters_hold_if_the_resumption_is_stopped_before_its_first_checkpoint(
    rate: Any, tmp_path: Path
) -> None:
    first = build(tmp_path / "run", 1e-3)
    with pytest.raises(RuntimeError):
        first.learn(first.init(first.make_key()), stop)  # only the first checkpoint is there
    with pytest.raises(RuntimeError):
        build(tmp_path / "run", rate).resume(on_record=stop)
    again = build(tmp_path / "run", RunDirectory(tmp_path / "run").config["agent"]["learning_rate"])
    again.restore()
    again.resume()
    rates = [row["train/learning_rate"] for row in RunDirectory(tmp_path / "run").read_metrics()]
    assert rates == pytest.approx([1e-4] * 8)


def test_a_checkpoint_of_before_has_the_hyperparameters_of_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Checkpoints.save

    def save_as_before(self: Checkpoints, tree: Any, step: int, metadata: dict, *args: Any, **kwargs: Any) -> Any:
        del metadata[HYPERPARAMETERS]
        return save(self, tree, step, metadata, *args, **kwargs)

    monkeypatch.setattr(Checkpoints, "save", save_as_before)
    workflow = build(tmp_path / "run", 1e-3)
    workflow.learn(workflow.init(workflow.make_key()))
    restored = build(tmp_path / "run", {"start": 0.5, "end": 0.5}).restore()
    assert float(restored.learner.hyperparameters.learning_rate.start) == 0.5


@pytest.mark.parametrize(("agent", "budget"), [("dqn", 96), ("dqn", 200), ("erl", 200)])
def test_a_run_with_a_replay_buffer_is_resumed_with_another_budget(agent: str, budget: int, tmp_path: Path) -> None:
    def build_with(total_timesteps: int) -> Any:
        learner = {"batch_size": 8, "network": {"hidden_sizes": [4]}}
        options = {
            "dqn": {**learner, "num_envs": 2, "warmup_steps": 8},
            "erl": {"gradient": "dqn", "learner": learner, "population_size": 2, "num_lanes": 2, "warmup_steps": 8},
        }
        options["erl"]["strategy"] = {"num_elites": 1}
        common = {"record_interval": 16, "recorders": [], "evaluation": {"interval": None}}
        common |= {"env": {"name": "classic/cartpole", "episode_length": 5}, "run_dir": str(tmp_path / "run")}
        return build_workflow(
            {"agent": {"name": agent, **options[agent]}, "total_timesteps": total_timesteps, **common}
        )

    def stop_halfway(event: RecordEvent) -> None:
        if event.env_steps >= 64:
            event.stop("half of the budget")

    first = build_with(128)
    stopped = first.learn(first.init(first.make_key()), stop_halfway)
    assert int(stopped.env_steps) < 96
    other = build_with(budget)
    expected = other.training.state_shape(other.make_key())
    assert shapes_in(other.restore()) == shapes_in(expected)
    assert int(other.resume().env_steps) >= budget
