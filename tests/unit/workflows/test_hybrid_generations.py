"""Hybrids: what is counted, what is stored, what is evaluated, and how a run resumes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.hybrid.erl import ERLWorkflow
from rookery.errors import RookeryError
from rookery.workflows.evolution.hybrids import DeviceHybrids
from tests.equivalence.interrupted_runs import assert_equal, assert_resumes, with_run

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


@pytest.fixture(scope="module")
def shared() -> ERLWorkflow:
    """One workflow for several tests, because it takes long to compile; four generations overfill its buffer."""
    train = {"record_interval": STEPS}
    return make_workflow(train, update_ratio=0.5, normalize_obs=True, learner={"buffer_capacity": 160})


@pytest.fixture(autouse=True)
def nothing_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the program that times how experience is gathered, which commands in the docs run."""
    monkeypatch.setattr(DeviceHybrids, "collect_seconds", lambda self, state: 0.0)


def test_every_step_is_counted_and_stored_and_learned_from_after_the_warm_up(shared: ERLWorkflow) -> None:
    workflow = shared
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


def test_an_individual_whose_episode_is_not_finite_is_invalid_and_spoils_no_learner(shared: ERLWorkflow) -> None:
    workflow = shared
    state = workflow.init(workflow.make_key())
    evo_state = state.learner.evo_state
    population = jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), evo_state.population)
    state = state.replace_learner(evo_state=evo_state.replace(population=population))
    for _ in range(2):
        metrics, state = workflow.step(state)
        assert float(metrics["rollout/rows_not_finite"]) == (EPISODE_LENGTH if int(state.iterations) == 1 else 0.0)
    assert int(state.learner.evo_state.num_invalid) == 1
    assert int(state.env_steps) == 2 * STEPS == int(metrics["buffer/size"]) + EPISODE_LENGTH
    assert int(state.num_updates) > 0
    assert np.isfinite(metrics["train/critic_loss"])


def test_the_center_the_actor_and_the_best_individual_are_evaluated(shared: ERLWorkflow) -> None:
    workflow = shared
    state = workflow.init(workflow.make_key())
    agents = workflow.training.agents(state)
    assert set(agents) == {"eval/", "eval/rl_", "eval/best_"}
    assert all(set(agent.params) == {"policy"} for agent in agents.values())
    assert list(workflow.training.individuals(state)) == ["", "rl", "best"]
    metrics, _ = workflow.evaluate(state)
    for prefix in agents:
        assert metrics[f"{prefix}mean_ep_length"] == EPISODE_LENGTH


def test_a_run_resumes_bit_for_bit(shared: ERLWorkflow, tmp_path: Path) -> None:
    assert_resumes(shared, tmp_path, num_steps=4 * STEPS)


def test_a_checkpoint_without_its_buffer_is_refilled(shared: ERLWorkflow, tmp_path: Path) -> None:
    workflow = with_run(shared, tmp_path / "run", checkpoint=replace(shared.settings.train.checkpoint, replay=False))
    workflow.learn(workflow.init(workflow.make_key()))
    restored = workflow.restore()
    assert int(restored.learner.gradient.buffer_state.num_rows.sum()) == STEPS
    assert int(restored.env_steps) == 4 * STEPS


def test_the_config_of_a_run_has_all_options_of_both_parts() -> None:
    agent = make_workflow(strategy={"num_elites": 1}).settings.to_mapping()["agent"]
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
        ({"warmup_steps": 4 * STEPS}, r"agent\.warmup_steps=200 must be less than total_timesteps=200"),
        ({"num_episodes": 2, "learner_episodes": 1}, r"learner_episodes=1 must be a multiple of agent\.num_episodes=2"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict, message: str) -> None:
    with pytest.raises(RookeryError, match=message):
        make_workflow(**options)
