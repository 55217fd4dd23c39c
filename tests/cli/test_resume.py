"""`rookery resume`."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from rookery import cli
from rookery.configs import compose
from rookery.recorders import jsonl
from rookery.runs import checkpoint
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.log import RunLog


def without_clock(run: RunDirectory) -> list[dict[str, Any]]:
    clock = ("time/fps", "time/time_elapsed")
    return [{name: value for name, value in row.items() if name not in clock} for row in run.read_metrics()]


@pytest.mark.parametrize("step", [32, 48])
def test_going_on_from_an_earlier_checkpoint_ends_as_the_first_time(
    step: int, finished_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(finished_run.path, moved)
    (moved / "report.html").unlink()
    assert cli.main(["resume", str(moved), "--step", str(step), "--yes"]) == 0
    assert without_clock(RunDirectory.open(moved)) == without_clock(finished_run.directory)
    assert capsys.readouterr().out.endswith(f"rookery report {moved}\n")
    assert (moved / "report.html").exists()


def test_a_step_without_a_checkpoint_is_an_error_that_names_the_others(
    finished_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["resume", finished_run.path, "--step", "3"]) == 2
    assert "choose one of 32, 48, 64" in capsys.readouterr().err


def test_a_run_whose_checkpoints_orbax_wrote_resumes_as_a_new_one(
    finished_run: Any, as_written_before: Callable[[str, int], str]
) -> None:
    before = as_written_before(finished_run.path, 3)
    assert cli.main(["resume", before, "--step", "32", "--yes"]) == 0
    assert without_clock(RunDirectory.open(before)) == without_clock(finished_run.directory)


def test_a_run_of_an_old_version_is_refused_in_one_sentence_and_left_as_it_is(
    finished_run: Any, as_written_before: Callable[[str, int], str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = as_written_before(finished_run.path, 1)
    assert cli.main(["resume", before]) == 2
    version = RunDirectory.open(before).version
    assert capsys.readouterr().err == (
        f"rookery: error: checkpoint 64 was written by Rookery {version} in format 1, and this version resumes formats "
        "3 to 4: the run cannot be resumed, but it can still be evaluated and reported.\n"
    )
    assert RunDirectory.open(before).read_metrics() == finished_run.directory.read_metrics()


def test_later_checkpoints_are_deleted_only_on_request(
    finished_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished_run.path, copy)
    assert cli.main(["resume", str(copy), "--step", "32"]) == 2
    assert capsys.readouterr().err == (
        "rookery: error: --step 32 deletes 2 later checkpoints (48, 64) and the records after step 32: add --yes, or "
        f"copy {copy} first.\n"
    )
    assert Checkpoints(copy / "checkpoints").steps() == [32, 48, 64]
    assert RunDirectory.open(copy).read_metrics() == finished_run.directory.read_metrics()
    assert cli.main(["resume", str(copy), "--step", "64"]) == 0  # nothing is later


def test_a_run_killed_at_any_moment_of_going_back_can_be_resumed(
    finished_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies at its n-th change of the checkpoints and of the records, for every n."""

    class Killed(BaseException):
        pass

    def mortal(function: Any) -> Any:
        def change(*args: Any, **kwargs: Any) -> Any:
            nonlocal num_left
            num_left -= 1
            if num_left < 0:
                raise Killed
            return function(*args, **kwargs)

        return change

    for moment in range(4):
        copy = tmp_path / str(moment)
        shutil.copytree(finished_run.path, copy)
        num_left = moment
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "_remove", mortal(checkpoint._remove))
            patch.setattr(jsonl, "keep_first_lines", mortal(jsonl.keep_first_lines))
            patch.setattr(RunLog, "advance", mortal(RunLog.advance))
            with pytest.raises(Killed):
                cli.main(["resume", str(copy), "--step", "32", "--yes"])
        assert Checkpoints(copy / "checkpoints").steps() == [32, 48, 64][: max(1, 3 - moment)]
        assert cli.main(["resume", str(copy)]) == 0
        assert without_clock(RunDirectory.open(copy)) == without_clock(finished_run.directory)


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["resume", str(tmp_path)]) == 2
    assert f"{tmp_path} is not a run directory" in capsys.readouterr().err


