"""Hooks: what they see after a record, how they stop a run and change its state; the best and old checkpoints."""

import itertools
import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.runs.checkpoint import CheckpointError, Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.interruption import Interrupted
from rookery.types import PyTreeDict
from rookery.workflows import loop
from rookery.workflows.hooks import Hooks, RecordEvent
from rookery.workflows.saved.states import SavedStates
from rookery.workflows.workflow import Workflow
from tests.unit.workflows.test_workflow import CountingWorkflow


def build(**config: Any) -> CountingWorkflow:
    """Build a run of 100 steps, 10 in an iteration, which is recorded and evaluated every 20."""
    config = {
        "env": {"name": "probe/cue_reward", "episode_length": 3},
        "recorders": ["jsonl"],
        "total_timesteps": 100,
        "record_interval": 20,
        "evaluation": {"interval": 20, "num_episodes": 2},
        "checkpoint": {"interval": 100},
        **config,
    }
    return CountingWorkflow.build_from_config(config)


def learn(workflow: Workflow, on_record: Hooks = ()) -> Any:
    return workflow.learn(workflow.init(workflow.make_key()), on_record)


def evaluating_to(workflow: Workflow, values: Sequence[Any]) -> Workflow:
    """Let the evaluations of a run give these returns, one after the other."""
    results = iter(values)

    def evaluate(state: Any) -> tuple[PyTreeDict, Any]:
        return PyTreeDict({"eval/mean_reward": jnp.asarray(next(results), jnp.float32)}), state

    workflow.training.evaluate = evaluate  # type: ignore[method-assign]
    return workflow


def test_a_hook_sees_every_record_and_its_metrics() -> None:
    seen: list[tuple[int, int, float]] = []
    learn(build(), lambda event: seen.append((event.env_steps, event.iterations, event.metrics["train/number"])))
    assert seen == [(20, 2, 0.5), (40, 4, 2.5), (60, 6, 4.5), (80, 8, 6.5), (100, 10, 8.5)]


def test_several_hooks_are_called_in_order() -> None:
    calls: list[str] = []
    learn(build(), [lambda _: calls.append("a"), lambda _: calls.append("b")])
    assert calls == ["a", "b"] * 5


@pytest.mark.parametrize("on_record", [3, [print, 3]])
def test_a_hook_that_cannot_be_called_is_refused(on_record: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"on_record=.*: expected a function of a RecordEvent"):
        learn(build(), on_record)


def test_with_several_seeds_a_hook_sees_their_mean_and_each_row() -> None:
    events: list[RecordEvent] = []
    learn(build(num_seeds=3), events.append)
    draws = [row["train/draw"] for row in events[0].rows]
    assert len(set(draws)) == 3
    assert events[0].metrics["train/draw"] == pytest.approx(np.mean(draws))
    assert "seed" not in events[0].metrics


def test_the_state_of_an_event_stays_valid_while_the_run_goes_on() -> None:
    states: list[Any] = []
    learn(build(), lambda event: states.append(event.state))
    assert [int(state.iterations) for state in states] == [2, 4, 6, 8, 10]


def test_a_hook_stops_a_run_which_is_then_saved_and_can_be_resumed(tmp_path: Path) -> None:
    workflow = build(run_dir=str(tmp_path / "run"))
    state = learn(workflow, lambda event: event.env_steps >= 40 and event.stop("enough"))
    assert int(state.env_steps) == 40
    run = RunDirectory.open(tmp_path / "run")
    assert Checkpoints(run.checkpoints_path).steps()[-1] == 40
    assert run.read_timing() is not None
    assert int(workflow.resume().env_steps) == 100
    assert [row["time/total_timesteps"] for row in run.read_metrics()] == [20, 40, 60, 80, 100]


def test_a_hook_replaces_the_state_and_the_checkpoint_has_the_new_one(tmp_path: Path) -> None:
    def set_to_1000(event: RecordEvent) -> None:
        if event.env_steps == 80:
            state = event.state
            agent_state = state.agent_state.replace(params=jnp.full(3, 1000.0))
            event.replace_state(state.replace_learner(agent_state=agent_state))
            event.stop()

    workflow = build(run_dir=str(tmp_path / "run"))
    state = learn(workflow, set_to_1000)
    np.testing.assert_array_equal(state.agent_state.params, np.full(3, 1000.0))
    np.testing.assert_array_equal(workflow.restore().agent_state.params, np.full(3, 1000.0))


def test_a_record_whose_state_was_replaced_is_not_the_best(tmp_path: Path) -> None:
    """Its evaluation is not that of the state that would be saved."""

    def replace(event: RecordEvent) -> None:
        if event.env_steps == 60:
            event.replace_state(event.state)

    workflow = build(run_dir=str(tmp_path / "run"))
    learn(evaluating_to(workflow, [1.0, 2.0, 9.0, 1.0, 1.0]), replace)
    assert Checkpoints(tmp_path / "run" / "checkpoints").best_step() == 40


def test_a_state_of_another_step_is_refused() -> None:
    states: list[Any] = []

    def go_back(event: RecordEvent) -> None:
        states.append(event.state)
        if event.env_steps == 40:
            event.replace_state(states[0])

    with pytest.raises(
        InvalidInputError, match=r"the state is at 20 env steps, and the run at 40: replace the learner"
    ):
        learn(build(), go_back)


