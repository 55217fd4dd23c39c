"""`rookery evaluate`."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats
import yaml
from PIL import Image, ImageSequence

from rookery import cli
from rookery.cli.console import make_console
from rookery.cli.evaluate import print_results
from rookery.envs import AutoresetMode, create_env
from rookery.metrics import EvaluateMetric
from rookery.registry import build_workflow
from rookery.rollout import fast_eval_rollout_episode
from rookery.runs.directory import RunDirectory
from rookery.workflows.workflow import Workflow


def rows_of(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_the_figures_are_those_of_the_greedy_policy(finished_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", finished_run.path, "--episodes", "50"]) == 0
    title, header, row = capsys.readouterr().out.splitlines()
    assert title == "a2c on classic/cartpole after 64 env steps, 50 greedy episodes"
    assert header.split() == ["seed", "return", "std", "min", "max", "length", "shortest", "longest"]
    mean, std, low, high, length, shortest, longest = map(float, row.split()[1:])

    workflow = build_workflow(finished_run.directory.config)
    agent_state = workflow.restore().agent_state
    env = create_env("classic/cartpole", parallel=2000, autoreset_mode=AutoresetMode.DISABLED)
    metrics, _ = fast_eval_rollout_episode(
        env.step, workflow.agent.evaluate_actions, env.reset(jax.random.key(1)), agent_state, jax.random.key(2), 500
    )
    returns = np.asarray(metrics.episode_returns, np.float64)
    assert abs(mean - returns.mean()) < 6 * returns.std() / np.sqrt(50) + 0.01
    assert returns.min() <= low <= mean <= high <= returns.max() + 1e-6
    assert std <= (high - low) / 2 + 0.01
    # CartPole pays 1 for every step.
    assert (length, shortest, longest) == (pytest.approx(mean, abs=0.1), low, high)


def test_the_seed_decides_which_episodes_are_played(finished_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for seed in ("3", "3", "4"):
        assert cli.main(["evaluate", finished_run.path, "--episodes", "50", "--seed", seed]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


def test_an_earlier_checkpoint_can_be_evaluated(finished_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", finished_run.path, "--episodes", "50", "--step", "32"]) == 0
    assert "after 32 env steps" in capsys.readouterr().out


def test_the_best_checkpoint_can_be_evaluated(finished_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    evaluations = [row for row in finished_run.directory.read_metrics() if "eval/mean_reward" in row]
    best = max(evaluations, key=lambda row: row["eval/mean_reward"])["time/total_timesteps"]
    assert cli.main(["evaluate", finished_run.path, "--episodes", "50", "--best"]) == 0
    assert f"after {best:.0f} env steps" in capsys.readouterr().out


def test_every_seed_has_a_row_and_all_have_an_interquartile_mean(
    seeds_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", seeds_run.path, "--episodes", "5"]) == 0
    *_, first, second, third, summary = rows_of(capsys.readouterr().out)
    assert [row[0] for row in (first, second, third)] == ["5", "6", "7"]
    means = [float(row[1]) for row in (first, second, third)]
    assert float(summary[1].rstrip(",")) == pytest.approx(scipy.stats.trim_mean(means, 0.25), abs=0.02)
    assert re.fullmatch(r"IQM \S+, 95 % interval \S+ to \S+, 3 seeds", " ".join(summary))


def test_a_policy_that_is_nan_is_counted_and_no_part_of_the_mean(capsys: pytest.CaptureFixture[str]) -> None:
    result = EvaluateMetric(episode_returns=np.full(3, 5.0), episode_lengths=np.full(3, 9))
    teams = {seed: {"policy": SimpleNamespace(agent_state=np.array(value))} for seed, value in enumerate([1.0, np.nan])}
    print_results(make_console(), teams, dict.fromkeys(teams, result))  # type: ignore[arg-type]
    assert capsys.readouterr().out.splitlines()[-1] == "IQM 5.00, 1 of 2 seeds; 1 of 2 seeds diverged"


EVOLUTION = [
    "agent=openes",
    "agent.population_size=4",
    "agent.num_lanes=2",
    "agent.network.hidden_sizes=[4]",
    "total_timesteps=500",
]
BEST_INDIVIDUAL = ["--individual", "best"]


def test_the_best_individual_can_be_evaluated_instead_of_the_center(
    as_written_before: Callable[[str, int], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert cli.main(["train", *EVOLUTION, f"run_dir={run}"]) == 0
    state = build_workflow(RunDirectory.open(run).config).restore()
    capsys.readouterr()
    outputs = []
    for path, options in ((run, []), (run, BEST_INDIVIDUAL), (as_written_before(run, 1), BEST_INDIVIDUAL)):
        assert cli.main(["evaluate", path, "--episodes", "50", *options]) == 0
        outputs.append(capsys.readouterr().out)
    center, best, best_before = outputs
    assert f"after {int(state.env_steps):,} env steps" in best
    assert center != best == best_before


@pytest.mark.parametrize(("name", "version"), [("finished_run", 1), ("finished_run", 2), ("seeds_run", 1)])
def test_a_run_of_an_older_version_is_evaluated_as_a_new_one(
    name: str,
    version: int,
    as_written_before: Callable[[str, int], str],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = request.getfixturevalue(name).path
    outputs = []
    for path in (run, as_written_before(run, version)):
        assert cli.main(["evaluate", path, "--episodes", "20", "--step", "48"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_an_evaluation_builds_no_training(
    finished_run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a workflow was built")

    monkeypatch.setattr(Workflow, "__init__", refuse)
    assert cli.main(["evaluate", finished_run.path, "--episodes", "5"]) == 0
    assert "5 greedy episodes" in capsys.readouterr().out


def test_settings_of_the_environment_can_be_changed(finished_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", finished_run.path, "--episodes", "8", "env.episode_length=7"]) == 0
    title, _, row = capsys.readouterr().out.splitlines()
    assert title == "a2c on classic/cartpole after 64 env steps, 8 greedy episodes"
    assert row.split()[1:] == ["7.00", "0.00", "7.00", "7.00", "7.0", "7", "7"]


def test_every_seed_plays_another_environment_with_the_same_spaces(
    seeds_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", seeds_run.path, "--episodes", "100"]) == 0
    on_device = rows_of(capsys.readouterr().out)
    options = ["--episodes", "100", "env=gymnasium/CartPole-v1"]
    assert cli.main(["evaluate", seeds_run.path, *options]) == 0
    title, *on_host = rows_of(capsys.readouterr().out)
    assert title[2] == "gymnasium/CartPole-v1"
    for ours, gymnasiums in zip(on_device[2:5], on_host[1:4], strict=True):
        assert ours[0] == gymnasiums[0]
        assert float(ours[1]) == pytest.approx(float(gymnasiums[1]), abs=4 * float(ours[2]) / 10 + 1)


@pytest.mark.parametrize("env_name", ["absent/simulator", "own_host/MyEnv", "own/MyEnv"])
def test_a_run_whose_environment_is_not_there_plays_another(
    env_name: str, finished_run: Any, missing_library: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(finished_run.path, run.path)
    env = {"name": env_name, "episode_length": 3, "kwargs": {"gravity": 1}}
    run.config_path.write_text(yaml.safe_dump(run.config | {"env": env}))
    assert cli.main(["evaluate", str(run.path), "--episodes", "9"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    outputs = []
    for path in (str(run.path), finished_run.path):
        assert cli.main(["evaluate", path, "--episodes", "9", "env=classic/cartpole"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", ["out.gif", "out.webp"])
def test_a_video_shows_an_episode(
    name: str, finished_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = tmp_path / name
    assert cli.main(["evaluate", finished_run.path, "--episodes", "4", "--video", str(video)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(video)
    with Image.open(video) as picture:
        assert picture.n_frames > 5


def test_a_run_on_an_environment_of_the_host_has_its_video_too(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, video = tmp_path / "run", tmp_path / "out.gif"
    assert cli.main(["train", *small, "env=gymnasium/CartPole-v1", f"run_dir={run}"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", str(run), "--episodes", "2", "--video", str(video)]) == 0
    title, *_, last_line = capsys.readouterr().out.splitlines()
    assert title == "a2c on gymnasium/CartPole-v1 after 64 env steps, 2 greedy episodes"
    assert last_line == str(video)
    with Image.open(video) as picture:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(picture)]
    assert len(frames) > 5
    assert frames[0].std() > 0, "there is something to be seen"
    assert not np.array_equal(frames[0], frames[-1]), "it moves"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--episodes", "0"], "--episodes=0 must be an integer of at least 1."),
        (["--video", "out.mp4"], "--video=out.mp4: the name must end in .gif, "),
        (["--best", "--step", "32"], "step=32 and best: choose one checkpoint."),
        (["--policy", "other"], "unknown policy 'other'. Known: policy."),
        (["agent=ppo"], "agent: this run has no own class there; start a new run to change it."),
        (["seed=1"], "seed=1: an evaluation can change the environment, env=NAME and env.KEY=VALUE."),
        (["env.nope=1"], "unknown key 'env.nope'."),
        (
            ["env=classic/pendulum"],
            "the policy has observations in Box([-4.8, -inf, -0.418879, -inf], [4.8, inf, 0.418879, inf], (4,), "
            "float32), and classic/pendulum in Box([-1, -1, -8], [1, 1, 8], (3,), float32): take ",
        ),
        (["--step", "3"], "there is no checkpoint 3 in "),
    ],
)
def test_options_that_cannot_be_met_are_one_line(
    options: list[str], message: str, finished_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", finished_run.path, *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"rookery: error: {message}")
    assert (captured.out, captured.err.count("\n")) == ("", 1)