def test_a_run_that_another_process_trains_is_left_alone(
    finished_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = tmp_path / "busy"
    shutil.copytree(finished_run.path, busy)
    with RunDirectory.open(busy).lock():
        assert cli.main(["resume", str(busy), "--step", "32", "--yes"]) == 2
    assert "is in use by process" in capsys.readouterr().err


EVOLUTION = [
    "agent=openes",
    "agent.population_size=4",
    "agent.num_lanes=2",
    "env.episode_length=5",
    "total_timesteps=64",
]


@pytest.mark.parametrize(
    ("is_evolution", "said"),
    [
        (False, "restarts with new episodes and new seeds: simulator state is not checkpointed\n"),
        (True, "restarts, as in every generation\n"),
    ],
    ids=["a2c", "openes"],
)
def test_a_resumed_run_says_that_its_simulators_restart(
    is_evolution: bool, said: str, small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*(EVOLUTION if is_evolution else small), "env=gymnasium/CartPole-v1", f"run_dir={tmp_path / 'run'}"]
    assert cli.main(["train", *overrides]) == 0
    assert "restarts" not in capsys.readouterr().out
    assert cli.main(["resume", str(tmp_path / "run")]) == 0
    assert f"gymnasium/CartPole-v1 {said}" in capsys.readouterr().out


def test_a_diverged_run_can_be_resumed_with_other_hyperparameters(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "run")
    command = ["train", *small, "agent.learning_rate=1e30", "agent.max_grad_norm=null", f"run_dir={run.path}"]
    assert cli.main(command) == 2
    assert "seed 0 diverged at" in capsys.readouterr().err
    changes = ["agent.learning_rate={start: 1e-3, end: 0}", "agent.max_grad_norm=0.5"]
    assert cli.main(["resume", str(run.path), "--step", "0", "--yes", *changes]) == 0
    assert run.config["agent"]["learning_rate"] == {"start": 0.001, "end": 0.0, "steps": 64.0}
    rows = run.read_metrics()
    assert rows[-1]["time/total_timesteps"] == 64
    assert 0.0 < rows[-1]["train/learning_rate"] < 1e-3
    (resumed,) = run.manifest["resumed"]
    assert (resumed["step"], resumed["before"]) == (0, {"agent.learning_rate": 1e30, "agent.max_grad_norm": None})
    assert cli.main(["resume", str(run.path)]) == 0, "a later command needs no overrides"


def test_settings_that_shape_the_program_cannot_change_in_a_resumed_run(
    finished_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, value in {"agent.num_envs": 8, "seed": 3, "env": "classic/pendulum", "checkpoint.replay": False}.items():
        assert cli.main(["resume", finished_run.path, f"{key}={value}"]) == 2
        assert f"{key}: a resumed run cannot change it. It can change total_timesteps" in capsys.readouterr().err
    assert cli.main(["resume", finished_run.path, "agent.learning_rat=1"]) == 2
    assert "unknown key 'agent.learning_rat'. Did you mean 'agent.learning_rate'?" in capsys.readouterr().err


def test_a_finished_run_goes_on_with_a_larger_budget_and_other_intervals(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "run")
    assert cli.main(["train", *small, f"run_dir={run.path}", "agent.learning_rate={start: 1e-3, end: 0}"]) == 0
    changes = ["total_timesteps=128", "record_interval=32", "recorders=[jsonl]", "checkpoint.keep=1"]
    assert cli.main(["resume", str(run.path), *changes]) == 0
    steps = [row["time/total_timesteps"] for row in run.read_metrics()]
    assert steps[-2:] == [96, 128]
    assert run.config["agent"]["learning_rate"] == {"start": 0.001, "end": 0.0, "steps": 128.0}
    assert run.manifest["resumed"][0]["before"]["total_timesteps"] == 64
    capsys.readouterr()


def test_other_versions_are_named_when_a_run_is_resumed(
    finished_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(shutil.copytree(finished_run.path, tmp_path / "run"))
    manifest = run.manifest
    manifest["versions"]["jax"] = "0.1.2"
    run.manifest_path.write_text(json.dumps(manifest))
    assert cli.main(["resume", str(run.path)]) == 0
    assert f"resumed with jax {jax.__version__} instead of 0.1.2" in capsys.readouterr().out
    assert cli.main(["resume", str(run.path)]) == 0
    assert "instead of" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["openes", "ppo"])
def test_hyperparameters_of_seeds_and_of_evolution_can_change(name: str, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    sizes = {
        "openes": ["agent.population_size=4", "total_timesteps=300"],
        "ppo": ["agent.num_envs=4", "agent.rollout_length=4", "total_timesteps=32"],
    }
    common = ["agent.network.hidden_sizes=[4]", "num_seeds=2", "evaluation.num_episodes=2", "checkpoint.keep=null"]
    assert cli.main(["train", f"agent={name}", *sizes[name], *common, f"run_dir={run.path}"]) == 0
    assert cli.main(["resume", str(run.path), "--step", "0", "--yes", "agent.learning_rate=0"]) == 0
    assert run.config["agent"]["learning_rate"] == 0.0
    metric = {"openes": "evolution/center_0", "ppo": "train/learning_rate"}[name]
    (first, *_, last) = [row[metric] for row in run.read_metrics() if row["seed"] == 1 and metric in row]
    assert first == last


def test_a_job_that_is_retried_begins_resumes_and_finds_itself_finished(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "run")
    command = ["train", *small, f"run_dir={run.path}", "--or-resume"]
    assert cli.main(command) == 0
    for later in Checkpoints(run.checkpoints_path).steps()[1:]:
        shutil.rmtree(run.checkpoints_path / f"{later:012d}")
    expected = without_clock(run)
    assert cli.main(command) == 0
    assert without_clock(run) == expected
    assert len(run.manifest["resumed"]) == 1
    capsys.readouterr()
    assert cli.main(command) == 0
    assert f"the run in {run.path} is finished" in capsys.readouterr().out
    assert cli.main([*command, "total_timesteps=96"]) == 0
    assert run.read_metrics()[-1]["time/total_timesteps"] == 96


def test_a_retried_job_that_a_hook_ended_is_finished(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "run")
    command = ["train", *small, f"run_dir={run.path}", "stop_at.value=1"]
    assert cli.main([*command, "--or-resume"]) == 0
    (*_, last) = run.read_metrics()
    assert last["time/total_timesteps"] < 64
    assert cli.main([*command, "--or-resume"]) == 0
    assert re.search(r"is finished: stopped at \d+ steps: eval/mean_reward is", capsys.readouterr().out)
    assert run.read_metrics()[-1] == last
    assert cli.main(["resume", str(run.path), "stop_at.value=1e9"]) == 0
    assert run.read_metrics()[-1]["time/total_timesteps"] == 64


def test_a_replay_buffer_keeps_its_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["agent.num_envs=4", "agent.warmup_steps=32", "agent.batch_size=8", "agent.buffer_capacity=64"]
    RunDirectory.create(tmp_path / "run", compose(["agent=dqn", *sizes]))
    assert cli.main(["resume", str(tmp_path / "run"), "devices=2"]) == 2
    expected = "devices=2: the replay buffer of this run is split over its devices: keep devices=null.\n"
    assert capsys.readouterr().err == f"rookery: error: {expected}"


def test_a_retried_job_with_another_config_is_refused_with_the_key(
    finished_run: Any, small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", *small, f"run_dir={finished_run.path}", "--or-resume"]
    assert cli.main([*command, "agent.num_envs=8"]) == 2
    assert "has another agent.num_envs: choose another run_dir" in capsys.readouterr().err
    assert cli.main([*command, "agent=impala"]) == 2
    assert "has another agent.name" in capsys.readouterr().err
    assert cli.main(["train", *small, "--or-resume"]) == 2
    assert "--or-resume needs to know the run: add run_dir=FOLDER." in capsys.readouterr().err
