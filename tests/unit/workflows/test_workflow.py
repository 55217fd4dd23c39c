"""The training loop: records, evaluations, checkpoints, seeds, recorders and run directories.

The method here learns nothing: it counts its iterations and draws random numbers, so that every record is known.
"""

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import RandomAgent
from rookery.errors import InvalidInputError
from rookery.hyperparameters import Hyperparameters, Scalar, number, values_at
from rookery.learners.learner import Learner, LearnerState, Metrics
from rookery.learning.experience import Experience
from rookery.metrics import Mean
from rookery.recorders import RECORDERS, Position, Recorder, RunDescription
from rookery.runs import checkpoint
from rookery.runs.checkpoint import CheckpointError, Checkpoints
from rookery.runs.directory import RunDirectory, RunInUseError
from rookery.runs.interruption import Interrupted
from rookery.runs.log import RunLog
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import Key, pytree_field
from rookery.workflows.choice import make_gradient_training
from rookery.workflows.training import Training
from rookery.workflows.workflow import Workflow

STEPS = 10
"""Env steps of an iteration."""


@dataclass(frozen=True)
class CountingConfig:
    increment: int = 1
    num_envs: int = STEPS
    rollout_length: int = 1


class CountingHyperparameters(Hyperparameters):
    noise: Scalar = number(1.0, low=0.0, high=1.0)


class CountingLearner(Learner[LearnerState, Experience]):
    """Adds `increment` and noise to its parameters at every iteration."""

    config: CountingConfig = pytree_field(static=True)

    def init(
        self,
        obs_space: Space,
        action_space: Space,
        hyperparameters: Hyperparameters,
        key: Key,
        trajectory: SampleBatch | None = None,
    ) -> LearnerState:
        agent_state = self.agent.init(obs_space, action_space, key)
        return LearnerState.first(agent_state.replace(params=jnp.zeros(3)), hyperparameters)

    def learn(self, state: LearnerState, experience: Experience, key: Key) -> tuple[Metrics, LearnerState]:
        hyperparameters: Any = values_at(state.hyperparameters, state.env_steps.as_float())
        noise = hyperparameters.noise * jax.random.normal(key, (3,))
        params = state.agent_state.params + float(self.config.increment) + noise
        number = state.iterations.as_float()
        metrics = {
            "train/number": Mean.of(number),
            "train/draw": Mean.of(noise[0]),
            "train/noise": Mean.of(hyperparameters.noise),
            "train/sixth": Mean.where(number == 5.0, number),
        }
        return metrics, state.replace(
            agent_state=state.agent_state.replace(params=params),
            iterations=state.iterations.add(1),
            env_steps=state.env_steps.add(STEPS),
            num_updates=state.num_updates.add(2),
        )


class CountingWorkflow(Workflow):
    agent_name = "counting"
    config_class = CountingConfig
    hyperparameters_class = CountingHyperparameters

    def make_training(self) -> Training:
        learner = CountingLearner(agent=RandomAgent(), config=self.config)
        return make_gradient_training(self.settings, self.layout, learner)


class SpyRecorder(Recorder):
    """Keeps the calls of all its instances."""

    calls: ClassVar[list[tuple[str, Any]]] = []
    fails_at: ClassVar[int | None] = None

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        self.calls.append(("open", run))

    def compiling(self, what: str) -> None:
        self.calls.append(("compiling", what))

    def compiled(self, what: str, seconds: float) -> None:
        self.calls.append(("compiled", what))

    def advance(self, env_steps: int) -> None:
        self.calls.append(("advance", env_steps))

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        if rows[0]["time/total_timesteps"] == self.fails_at:
            raise OSError("the disk is full")
        self.calls.append(("record", [dict(row) for row in rows]))
        self.calls.append(("live", sum(array.nbytes for array in jax.live_arrays())))

    def finish(self, message: str) -> None:
        self.calls.append(("finish", message))

    def close(self) -> None:
        self.calls.append(("close", None))

    @classmethod
    def arguments_of(cls, name: str) -> list[Any]:
        return [content for call, content in cls.calls if call == name]


@pytest.fixture(autouse=True)
def spy(monkeypatch: pytest.MonkeyPatch) -> type[SpyRecorder]:
    monkeypatch.setitem(RECORDERS, "spy", f"{__name__}:SpyRecorder")
    monkeypatch.setattr(SpyRecorder, "calls", [])
    return SpyRecorder


def build(enable_jit: bool = True, agent: dict | None = None, **config: Any) -> CountingWorkflow:
    config = {
        "agent": agent or {},
        "env": {"name": "probe/cue_reward", "episode_length": 3},
        "evaluation": {"num_episodes": 4, "interval": config.pop("evaluation_interval", None)},
        "checkpoint": {"interval": config.pop("checkpoint_interval", None), "keep_best": False},
        "recorders": ["spy"],
        "total_timesteps": 100,
        **config,
    }
    return CountingWorkflow.build_from_config(config, enable_jit=enable_jit)


