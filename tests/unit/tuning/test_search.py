"""Searches on disk."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rookery
from rookery.configs import compose, compose_with_preset
from rookery.errors import InvalidInputError
from rookery.runs.directory import RunDirectory
from rookery.runs.files import UnsafeFileError
from rookery.runs.search_directory import SearchDirectory
from rookery.runs.trial_results import DIVERGED, FAILED, FINISHED, TrialResult, best_of, ranked
from rookery.tuning import batches, one_by_one
from rookery.tuning.batches import BatchTrainer
from rookery.tuning.config import TuneConfig
from rookery.tuning.search import Search
from rookery.tuning.space import settings_of
from rookery.tuning.trainer import Context, Rung, build, run_settings

SMALL = [
    "agent=a2c",
    "env=classic/cartpole",
    "agent.num_envs=4",
    "agent.rollout_length=4",
    "agent.network.hidden_sizes=[4]",
    "total_timesteps=96",
    "record_interval=16",
    "evaluation.interval=32",
    "evaluation.num_episodes=4",
    "checkpoint.interval=16",
]
RATES = {"agent.learning_rate": {"low": 1e-4, "high": 1e-1, "scale": "log"}}


BYTES_NEEDED = batches.bytes_needed


@pytest.fixture(autouse=True, scope="module")
def less_is_traced() -> Iterator[None]:
    """Keep what JAX has traced from one run to the next, and trace no program for the sake of its memory."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (batches, one_by_one):
            patch.setattr(module, "forget_programs", lambda: None)
        patch.setattr(batches, "bytes_needed", lambda settings, num_states: 0)
        yield


class Killed(BaseException):
    """What ends a process in these tests."""


def silent(text: str) -> None:
    pass


def search(space: dict[str, Any], *overrides: str, **tune: Any) -> Search:
    return Search(compose([*SMALL, *overrides]), space, TuneConfig(**tune))


def run(path: Path, own: Search, say: Callable[[str], object] = silent) -> list[TrialResult]:
    return own.run(SearchDirectory.create(path, own.description), say)


def halving() -> Search:
    return search(RATES, "num_seeds=2", trials=4, search="halving")


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> SearchDirectory:
    """A finished search; tests leave it as it is."""
    path = tmp_path_factory.mktemp("searches") / "halving"
    run(path, halving())
    return SearchDirectory.open(path)


def test_trials_that_differ_in_numbers_are_the_lanes_of_one_run_and_equal_runs_on_their_own(tmp_path: Path) -> None:
    rates = [1e-3, 1e-1]
    results = run(tmp_path / "search", search({"agent.learning_rate": rates}, trials=2))
    assert [path.name for path in (tmp_path / "search" / "runs").iterdir()] == ["batch-0"]
    by_rate = {result.values["agent.learning_rate"]: result for result in results}
    for rate in rates:
        config = compose([*SMALL, "num_seeds=2", f"agent.learning_rate={rate}", "recorders=[]"])
        del config["env"]
        alone = rookery.train("a2c", "classic/cartpole", config=config)
        assert by_rate[rate].fitness == alone.metrics["eval/mean_reward"][-1, 0]
    assert by_rate[1e-3].fitness != by_rate[1e-1].fitness


def test_at_each_rung_the_worse_half_stops_and_the_others_go_on(halved: SearchDirectory) -> None:
    results = halved.read_results()
    by_rung = {rung: [result for result in results if result.rung == rung] for rung in (1, 2, 3)}
    assert [len(by_rung[rung]) for rung in (1, 2, 3)] == [4, 2, 1]
    assert {result.env_steps for result in by_rung[2]} == {64}
    for before, after in ((1, 2), (2, 3)):
        best = ranked(by_rung[before])[: len(by_rung[after])]
        assert {result.trial for result in by_rung[after]} == {result.trial for result in best}
    assert all(result.fitness == np.mean(result.fitness_of_seeds) for result in results)  # type: ignore[arg-type]


def test_the_trial_that_is_left_equals_one_that_was_never_stopped(halved: SearchDirectory, tmp_path: Path) -> None:
    """The rungs continue the state; 32 steps are a multiple of the interval of evaluations, so keys agree, too."""
    last = max(halved.read_results(), key=lambda result: result.rung)
    best = search({"agent.learning_rate": [last.values["agent.learning_rate"]]}, "num_seeds=2", trials=1)
    (whole,) = run(tmp_path / "whole", best)
    assert whole.fitness_of_seeds == last.fitness_of_seeds