def test_a_state_of_another_shape_is_refused() -> None:
    def shrink(event: RecordEvent) -> None:
        state = event.state
        event.replace_state(state.replace_learner(agent_state=state.agent_state.replace(params=jnp.zeros(2))))

    with pytest.raises(InvalidInputError, match="replace_state: expected a state with the tree, shapes and dtypes"):
        learn(build(), shrink)


def test_stop_at_ends_a_run_when_its_metric_reaches_the_value(capsys: pytest.CaptureFixture) -> None:
    workflow = build(stop_at={"value": 5}, recorders=["console"])
    state = learn(evaluating_to(workflow, [1.0, 4.9, 5.0, 6.0]))
    assert int(state.env_steps) == 60
    assert "stopped at 60 steps: eval/mean_reward is 5 and reached stop_at.value=5" in capsys.readouterr().out


def test_a_metric_that_is_never_recorded_is_a_warning_with_the_nearest_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        learn(build(stop_at={"metric": "eval/mean_rewards", "value": 5}))
    assert "stop_at.metric=eval/mean_rewards was never recorded: did you mean eval/mean_reward?" in caplog.messages


def test_videos_need_a_run_directory() -> None:
    with pytest.raises(InvalidInputError, match=r"video.interval=40 needs a run_dir"):
        learn(build(video={"interval": 40}))


def test_videos_are_written_inside_the_run_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run may be a stranger's, with a link in place of the folder."""
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "videos").symlink_to(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING):
        learn(build(video={"interval": 40}, run_dir=str(tmp_path / "run"), env={"name": "classic/cartpole"}))
    assert "no video at 40 steps" in caplog.text
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_video_that_cannot_be_made_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The probe cannot be rendered."""
    with caplog.at_level(logging.WARNING):
        state = learn(build(video={"interval": 40}, run_dir=str(tmp_path / "run")))
    assert int(state.env_steps) == 100
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "no video at 40 steps",
        "no video at 80 steps",
    ]


# The best checkpoint.


def test_the_best_evaluation_is_saved_at_once_and_kept_with_the_newest(tmp_path: Path) -> None:
    workflow = build(run_dir=str(tmp_path / "run"), checkpoint={"interval": 20, "keep": 1})
    learn(evaluating_to(workflow, [1.0, 7.0, 3.0, 7.0, 2.0]))
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.steps() == [40, 100]
    assert checkpoints.best_step() == 40


def test_a_best_evaluation_is_saved_also_where_no_checkpoint_is_due(tmp_path: Path) -> None:
    workflow = build(run_dir=str(tmp_path / "run"))
    learn(evaluating_to(workflow, [1.0, 2.0, float("nan"), 1.5, 1.0]))
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [20, 40, 100]


def test_a_resumed_run_compares_with_the_best_before(tmp_path: Path) -> None:
    workflow = build(run_dir=str(tmp_path / "run"))
    stop_after_two = (event for event in itertools.count(1))
    learn(evaluating_to(workflow, [5.0, 1.0]), lambda event: next(stop_after_two) == 2 and event.stop())
    evaluating_to(workflow, [4.0, 4.5, 4.9]).resume()
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert (checkpoints.best_step(), checkpoints.steps()) == (20, [20, 40, 100])


def test_the_best_of_several_seeds_has_the_highest_mean_of_those_that_did_not_diverge(tmp_path: Path) -> None:
    is_best: list[bool] = []
    workflow = build(num_seeds=2)
    learn(evaluating_to(workflow, [[1, 5], [4, 4], [9, -2], [5, 3], [0, 8]]), lambda e: is_best.append(e.is_best))
    assert is_best == [True, True, False, False, False]


def test_a_best_checkpoint_that_cannot_be_written_is_not_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, number = SavedStates.save, itertools.count()

    def save_but_not_the_third(*args: Any) -> None:
        if next(number) == 2:
            raise CheckpointError("the disk is full.")
        save(*args)

    monkeypatch.setattr(SavedStates, "save", save_but_not_the_third)
    learn(evaluating_to(build(run_dir=str(tmp_path / "run")), [1.0, 9.0, 2.0, 3.0, 2.5]))
    assert Checkpoints(tmp_path / "run" / "checkpoints").best_step() == 80


# Checkpoints by time.


def test_a_checkpoint_is_saved_if_the_last_one_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes four minutes."""
    clock = itertools.count(0, 240)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(loop, "SECONDS_PER_CALL", 0.0)  # one iteration per call
    config = {"interval": 100, "keep": None, "keep_best": False}
    learn(build(run_dir=str(tmp_path / "by_time"), checkpoint=config, record_interval=100))
    assert Checkpoints(tmp_path / "by_time" / "checkpoints").steps() == [0, 30, 60, 90, 100]
    learn(build(run_dir=str(tmp_path / "not"), checkpoint=config | {"minutes": None}, record_interval=100))
    assert Checkpoints(tmp_path / "not" / "checkpoints").steps() == [0, 100]


# Interrupts.


def test_an_interrupt_carries_the_state_and_is_a_keyboard_interrupt() -> None:
    workflow = build()

    def interrupt(event: RecordEvent) -> None:
        if event.env_steps == 40:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stopped:
        learn(workflow, interrupt)
    assert isinstance(stopped.value, Interrupted)
    assert int(stopped.value.state.env_steps) == 40
    assert not isinstance(stopped.value, Exception)
    assert int(jax.device_get(workflow.step(stopped.value.state)[1].iterations)) == 5
