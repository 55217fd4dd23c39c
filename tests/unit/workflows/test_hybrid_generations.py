"""Hybrids: what is counted, what is stored, what is evaluated, and how a run resumes."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.hybrid.erl import ERLWorkflow
from rookery.errors import RookeryError
from rookery.runs.directory import RunDirectory

EPISODE_LENGTH, POPULATION_SIZE = 10, 4
STEPS = EPISODE_LENGTH * (POPULATION_SIZE + 1)
"""The steps of a generation: no episode of the pendulum ends early."""


def make_workflow(train: dict | None = None, env: str = "classic/pendulum", **agent: Any) -> ERLWorkflow:
    learner = {"batch_size": 8, "network": {"hidden_sizes": [8]}, **agent.pop("learner", {})}
    agent = {"population_size": POPULATION_SIZE, "warmup_steps": STEPS + 1, "num_lanes": 2, "learner": learner, **agent}
    return ERLWorkflow.build_from_config(
        {
            "agent": agent,
            "env": {"name": env, "episode_length": EPISODE_LENGTH},
            "evaluation": {"num_episodes": 2},
            "total_timesteps": 4 * STEPS,
            "recorders": [],
            **(train or {}),
        }
    )


def assert_equal(one: Any, other: Any) -> None:
    def compare(path: Any, left: Any, right: Any) -> None:
        if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
            left, right = jax.random.key_data(left), jax.random.key_data(right)
        np.testing.assert_array_equal(left, right, err_msg=str(path))

    jax.tree_util.tree_map_with_path(compare, one, other)


def test_every_step_is_counted_and_stored_and_learned_from_after_the_warm_up() -> None:
    workflow = make_workflow(update_ratio=0.5, normalize_obs=True)
    state = workflow.init(workflow.make_key())
    for generation in (1, 2, 3):
        metrics, state = workflow.step(state)
        assert int(state.env_steps) == generation * STEPS == float(metrics["buffer/size"])
        assert int(state.num_updates) == (generation - 1) * round(0.5 * STEPS)
        assert float(state.agent_state.obs_preprocessor_state.count.value) == generation * STEPS
        # Five episodes on two lanes: one is idle during the last episode.
        assert float(metrics["rollout/idle_rows"]) == EPISODE_LENGTH
        assert float(metrics["hybrid/injections"]) == float(generation > 1)
    gradient = state.learner.gradient
    assert_equal(gradient.agent_state.obs_preprocessor_state, state.agent_state.obs_preprocessor_state)
    assert (int(gradient.env_steps), int(gradient.num_updates)) == (int(state.env_steps), int(state.num_updates))


def test_an_individual_whose_episode_is_not_finite_is_invalid_and_spoils_no_learner() -> None:
    workflow = make_workflow()
    state = workflow.init(workflow.make_key())
    evo_state = state.learner.evo_state
    population = jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), evo_state.population)
    state = state.replace_learner(evo_state=evo_state.replace(population=population))
    for _ in range(2):
        metrics, state = workflow.step(state)
    assert int(state.learner.evo_state.num_invalid) == 1
    assert int(state.env_steps) == 2 * STEPS == int(metrics["buffer/size"]) + EPISODE_LENGTH
    assert int(state.num_updates) > 0
    assert np.isfinite(metrics["train/critic_loss"])


def test_the_center_the_actor_and_the_best_individual_are_evaluated() -> None:
    workflow = make_workflow()
    state = workflow.init(workflow.make_key())
    agents = workflow.training.agents(state)
    assert set(agents) == {"eval/", "eval/rl_", "eval/best_"}
    assert all(set(agent.params) == {"policy"} for agent in agents.values())
    assert list(workflow.training.individuals(state)) == ["", "rl", "best"]
    metrics, _ = workflow.evaluate(state)
    for prefix in agents:
        assert metrics[f"{prefix}mean_ep_length"] == EPISODE_LENGTH


def test_a_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    def train(name: str, **train: Any) -> tuple[ERLWorkflow, Any]:
        run = {"run_dir": str(tmp_path / name), "record_interval": STEPS, **train}
        workflow = make_workflow(run, learner={"buffer_capacity": 120})
        return workflow, workflow.learn(workflow.init(workflow.make_key()))

    _, whole = train("whole")
    train("parts", total_timesteps=2 * STEPS)
    run = {"run_dir": str(tmp_path / "parts"), "record_interval": STEPS}
    resumed = make_workflow(run, learner={"buffer_capacity": 120}).resume()
    assert int(resumed.env_steps) == 4 * STEPS
    assert_equal(resumed, whole)


def test_a_checkpoint_without_its_buffer_is_refilled(tmp_path: Path) -> None:
    train = {"run_dir": str(tmp_path / "run"), "checkpoint": {"replay": False}}
    workflow = make_workflow(train)
    workflow.learn(workflow.init(workflow.make_key()))
    restored = make_workflow(train).restore()
    assert int(restored.learner.gradient.buffer_state.num_rows.sum()) == STEPS
    assert int(restored.env_steps) == 4 * STEPS


def test_the_config_of_a_run_has_all_options_of_both_parts(tmp_path: Path) -> None:
    workflow = make_workflow({"run_dir": str(tmp_path / "run")}, strategy={"num_elites": 1})
    workflow.learn(workflow.init(workflow.make_key()))
    agent = RunDirectory.open(tmp_path / "run").config["agent"]
    assert (agent["strategy"]["num_elites"], agent["strategy"]["crossover_probability"]) == (1, 0.0)
    assert (agent["learner"]["batch_size"], agent["learner"]["policy_delay"]) == (8, 2)
    assert "num_envs" not in agent["learner"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient": "ppo"}, r"agent\.gradient=ppo: expected one of .*td3"),
        ({"evolution": "td3"}, r"agent\.evolution=td3: expected one of .*ga"),
        ({"strategy": {"population_size": 3}}, r"agent\.strategy\.population_size.*set agent\.population_size"),
        ({"learner": {"rollout_length": 3}}, r"agent\.learner\.rollout_length has no effect"),
        ({"learner": {"policy_dela": 3}}, r"agent\.learner: unknown key 'policy_dela'.*policy_delay"),
        ({"learner": {"discount": 3}}, r"agent\.learner\.discount=3"),
        ({"num_episodes": 2, "learner_episodes": 1}, r"learner_episodes=1 must be a multiple of agent\.num_episodes=2"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict, message: str) -> None:
    with pytest.raises(RookeryError, match=message):
        make_workflow(**options)