def test_a_killed_search_ends_with_the_files_of_an_uninterrupted_one(halved: SearchDirectory, tmp_path: Path) -> None:
    """It dies in the second rung, after an evaluation and before the checkpoint that follows."""
    lines: list[str] = []

    def die(text: str) -> None:
        lines.append(text)
        if len(lines) == 4:
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path / "killed", halving(), die)
    directory = SearchDirectory.open(tmp_path / "killed")
    Search.reopened(directory).run(directory, silent)
    assert directory.trials_path.read_bytes() == halved.trials_path.read_bytes()
    assert directory.best_path.read_text().splitlines()[1:] == halved.best_path.read_text().splitlines()[1:]


def test_the_best_setting_is_a_preset_that_train_takes(halved: SearchDirectory) -> None:
    best = best_of(halved.read_results())
    assert best is not None
    config = compose_with_preset(halved.best_path, ["seed=7"])
    wanted = settings_of(halving().base | {"seed": 7}, best.values)
    assert settings_of(config, {}).to_mapping() == wanted.to_mapping()
    other = compose_with_preset(halved.best_path, ["agent.num_envs=8", "env=classic/acrobot"])
    assert (other["agent"]["num_envs"], other["env"]["name"]) == (8, "classic/acrobot")
    assert other["agent"]["rollout_length"] == 4


@pytest.mark.parametrize(
    "agent",
    [
        ["agent=sac", "agent.warmup_steps=8"],
        ["agent=cem_rl", "agent.warmup_steps=10"],
        ["agent=pbt", "agent.method=sac", "agent.member.warmup_steps=1", "agent.population_size=4"],
    ],
)
def test_a_state_has_room_for_the_replay_rows_of_later_rungs(agent: list[str], tmp_path: Path) -> None:
    settings = settings_of(compose([*agent, "env=classic/pendulum", "total_timesteps=96"]), {})
    shapes = []
    for rung in (Rung(1, 32), Rung(3, 96)):
        workflow = build(run_settings(settings, rung, RunDirectory(tmp_path), seed=0))
        state = workflow.training.state_shape(workflow.make_key())
        shapes.append([leaf.shape for leaf in jax.tree.leaves(state)])
    assert shapes[0] == shapes[1]


def test_a_trial_that_diverges_is_counted_and_stops_no_other(tmp_path: Path) -> None:
    said: list[str] = []
    results = run(tmp_path / "search", search({"agent.learning_rate": [1e30, 1e-3]}, trials=2), said.append)
    assert [result.values["agent.learning_rate"] for result in results] == [1e-3, 1e30]
    assert (results[1].status, results[1].fitness) == (DIVERGED, None)
    assert "  1 of 2 trials diverged" in said


def test_shapes_become_further_programs_and_batches_have_the_size_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = search({**RATES, "agent.num_envs": [2, 4]}, trials=9)
    directory = SearchDirectory.create(tmp_path / "search", own.description)
    trainer = BatchTrainer(Context(own.base, 1, directory, silent), None)
    trials = own._sampler().ask()
    of_two = [trial for trial in trials if trial.values["agent.num_envs"] == 2]
    sizes = [len(batch.trials) for batch in trainer._batches(trials)]
    assert sorted(sizes) == sorted([len(of_two), 9 - len(of_two)])
    needed = BYTES_NEEDED(settings_of(own.base, of_two[0].values), 2)
    monkeypatch.setattr(batches, "bytes_needed", BYTES_NEEDED)
    monkeypatch.setattr(batches, "memory_bytes", lambda: batches.HEADROOM * needed)
    assert [len(batch.trials) for batch in trainer._batches(of_two[:4])] == [2, 2]


