"""An off-policy run that is stopped and goes on is the run that was never stopped, bit for bit, replay included."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.recorders import RECORDERS, Position, Recorder, RunDescription
from rookery.registry import build_workflow
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.interruption import Interrupted
from rookery.sample_batch import SampleBatch
from tests.equivalence.interrupted_runs import StoppingRecorder, assert_equal, records_of

NUM_ENVS, ROLLOUT_LENGTH, WARMUP_STEPS = 2, 2, 16
ITERATION = NUM_ENVS * ROLLOUT_LENGTH
SIZES = {
    "num_envs": NUM_ENVS,
    "rollout_length": ROLLOUT_LENGTH,
    "warmup_steps": WARMUP_STEPS,
    "batch_size": 4,
    "buffer_capacity": 40,  # less than the run: the ring is written more than once
    "updates_per_step": 0.75,
    "normalize_obs": True,
}
SQUASH = {"bounds": "squash", "state_dependent_std": True}
METHODS: dict[str, dict[str, Any]] = {
    "sac with several seeds": {
        "agent": {"name": "sac", **SIZES, "network": {"hidden_sizes": [8], "gaussian": SQUASH}},
        "env": {"name": "classic/pendulum", "episode_length": 7},
        "num_seeds": 2,
    },
    "td3, prioritized, over several steps": {
        "agent": {
            "name": "td3",
            **SIZES,
            "prioritized": True,
            "n_step": 2,
            "exploration_noise": {"start": 0.5, "end": 0.0},
            "network": {"hidden_sizes": [8], "gaussian": SQUASH},
        },
        "env": {"name": "classic/pendulum", "episode_length": 7, "autoreset_mode": "envpool"},
    },
    "discrete sac with memory, prioritized": {
        "agent": {
            "name": "sac",
            **SIZES,
            "prioritized": True,
            "sequence_length": 2,
            "burn_in": 1,
            "network": {"hidden_sizes": [8], "core": "gru", "core_size": 4},
        },
        "env": {"name": "probe/memory", "episode_length": 5},
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
            "total_timesteps": WARMUP_STEPS + 12 * ITERATION - 1,
            "record_interval": 2 * ITERATION,
            "evaluation": {"interval": 6 * ITERATION, "num_episodes": 2},
            "checkpoint": {"interval": 4 * ITERATION, "keep": None},
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
    assert np.all(np.asarray(expected.learner.buffer_state.num_rows) == 40 // NUM_ENVS)
    assert len(records_of(tmp_path / "whole")) >= 6

    workflow = build(method, tmp_path / "stopped")
    # After the first iteration, which is a call of its own, and in the midst of the run.
    monkeypatch.setattr(StoppingRecorder, "stop_at", WARMUP_STEPS + 1)
    with pytest.raises(Interrupted):
        workflow.learn(workflow.init(workflow.make_key()))
    assert Checkpoints(tmp_path / "stopped" / "checkpoints").steps()[-1] <= WARMUP_STEPS + ITERATION
    monkeypatch.setattr(StoppingRecorder, "stop_at", WARMUP_STEPS + 5 * ITERATION)
    with pytest.raises(Interrupted):
        workflow.resume()
    monkeypatch.setattr(StoppingRecorder, "stop_at", None)
    assert_equal(build(method, tmp_path / "stopped").resume(), expected)
    assert records_of(tmp_path / "stopped") == records_of(tmp_path / "whole")

    # From an earlier checkpoint: what came after it is forgotten and comes again.
    middle = Checkpoints(tmp_path / "stopped" / "checkpoints").steps()[2]
    assert_equal(workflow.resume(middle), expected)
    assert records_of(tmp_path / "stopped") == records_of(tmp_path / "whole")


class CountingRecorder(Recorder):
    """Notes how many arrays of the size of the replay buffer are alive."""

    size: ClassVar[int] = 0
    counts: ClassVar[list[int]] = []

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        self.counts.clear()

    def advance(self, env_steps: int) -> None:
        self.counts.append(sum(array.size == self.size for array in jax.live_arrays()))

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_run_holds_its_replay_buffer_once_and_may_leave_it_out_of_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECORDERS, "counting", f"{__name__}:CountingRecorder")
    workflow = build_workflow(
        {
            "agent": {"name": "ddpg", **SIZES, "n_step": 2, "network": {"hidden_sizes": [8]}},
            "env": {"name": "classic/pendulum", "episode_length": 7},
            "total_timesteps": 80,
            "checkpoint": {"replay": False},
            "run_dir": str(tmp_path / "run"),
            "recorders": ["counting"],
        }
    )
    storage = workflow.init(workflow.make_key()).learner.buffer_state.storage["float32"]
    monkeypatch.setattr(CountingRecorder, "size", storage.size)
    del storage

    learned = workflow.learn(workflow.init(workflow.make_key()))
    assert CountingRecorder.counts
    assert set(CountingRecorder.counts) == {1}

    restored = workflow.restore()
    jax.tree.map(np.testing.assert_array_equal, restored.agent_state.params, learned.agent_state.params)
    assert int(restored.env_steps) == 80


@pytest.mark.parametrize("env", [{"name": "classic/pendulum", "episode_length": 7}, {"name": "gymnasium/Pendulum-v1"}])
def test_a_buffer_that_was_not_saved_is_refilled_with_new_episodes_of_the_trained_policy(
    env: dict, tmp_path: Path
) -> None:
    agent = {"name": "ddpg", **SIZES, "network": {"hidden_sizes": [8]}, "normalize_obs": False}
    workflow = build_workflow(
        {
            "agent": agent | {"exploration_noise": 0.0},
            "env": env,
            "total_timesteps": 80,
            "checkpoint": {"replay": False},
            "run_dir": str(tmp_path / "run"),
            "recorders": [],
        }
    )
    fresh = jax.tree.map(jnp.copy, workflow.init(workflow.make_key()).learner.buffer_state)
    workflow.learn(workflow.init(workflow.make_key()))
    restored = workflow.restore()
    workflow.close()
    buffer = workflow.training.learner.buffer  # type: ignore[attr-defined]
    batch = buffer.sample(restored.learner.buffer_state, jax.random.key(0), 64).sequence  # type: ignore[attr-defined]
    actions, _ = workflow.agent.evaluate_actions(restored.agent_state, SampleBatch(obs=batch.obs), jax.random.key(1))
    np.testing.assert_allclose(batch.actions, actions, atol=1e-5)

    def observations(buffer_state: Any) -> set[bytes]:
        obs = buffer.sample(buffer_state, jax.random.key(2), 256).sequence.obs
        return {row.tobytes() for row in np.asarray(obs).reshape(-1, obs.shape[-1])}

    assert not observations(fresh) & observations(restored.learner.buffer_state)  # type: ignore[attr-defined]
    assert int(restored.env_steps) == 80