def train(workflow: CountingWorkflow) -> Any:
    return workflow.learn(workflow.init(workflow.make_key()))


def assert_equal(one: Any, other: Any) -> None:
    def compare(left: Any, right: Any) -> None:
        if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        np.testing.assert_array_equal(left, right)

    jax.tree.map(compare, one, other)


# Records, evaluations and checkpoints.


def test_records_are_made_at_the_stated_env_steps_and_at_the_end(spy: type[SpyRecorder]) -> None:
    train(build(total_timesteps=95, record_interval=30, evaluation_interval=60))
    rows = [rows[0] for rows in spy.arguments_of("record")]
    assert [row["time/total_timesteps"] for row in rows] == [30, 60, 90, 100]
    assert [row["time/iterations"] for row in rows] == [3, 6, 9, 10]
    assert [row["train/n_updates"] for row in rows] == [6, 12, 18, 20]
    assert ["eval/mean_reward" in row for row in rows] == [False, True, False, True]


def test_a_record_averages_what_happened_since_the_last_one(spy: type[SpyRecorder]) -> None:
    train(build(record_interval=30))
    rows = [rows[0] for rows in spy.arguments_of("record")]
    assert [row["train/number"] for row in rows] == [1.0, 4.0, 7.0, 9.0]


def test_a_metric_without_a_value_is_absent(spy: type[SpyRecorder]) -> None:
    train(build(record_interval=30))
    assert [rows[0].get("train/sixth") for rows in spy.arguments_of("record")] == [None, 5.0, None, None]


def test_the_last_evaluation_and_the_last_checkpoint_always_happen(tmp_path: Path, spy: type[SpyRecorder]) -> None:
    workflow = build(
        total_timesteps=73,
        record_interval=20,
        evaluation_interval=10**6,
        checkpoint_interval=10**6,
        run_dir=str(tmp_path / "run"),
    )
    state = train(workflow)
    assert int(state.env_steps) == 80
    rows = [rows[0] for rows in spy.arguments_of("record")]
    assert ["eval/mean_reward" in row for row in rows] == [False, False, False, True]
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [0, 80]