@pytest.mark.parametrize(
    ("overrides", "tune", "message"),
    [
        (["run_dir=runs/x"], {}, "run_dir=runs/x: set search_dir instead"),
        (["stop_at.value=10"], {}, "stop_at.value ends a run"),
        (["video.interval=10"], {}, "video.interval: trials make no videos"),
        (["env=gymnasium/CartPole-v1"], {"trials_at_once": 2}, "gymnasium/CartPole-v1 is on the host"),
    ],
)
def test_settings_without_a_meaning_in_a_search_are_refused(
    overrides: list[str], tune: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        search(RATES, *overrides, **tune)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"stop_at.value": [10, 20]}, "the choice 10 of stop_at.value does not fit: stop_at.value ends a run"),
        ({"video": [{"interval": None}, {"interval": 10}]}, "the choice .* of video does not fit: video.interval"),
    ],
)
def test_choices_without_a_meaning_in_a_search_are_refused(space: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        search(space)


def test_choices_that_do_not_fit_together_are_refused_before_the_first_trial() -> None:
    own = search({"agent.num_minibatches": [2, 8], "agent.num_envs": [2, 4]}, "agent=ppo", trials=4)
    with pytest.raises(InvalidInputError, match="num_minibatches=8 leaves one sample per minibatch"):
        own.check()


PENDULUM = ["env=classic/pendulum", "env.episode_length=5", "agent.population_size=4"]


@pytest.mark.parametrize(
    ("space", "agent", "warmup_steps"),
    [
        ({"learning_rate": RATES["agent.learning_rate"]}, ["agent=dqn"], "agent.warmup_steps=40"),
        ({"update_ratio": [0.5, 1.0]}, ["agent=cem_rl", *PENDULUM], "agent.warmup_steps=40"),
        ({"num_episodes": [1, 2]}, ["agent=pbt", "agent.method=sac", *PENDULUM], "agent.member.warmup_steps=10"),
    ],
)
def test_a_first_rung_that_ends_before_the_warmup_is_refused_before_the_first_trial(
    space: dict[str, Any], agent: list[str], warmup_steps: str
) -> None:
    """A member of a population has its share of the steps: 8 of 32."""
    base = compose([*agent, warmup_steps, "total_timesteps=96"])
    space = {f"agent.{name}": values for name, values in space.items()}
    own = Search(base, space, TuneConfig(trials=2, search="halving"))
    with pytest.raises(InvalidInputError, match=rf"rungs=3 of .*=96: the first ends after 32 .*{warmup_steps}"):
        own.check()
    Search(base, space, TuneConfig(trials=2, search="halving", rungs=2)).check()


def test_a_rung_in_which_nothing_is_evaluated_is_an_error(tmp_path: Path) -> None:
    """The first rung ends with its iteration of 16 steps, which is the end of the second."""
    own = search(RATES, "num_seeds=2", "total_timesteps=24", trials=4, search="halving")  # the programs of `halving`
    with pytest.raises(InvalidInputError, match="no trial has a fitness after 16 env steps, rung 2 of 3: eval/mean_re"):
        run(tmp_path / "search", own)


def test_trials_on_the_host_train_one_after_the_other_and_continue_at_the_next_rung(tmp_path: Path) -> None:
    own = search(RATES, "env=gymnasium/CartPole-v1", trials=2, search="halving", rungs=2)
    results = run(tmp_path / "search", own)
    assert [result.rung for result in results] == [2, 1]
    runs = sorted(path.name for path in (tmp_path / "search" / "runs").iterdir())
    assert runs == ["trial-0-seed-0", "trial-1-seed-0"]
    assert results[0].env_steps >= 96 > results[1].env_steps


def test_a_failing_trial_on_the_host_stops_no_other_and_seeds_train_in_runs_of_their_own(tmp_path: Path) -> None:
    limits = {"env.kwargs.max_episode_steps": ["many", 100]}
    own = search(limits, "env=gymnasium/CartPole-v1", "num_seeds=2", trials=2)
    results = run(tmp_path / "search", own)
    assert [result.status for result in results] == [FINISHED, FAILED]
    runs = {path.name for path in (tmp_path / "search" / "runs").iterdir()}
    assert len(results[0].fitness_of_seeds) == 2 == len(runs & {f"trial-1-seed-{seed}" for seed in (0, 1)})
    assert results[1].error


def test_no_combination_is_tried_twice() -> None:
    assert len(search({"agent.num_envs": [2, 4]}, trials=32)._sampler().ask()) == 2


def test_a_directory_holds_one_search(halved: SearchDirectory) -> None:
    with pytest.raises(InvalidInputError, match=r"continue it with `rookery tune --resume "):
        SearchDirectory.create(halved.path, {})


def test_the_directory_of_a_search_continues_it_and_no_other(halved: SearchDirectory) -> None:
    assert halving().directory(str(halved.path)).path == halved.path
    with pytest.raises(InvalidInputError, match="has another tune: choose another search_dir, or continue that search"):
        search(RATES, "num_seeds=2", trials=5, search="halving").directory(str(halved.path))


def test_results_of_other_trials_are_refused(halved: SearchDirectory, tmp_path: Path) -> None:
    own = halving()
    directory = SearchDirectory.create(tmp_path / "search", own.description)
    first, *others = halved.read_results()
    directory.add([replace(first, values={"agent.learning_rate": 1.0}), *others])
    with pytest.raises(InvalidInputError, match=r"trial 0 in .* has other values than the search proposes"):
        own.run(directory, silent)


def test_a_run_of_a_search_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """The checkpoints of a rung are deleted after the next one: through a link, those of a run elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "search" / "runs").mkdir(parents=True)
    (tmp_path / "search" / "runs" / "batch-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFileError, match="batch-0 is a link, expected a folder"):
        run(tmp_path / "search", search(RATES, trials=1))
