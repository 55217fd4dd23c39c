"""Generations: fitness, counts, shared observation statistics, and independence of lanes and seeds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.evolution.map_elites import MAPElitesWorkflow
from rookery.algorithms.evolution.open_es import OpenESWorkflow
from rookery.errors import InvalidInputError
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory

POPULATION_SIZE, NUM_EPISODES = 6, 2


def make_workflow(
    env: dict | None = None,
    num_seeds: int = 1,
    network: dict | None = None,
    train: dict | None = None,
    **agent: Any,
) -> Any:
    agent = {
        "population_size": POPULATION_SIZE,
        "num_episodes": NUM_EPISODES,
        "num_lanes": 4,
        "noise_std": 0.5,
        "network": {"hidden_sizes": [4], **(network or {})},
        **agent,
    }
    return OpenESWorkflow.build_from_config(
        {
            "agent": agent,
            "env": {"name": "classic/cartpole", "episode_length": 15, **(env or {})},
            "evaluation": {"num_episodes": 3},
            "total_timesteps": 10_000,
            "num_seeds": num_seeds,
            "recorders": [],
            **(train or {}),
        }
    )


def generations(workflow: Any, count: int) -> list[Any]:
    """The states before and after some generations."""
    states = [workflow.init(workflow.make_key())]
    for _ in range(count):
        states.append(workflow.step(states[-1])[1])
    return states


def assert_equal(one: Any, other: Any, **tolerance: float) -> None:
    def compare(path: Any, left: Any, right: Any) -> None:
        if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        np.testing.assert_allclose(left, right, **{"rtol": 0, "atol": 0, **tolerance}, err_msg=str(path))

    jax.tree_util.tree_map_with_path(compare, one, other)


@pytest.mark.usefixtures("optimized_programs")
def test_the_number_of_lanes_makes_no_difference() -> None:
    few, many = (generations(make_workflow(num_lanes=lanes, normalize_obs=True), 3)[-1] for lanes in (1, 12))
    assert_equal(few, many)


def test_every_step_of_every_episode_is_counted() -> None:
    workflow = make_workflow()
    metrics, state = workflow.step(workflow.init(workflow.make_key()))
    assert int(state.env_steps) == round(float(metrics["rollout/ep_len_mean"]) * POPULATION_SIZE * NUM_EPISODES)
    assert (int(state.iterations), int(state.learner.evo_state.generation)) == (1, 1)


def test_fitness_is_the_mean_return_of_an_individual() -> None:
    metrics, _ = (workflow := make_workflow()).step(workflow.init(workflow.make_key()))
    np.testing.assert_allclose(metrics["evolution/fitness_mean"], metrics["rollout/ep_rew_mean"], rtol=1e-6)
    quantiles = [metrics[f"evolution/fitness_{name}"] for name in ("min", "q25", "median", "q75", "max")]
    assert quantiles == sorted(quantiles)
    assert metrics["evolution/best_fitness"] == metrics["evolution/fitness_max"]


def test_running_statistics_are_those_of_all_observations_so_far_and_shared() -> None:
    states = generations(make_workflow(normalize_obs=True), 2)
    for state in states:
        assert float(state.agent_state.obs_preprocessor_state.count.value) == int(state.env_steps)
    assert np.all(np.asarray(states[1].agent_state.obs_preprocessor_state.std["obs"]) != 1.0)


def test_fixed_statistics_are_taken_once_before_the_first_generation() -> None:
    states = generations(make_workflow(normalize_obs=True, fixed_obs_statistics=True), 2)
    first, last = states[0].agent_state.obs_preprocessor_state, states[-1].agent_state.obs_preprocessor_state
    assert float(first.count.value) == 64 * 128
    assert_equal(first, last)
    assert np.all(np.asarray(first.std["obs"]) < 1.5)


def test_normalization_makes_a_difference_to_what_individuals_see() -> None:
    plain, normalized = (
        make_workflow(normalize_obs=is_normalized, fixed_obs_statistics=is_normalized)
        for is_normalized in (False, True)
    )
    returns = [generations(workflow, 1)[-1].learner.evo_state.best_fitness for workflow in (plain, normalized)]
    lengths = [int(generations(workflow, 1)[-1].env_steps) for workflow in (plain, normalized)]
    assert (returns[0], lengths[0]) != (returns[1], lengths[1])


def test_seeds_are_trained_as_if_each_were_alone() -> None:
    together = generations(make_workflow(num_seeds=2), 2)[-1]
    alone = generations(make_workflow(), 2)[-1]
    assert_equal(jax.tree.map(lambda leaf: leaf[0], together), alone, rtol=1e-5, atol=1e-6)
    leaves = jax.tree.leaves(together.agent_state.params)
    assert any(np.any(leaf[0] != leaf[1]) for leaf in leaves)


def test_each_seed_stops_at_its_own_budget_and_records_where_it_does_alone(tmp_path: Path) -> None:
    def records(name: str, num_seeds: int, **train: Any) -> dict[int, list[tuple[int, int]]]:
        """The env steps and generations of the records of each seed."""
        train |= {"total_timesteps": 700, "record_interval": 250, "recorders": ["jsonl"]}
        workflow = make_workflow({"episode_length": 60}, num_seeds, train=train | {"run_dir": str(tmp_path / name)})
        workflow.learn(workflow.init(workflow.make_key()))
        found: dict[int, list[tuple[int, int]]] = {}
        for row in RunDirectory(tmp_path / name).read_metrics():
            found.setdefault(row["seed"], []).append((row["time/total_timesteps"], row["time/iterations"]))
        return found

    together = records("together", num_seeds=3)
    assert len({of_seed[-1][1] for of_seed in together.values()}) > 1, "seeds need different numbers of generations"
    for seed, of_seed in together.items():
        # A seed whose generation passes two records waits at the second one.
        assert list(dict.fromkeys(of_seed)) == records(f"alone-{seed}", num_seeds=1, seed=seed)[seed]


def test_a_record_shows_the_archive_as_it_is_and_warns_once_of_a_negative_fitness(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = {"descriptors": ["last:obs.0", "last:obs.1"], "cells": [8, 8], "low": [-1.0, -1.0], "high": [1.0, 1.0]}
    workflow = MAPElitesWorkflow.build_from_config(
        {
            "agent": {"population_size": 4, "num_episodes": 1, "network": {"hidden_sizes": [4]}, **archive},
            "env": {"name": "classic/pendulum", "episode_length": 5},
            "total_timesteps": 160,
            "record_interval": 80,
            "run_dir": str(tmp_path / "run"),
            "recorders": ["jsonl"],
        }
    )
    state = workflow.learn(workflow.init(workflow.make_key()))
    first, last = RunDirectory(tmp_path / "run").read_metrics()
    report = workflow.training.optimizer.report(state.learner.evo_state)  # type: ignore[attr-defined]
    assert (first["time/iterations"], last["time/iterations"]) == (4, 8)
    for name in ("coverage", "qd_score"):
        assert last[f"evolution/{name}"] == float(report[name]) != first[f"evolution/{name}"]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["agent.qd_offset=0"]


def test_schedules_go_by_env_steps() -> None:
    workflow = make_workflow(noise_std={"start": 0.5, "end": 0.1})
    state = workflow.init(workflow.make_key())
    for _ in range(2):
        steps = int(state.env_steps)
        metrics, state = workflow.step(state)
        np.testing.assert_allclose(metrics["evolution/step_size"], 0.5 - 0.4 * steps / 10_000, rtol=1e-5)


def test_sampled_actions_differ_from_greedy_ones() -> None:
    greedy, sampled = (generations(make_workflow(explore=explore), 1)[-1] for explore in (False, True))
    assert int(greedy.env_steps) != int(sampled.env_steps)


def test_the_center_and_the_best_are_evaluated_on_the_same_episodes() -> None:
    workflow = make_workflow()
    state = generations(workflow, 1)[-1]
    metrics, after = workflow.evaluate(state)
    assert set(metrics) == {
        f"eval/{kind}{name}" for kind in ("", "best_") for name in ("mean_reward", "std_reward", "mean_ep_length")
    }
    same = state.replace_learner(evo_state=state.learner.evo_state.replace(best_params=state.agent_state.params))
    metrics, _ = workflow.evaluate(same)
    assert metrics["eval/mean_reward"] == metrics["eval/best_mean_reward"]
    assert_equal(after.learner.evo_state, state.learner.evo_state)


def test_an_individual_whose_return_is_nan_is_counted_and_does_not_move_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workflow = make_workflow()
    play = workflow.training._play

    def play_badly(*args: Any) -> Any:
        episodes = play(*args)
        returns = episodes.episode_returns.at[0].set(jnp.nan).at[1].set(jnp.inf)
        return episodes.replace(episode_returns=returns)

    monkeypatch.setattr(workflow.training, "_play", play_badly)
    metrics, state = workflow.step(workflow.init(workflow.make_key()))
    assert int(state.learner.evo_state.num_invalid) == 2
    assert np.isfinite(metrics["evolution/fitness_max"])
    assert all(
        np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((state.agent_state.params, state.learner.evo_state.mean))
    )
    assert np.isfinite(state.learner.evo_state.best_fitness)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"population_size": 0}, "population_size=0 must be an integer of at least 1"),
        ({"population_size": 7}, "population_size=7 must be even"),
        ({"num_episodes": 0}, "num_episodes=0 must be an integer of at least 1"),
        ({"noise_std": 0.0}, "agent.noise_std=0 must be at least 1e-09"),
        ({"fitness_shaping": "rank"}, "unknown fitness_shaping 'rank'"),
        ({"fixed_obs_statistics": True}, "no effect without normalize_obs=true"),
        ({"num_lanes": 0}, "num_lanes=0 must be an integer of at least 1"),
    ],
)
def test_impossible_settings_are_refused_when_the_workflow_is_built(agent: dict, message: str) -> None:
    with pytest.raises((InvalidInputError, LookupError), match=message):
        make_workflow(**agent)


@pytest.mark.parametrize("population_size", [64, 512])
def test_a_generation_holds_its_population_about_once(population_size: int) -> None:
    workflow = make_workflow(
        population_size=population_size, num_episodes=1, num_lanes=4, network={"hidden_sizes": [64, 64]}
    )
    state = jax.eval_shape(workflow.init, workflow.make_key())
    memory = jax.jit(workflow.step).lower(state).compile().memory_analysis()
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.agent_state.params))
    assert memory.temp_size_in_bytes < 1.6 * population_size * num_parameters * 4 + 2**20


# Host environments.


@pytest.fixture
def make_on_host() -> Iterator[Callable[..., Any]]:
    """Build workflows on host environments, which are closed at the end."""
    workflows = []

    def make(env: dict | None = None, **config: Any) -> Any:
        workflows.append(make_workflow({"name": "gymnasium/CartPole-v1", **(env or {})}, **config))
        return workflows[-1]

    yield make
    for workflow in workflows:
        workflow.close()


def test_learning_on_the_host_takes_the_steps_one_by_one(make_on_host: Callable[..., Any]) -> None:
    workflow = make_on_host(train={"total_timesteps": 150})
    start = workflow.init(workflow.make_key())
    learned, stepped = workflow.learn(start), start
    while int(stepped.env_steps) < 150:
        _, stepped = workflow.step(stepped)
    assert int(learned.iterations) == int(stepped.iterations) > 1
    jax.tree.map(np.testing.assert_allclose, learned.agent_state, stepped.agent_state)


def test_a_run_on_the_host_that_is_resumed_ends_where_the_uninterrupted_one_did(
    make_on_host: Callable[..., Any], tmp_path: Path
) -> None:
    train = {
        "run_dir": str(tmp_path / "run"),
        "total_timesteps": 400,
        "record_interval": 100,
        "checkpoint": {"interval": 100, "keep": None},
    }
    workflow = make_on_host(train=train)
    learned = workflow.learn(workflow.init(workflow.make_key()))
    again = make_on_host(train=train)
    first = Checkpoints(tmp_path / "run" / "checkpoints").steps()[1]
    resumed = again.resume(first)
    assert 0 < first < int(learned.env_steps)
    jax.tree.map(np.testing.assert_array_equal, resumed.agent_state, learned.agent_state)
    assert int(resumed.env_steps) == int(learned.env_steps)


def test_a_generation_on_the_host_cannot_be_played_ahead(make_on_host: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError, match="max_staleness=1 is for methods that learn from batches"):
        make_on_host(train={"max_staleness": 1})


def test_a_step_on_the_host_cannot_be_compiled(make_on_host: Callable[..., Any]) -> None:
    workflow = make_on_host()
    with pytest.raises(InvalidInputError, match="cannot be part of a compiled program"):
        jax.jit(workflow.step)(workflow.init(workflow.make_key()))