def test_a_run_shorter_than_an_iteration_is_one_iteration_and_says_so(
    spy: type[SpyRecorder], caplog: pytest.LogCaptureFixture
) -> None:
    train(build(total_timesteps=10))
    assert caplog.messages == []
    assert int(train(build(total_timesteps=1)).iterations) == 1
    assert caplog.messages == ["total_timesteps=1 is less than one iteration, which takes 10 steps."]
    spy.calls[:] = spy.calls[len(spy.calls) // 2 :]
    (rows,) = spy.arguments_of("record")
    assert "eval/mean_reward" in rows[0]


# Independence of training.


def test_evaluation_does_not_change_training() -> None:
    often, never = (train(build(record_interval=10, evaluation_interval=steps)) for steps in (10, 10**6))
    assert_equal(often.agent_state, never.agent_state)
    assert_equal(often.key, never.key)


def test_how_often_records_are_made_does_not_change_training() -> None:
    often, rarely = (train(build(record_interval=steps)) for steps in (10, 100))
    assert_equal(often.agent_state, rarely.agent_state)


def test_the_callers_state_can_still_be_used_after_learn() -> None:
    workflow = build()
    state = workflow.init(workflow.make_key())
    first, second = workflow.learn(state), workflow.learn(state)
    assert int(state.iterations) == 0
    assert_equal(first, second)
    assert int(workflow.step(first)[1].iterations) == 11


def test_learning_equals_stepping() -> None:
    workflow = build()
    state = workflow.init(workflow.make_key())
    learned = workflow.learn(state)
    for _ in range(10):
        _, state = workflow.step(state)
    np.testing.assert_allclose(state.agent_state.params, learned.agent_state.params, rtol=1e-6)


def test_a_finished_state_is_returned_unchanged_and_a_started_one_continues(spy: type[SpyRecorder]) -> None:
    workflow = build(record_interval=40)
    finished = train(workflow)
    spy.calls.clear()
    assert_equal(workflow.learn(finished), finished)
    assert spy.arguments_of("record") == []
    started = workflow.init(workflow.make_key())
    for _ in range(3):
        _, started = workflow.step(started)
    resumed = workflow.learn(started)
    assert [rows[0]["time/total_timesteps"] for rows in spy.arguments_of("record")] == [40, 80, 100]
    np.testing.assert_allclose(resumed.agent_state.params, finished.agent_state.params, rtol=1e-6)


def test_memory_does_not_grow_with_the_length_of_a_run(spy: type[SpyRecorder]) -> None:
    train(build(total_timesteps=2000, record_interval=20))
    used = spy.arguments_of("live")
    assert len(used) == 100
    assert max(used[10:]) <= min(used[10:]) + 1024


def test_two_workflows_of_a_class_each_have_their_own_program() -> None:
    config = {"noise": 0.0}
    one, two = build(agent={**config, "increment": 1}), build(agent={**config, "increment": 2})
    assert train(one).agent_state.params.tolist() == [10.0] * 3
    assert train(two).agent_state.params.tolist() == [20.0] * 3
    assert train(one).agent_state.params.tolist() == [10.0] * 3


# Hyper-parameters and seeds.


def test_schedules_go_by_env_steps_over_the_whole_run(spy: type[SpyRecorder]) -> None:
    train(build(record_interval=10, agent={"noise": {"start": 1.0, "end": 0.0}}))
    values = [rows[0]["train/noise"] for rows in spy.arguments_of("record")]
    np.testing.assert_allclose(values, 1.0 - np.arange(10) / 10, atol=1e-6)


def test_several_seeds_are_recorded_one_row_each_and_equal_the_runs_of_single_seeds(spy: type[SpyRecorder]) -> None:
    together = train(build(num_seeds=3, seed=5, record_interval=50))
    all_rows = spy.arguments_of("record")
    assert [[row["seed"] for row in rows] for rows in all_rows] == [[5, 6, 7]] * 2
    for index, seed in enumerate((5, 6, 7)):
        spy.calls.clear()
        alone = train(build(seed=seed, record_interval=50))
        np.testing.assert_allclose(together.agent_state.params[index], alone.agent_state.params, rtol=1e-6)
        for rows, (row,) in zip(all_rows, spy.arguments_of("record"), strict=True):
            expected = {name: value for name, value in row.items() if name not in ("time/fps", "time/time_elapsed")}
            assert {name: rows[index][name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_seeds_differ_from_each_other_in_training_and_evaluation(spy: type[SpyRecorder]) -> None:
    state = train(build(num_seeds=8))
    assert len(set(state.agent_state.params[:, 0].tolist())) == 8
    assert len({row["eval/mean_reward"] for row in spy.arguments_of("record")[-1]}) > 1


def test_a_key_is_split_over_the_seeds_and_a_wrong_number_of_keys_is_refused() -> None:
    workflow = build(num_seeds=2)
    keys = jax.random.split(jax.random.key(9), 2)
    assert_equal(workflow.init(jax.random.key(9)), workflow.init(keys))
    with pytest.raises(InvalidInputError, match=r"init takes one key, or 2 for the seeds; got \[3\]"):
        workflow.init(jax.random.split(jax.random.key(9), 3))


def test_a_workflow_that_is_not_compiled_gives_the_same() -> None:
    compiled, plain = (train(build(enable_jit, total_timesteps=30)) for enable_jit in (True, False))
    np.testing.assert_allclose(plain.agent_state.params, compiled.agent_state.params, rtol=1e-6)
    assert int(plain.env_steps) == int(compiled.env_steps)


# Recorders and files.


def test_recorders_are_called_in_order(spy: type[SpyRecorder]) -> None:
    train(build(total_timesteps=30, record_interval=30, seed=4))
    names = [name for name, _ in spy.calls if name != "live"]
    compiling = ["compiling", "compiled"]
    assert names == ["open", *compiling, *["advance"] * names.count("advance"), *compiling, "record", "finish", "close"]
    assert spy.arguments_of("advance") == sorted(set(spy.arguments_of("advance")))
    assert spy.arguments_of("advance")[-1] == 30
    (description,) = spy.arguments_of("open")
    assert (description.title, description.seeds) == ("counting on probe/cue_reward", (4,))
    assert description.total_timesteps == 30


def test_recorders_are_closed_when_one_of_them_fails(spy: type[SpyRecorder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spy, "fails_at", 40)
    with pytest.raises(OSError, match="the disk is full"):
        train(build(record_interval=20))
    assert spy.calls[-1] == ("close", None)
    assert spy.arguments_of("finish") == []


def test_from_python_nothing_is_written_unless_there_is_a_run_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workflow = build(recorders=["jsonl"])
    train(workflow)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInputError, match="no run_dir to restore from"):
        workflow.resume()


def test_a_run_directory_holds_config_records_timing_and_checkpoints(tmp_path: Path) -> None:
    config = {"run_dir": str(tmp_path / "run"), "recorders": ["jsonl"], "record_interval": 20}
    workflow = build(checkpoint_interval=40, **config)
    state = train(workflow)
    run = RunDirectory.open(tmp_path / "run")
    assert CountingWorkflow.build_from_config(run.config).settings.to_mapping() == workflow.settings.to_mapping()
    assert [row["time/total_timesteps"] for row in run.read_metrics()] == [20, 40, 60, 80, 100]
    timing = run.read_timing()
    assert timing is not None
    assert timing["env_steps"] == 100
    assert {"compile_seconds", "train_seconds", "evaluate_seconds", "collect_share"} <= set(timing)
    assert Checkpoints(run.checkpoints_path).steps() == [40, 80, 100]
    assert_equal(workflow.restore(), state)
    assert int(workflow.restore(40).iterations) == 4


def test_a_directory_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    workflow = build(run_dir=str(tmp_path / "run"), recorders=["jsonl"])
    train(workflow)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(InvalidInputError, match=r"already contains a run.*rookery resume"):
        train(workflow)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_run_that_another_process_trains_is_an_error(tmp_path: Path) -> None:
    workflow = build(run_dir=str(tmp_path / "run"), recorders=["jsonl"])
    train(workflow)
    with RunDirectory.open(tmp_path / "run").lock(), pytest.raises(RunInUseError):
        workflow.resume(step=80)
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [80, 90, 100]


def test_resuming_a_finished_run_changes_no_file_that_matters(tmp_path: Path) -> None:
    workflow = build(run_dir=str(tmp_path / "run"), recorders=["jsonl"])
    state = train(workflow)
    run = RunDirectory.open(tmp_path / "run")
    before = (run.metrics_path.read_text(), json.loads(run.timing_path.read_text()))
    assert_equal(workflow.resume(), state)
    assert (run.metrics_path.read_text(), json.loads(run.timing_path.read_text())) == before


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    config = {"recorders": ["jsonl"], "record_interval": 20}
    expected = train(build(run_dir=str(tmp_path / "whole"), **config))
    workflow = build(run_dir=str(tmp_path / "run"), **config)
    run = RunDirectory.create(tmp_path / "run", workflow.settings.to_mapping())
    run.metrics_path.write_text('{"seed": 0, "time/total_timesteps": 20}\n{"seed"')
    assert_equal(workflow.resume(), expected)
    assert [row["time/total_timesteps"] for row in run.read_metrics()] == [20, 40, 60, 80, 100]


class Disk:
    """Lets some checkpoints fail, counted from zero; keeps the steps of all attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: Sequence[int]) -> None:
        self.attempts: list[int] = []

        def write(folder: Path, leaves: Any, arrays: Any, files: Any, step: int, metadata: Any) -> None:
            self.attempts.append(step)
            if len(self.attempts) - 1 in failing:
                raise OSError(28, "No space left on device")
            write_checkpoint(folder, leaves, arrays, files, step, metadata)

        write_checkpoint = checkpoint._write
        monkeypatch.setattr(checkpoint, "_write", write)


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_next_one_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(monkeypatch, failing=[0, 2])
    workflow = build(run_dir=str(tmp_path / "run"), recorders=["jsonl"], checkpoint_interval=30)
    train(workflow)
    assert disk.attempts == [0, 30, 60, 90, 100]
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [30, 90, 100]
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == 2
    assert re.search(
        r"^checkpoint 60 could not be written to .*: No space left on device \(it needs 0\.0 MB, ", warnings[1]
    )
    assert warnings[1].endswith("Training continues and saves again when the next checkpoint is due.")


def test_the_last_checkpoint_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch, failing=[4])
    workflow = build(run_dir=str(tmp_path / "run"), recorders=["jsonl"], checkpoint_interval=30)
    with pytest.raises(CheckpointError, match=r"checkpoint 100 could not be written .*`rookery resume \S+ --step 90`"):
        train(workflow)


def test_a_run_that_starts_after_warm_up_steps_says_where_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives while the first program compiles, so no iteration reports its steps."""
    workflow = build(run_dir=str(tmp_path / "run"), recorders=["jsonl"])
    state = workflow.init(workflow.make_key())
    for _ in range(3):
        _, state = workflow.step(state)
    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "compile", lambda *_: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Interrupted, match="saved at 30 steps"):
            workflow.learn(state)
        with pytest.raises(Interrupted):
            workflow.resume()
    assert int(workflow.restore().iterations) == 3


def test_shapes_are_derived_once_and_not_at_every_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX keeps something for every `eval_shape`, so that memory would grow with the number of records."""
    workflow = build(record_interval=10)
    state = workflow.init(workflow.make_key())
    workflow.training.no_metrics(state)
    monkeypatch.setattr(jax, "eval_shape", pytest.fail)
    workflow.learn(state)
