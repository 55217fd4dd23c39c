"""What every method of the registry does: build, train, evaluate, record under known names, and describe itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from rookery.algorithms.hybrid.workflow import HybridWorkflow
from rookery.configs import compose
from rookery.configuration import field_names
from rookery.registry import AGENTS, build_workflow, workflow_class
from rookery.runs.directory import RunDirectory
from rookery.types import PyTreeDict
from rookery.workflows import evaluation as evaluation_module
from rookery.workflows.evolution.workflow import ECWorkflow
from rookery.workflows.off_policy import OffPolicyWorkflow
from rookery.workflows.on_policy import OnPolicyWorkflow
from rookery.workflows.workflow import Workflow

METHODS = sorted(set(AGENTS) - {"pbt"})
"""PBT trains members of the others: `tests/unit/populations/test_pbt.py`."""
EVOLUTION = [method for method in METHODS if issubclass(workflow_class(method), ECWorkflow)]
ON_POLICY = [method for method in METHODS if issubclass(workflow_class(method), OnPolicyWorkflow)]
OFF_POLICY = [method for method in METHODS if issubclass(workflow_class(method), OffPolicyWorkflow)]
HYBRID = [method for method in METHODS if issubclass(workflow_class(method), HybridWorkflow)]
ENV_OVERRIDES = {
    "counter": ["env=probe/counter", "env.kwargs.dict_obs=true"],
    "mask": ["env=probe/mask", "env.autoreset_mode=envpool", "agent.normalize_obs=true"],
    "multi_discrete": ["env=probe/multi_discrete"],
    "continuous": ["env=probe/continuous", "agent.network.gaussian.bounds=squash"],
    "memory": ["env=probe/memory", "agent.network.core=gru", "env.autoreset_mode=fast"],
}
OVERRIDES_OF_FAMILIES = {
    "on-policy": {"multi_discrete": ["agent.network.shared=true"], "continuous": ["agent.normalize_rewards=true"]},
    "evolution": {"continuous": ["agent.explore=true"], "memory": ["agent.network.core_size=4"]},
    "off-policy": {
        "mask": ["agent.prioritized=true", "agent.n_step=3"],
        "memory": ["agent.sequence_length=4", "agent.burn_in=2"],
    },
}
KINDS_OF_OFF_POLICY = {
    "dqn": ("counter", "mask", "memory"),
    "ddpg": ("continuous",),
    "td3": ("continuous",),
    "sac": ("counter", "mask", "continuous", "memory"),
}
"""What the actions of each of them may be."""
MEASURES = {
    "nsga2": ["agent.objectives=[sum:reward,mean:reward]"],
    "map_elites": ["agent.descriptors=[sum:reward,last:reward]"],
    "pga_me": ["agent.strategy.descriptors=[sum:reward,last:reward]"],
}
"""What any environment has."""
ACTOR_CRITIC = {"train/loss", "train/value_loss", "train/entropy_loss", "train/grad_norm"}
ACTOR_CRITIC |= {"train/learning_rate", "train/n_updates"}
CRITICS = {"train/actor_loss", "train/critic_loss", "train/value", "train/n_updates"}
TRAIN_METRICS = {
    "ppo": ACTOR_CRITIC
    | {"train/policy_gradient_loss", "train/approx_kl", "train/clip_fraction", "train/clip_range"}
    | {"train/explained_variance"},
    "a2c": ACTOR_CRITIC | {"train/policy_loss", "train/explained_variance"},
    "impala": ACTOR_CRITIC | {"train/policy_loss", "train/approx_kl"},
    "dqn": {"train/loss", "train/value", "train/learning_rate", "rollout/exploration_rate", "train/n_updates"},
    "ddpg": CRITICS,
    "td3": CRITICS,
    "sac": CRITICS | {"train/entropy", "train/ent_coef"},
}
"""The names that Stable-Baselines3 gives to the same numbers; it has none for the norm of the gradient."""
QUANTILES = ("min", "q25", "median", "q75", "max", "mean", "std")
FITNESS = {"evolution/best_fitness", *(f"evolution/fitness_{name}" for name in QUANTILES)}
OBJECTIVES = {f"evolution/objective_{index}_{name}" for index in range(2) for name in QUANTILES}
EVOLUTION_METRICS = {
    "nsga2": OBJECTIVES | {"evolution/front_size"},
    "map_elites": FITNESS
    | {"evolution/coverage", "evolution/qd_score", "evolution/lowest_elite", "evolution/num_rejected"}
    | {"evolution/max_fitness", "evolution/archive_mean", "qd/added_by_variation"},
}
ALWAYS = {"seed", "time/total_timesteps", "time/iterations", "time/fps", "time/time_elapsed"}
EPISODES = {"rollout/ep_rew_mean", "rollout/ep_len_mean"}
EVALUATION = {"eval/mean_reward", "eval/std_reward", "eval/mean_ep_length"}
CENTER = {"evolution/center_0", "evolution/center_1"}
"""Recorded for small networks."""
EVALUATION_OF_BEST = {"eval/best_mean_reward", "eval/best_std_reward", "eval/best_mean_ep_length"}


def kinds_of(tree: Any) -> list[tuple]:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def test_every_method_belongs_to_a_family_that_is_tested_here() -> None:
    assert sorted(EVOLUTION + ON_POLICY + OFF_POLICY + HYBRID) == METHODS
    assert set(TRAIN_METRICS) == {*ON_POLICY, *OFF_POLICY}
    assert set(KINDS_OF_OFF_POLICY) == set(OFF_POLICY)


@pytest.mark.parametrize(
    ("method", "kind"),
    [(method, kind) for method in [*ON_POLICY, "openes"] for kind in ENV_OVERRIDES]
    + [(method, "counter") for method in EVOLUTION if method != "openes"]
    + [(method, kind) for method, kinds in KINDS_OF_OFF_POLICY.items() for kind in kinds],
)
def test_it_can_be_traced_with_its_defaults_on_environments_of_every_kind(
    method: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = "evolution" if method in EVOLUTION else "on-policy" if method in ON_POLICY else "off-policy"
    overrides = [*ENV_OVERRIDES[kind], *OVERRIDES_OF_FAMILIES[family].get(kind, []), *MEASURES.get(method, [])]
    workflow = build_workflow(compose([f"agent={method}", *overrides, "env.episode_length=10"]))
    monkeypatch.setattr(evaluation_module, "create_env", None)  # environments are built before anything is traced
    state = jax.eval_shape(workflow.init, workflow.make_key())
    metrics, after = jax.eval_shape(workflow.step, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert kinds_of(after) == kinds_of(state)
    assert isinstance(metrics, PyTreeDict)
    assert {leaf.shape for leaf in jax.tree.leaves(metrics)} == {()}
    assert set(metrics) - CENTER == metrics_of(method)
    evaluation, _ = jax.eval_shape(workflow.evaluate, state)
    assert set(evaluation) == evaluation_of(method)


HYBRIDS_IN = {
    "continuous": ["env=probe/continuous"],
    "counter": ["env=probe/counter", "env.kwargs.dict_obs=true", "agent.gradient=sac"],
}
OF_EXCHANGE = {
    "pga_me": EVOLUTION_METRICS["map_elites"] | {"qd/added_by_gradient", "qd/added_actor", "qd/actor_fitness"}
}
"""What is recorded instead of the injections and the step size."""


@pytest.mark.parametrize(("method", "kind"), [(method, "continuous") for method in HYBRID] + [("erl", "counter")])
def test_a_hybrid_can_be_traced_with_its_defaults(method: str, kind: str) -> None:
    overrides = [*HYBRIDS_IN[kind], *MEASURES.get(method, []), "env.episode_length=10"]
    workflow = build_workflow(compose([f"agent={method}", *overrides]))
    state = jax.eval_shape(workflow.init, workflow.make_key())
    metrics, after = jax.eval_shape(workflow.step, state)
    assert kinds_of(after) == kinds_of(state)
    expected = FITNESS | EPISODES | {"hybrid/rl_fitness", "rollout/idle_rows", "rollout/rows_not_finite", "buffer/size"}
    expected |= OF_EXCHANGE.get(method, {"evolution/step_size", "hybrid/injections"})
    expected |= {"train/actor_loss", "train/critic_loss"}
    expected |= {"train/value"} | ({"train/entropy", "train/ent_coef"} if kind == "counter" else set())
    expected |= {"hybrid/elites_from_gradient"} if method in ("erl", "cem_rl") else set()
    assert set(metrics) == expected
    evaluation, _ = jax.eval_shape(workflow.evaluate, state)
    of_learner = {name.replace("eval/", "eval/rl_") for name in EVALUATION}
    assert set(evaluation) == EVALUATION | EVALUATION_OF_BEST | of_learner


def metrics_of(method: str) -> set[str]:
    """What a step measures; the loop counts the updates."""
    if method in EVOLUTION:
        return EVOLUTION_METRICS.get(method, FITNESS | {"evolution/step_size"}) | EPISODES
    return TRAIN_METRICS[method] - {"train/n_updates"} | EPISODES


def evaluation_of(method: str) -> set[str]:
    return EVALUATION | (EVALUATION_OF_BEST if method in EVOLUTION and method != "nsga2" else set())


@pytest.mark.parametrize("method", METHODS)
def test_its_config_describes_it_completely(method: str) -> None:
    names = [name for name in field_names(workflow_class(method).hyperparameters_class) if name != "initial_std"]
    schedule = [f"agent.{name}={{start: 0.5, end: 0.25}}" for name in names[:1]]
    env = f"env=classic/{'cartpole' if method == 'dqn' else 'pendulum'}"
    workflow = build_workflow(compose([f"agent={method}", env, *schedule, "num_seeds=2"]))
    mapping = workflow.settings.to_mapping()
    again = build_workflow(yaml.safe_load(yaml.safe_dump(mapping)))
    assert again.settings.to_mapping() == mapping
    assert (again.settings.train, again.settings.method) == (workflow.settings.train, workflow.settings.method)
    assert type(again) is workflow_class(method)


@pytest.mark.parametrize("method", METHODS)
def test_its_yaml_and_its_dataclasses_have_the_same_defaults(method: str) -> None:
    env = "classic/mountain_car_continuous" if method in ("ddpg", "td3", *HYBRID) else "probe/counter"
    composed = build_workflow(compose([f"agent={method}", f"env={env}", "env.episode_length=5"]))
    bare = build_workflow({"agent": {"name": method}, "env": {"name": env, "episode_length": 5}})
    assert composed.settings.to_mapping() == bare.settings.to_mapping()


def on_policy_workflow(method: str, run_dir: Path) -> OnPolicyWorkflow:
    """Train for 4 iterations of 32 steps, with a record after every other one."""
    agent: dict[str, Any] = {"name": method, "num_envs": 4, "rollout_length": 8, "network": {"hidden_sizes": [8]}}
    return build_workflow(
        {
            "agent": agent,
            "env": {"name": "probe/cue_reward", "episode_length": 5},
            "total_timesteps": 4 * 8 * 4,
            "record_interval": 4 * 8 * 2,
            "evaluation": {"num_episodes": 3, "interval": 10**6},
            "run_dir": str(run_dir),
            "recorders": ["jsonl"],
        }
    )


def off_policy_workflow(method: str, run_dir: Path) -> OffPolicyWorkflow:
    """Warm up for 32 steps, then train for 3 iterations of 32 steps and 2 updates each; a record at 64 and at 128."""
    agent: dict[str, Any] = {"num_envs": 4, "rollout_length": 8, "updates_per_step": 1 / 16, "batch_size": 8}
    agent |= {"name": method, "warmup_steps": 32, "network": {"hidden_sizes": [8]}}
    return build_workflow(
        {
            "agent": agent,
            "env": {"name": f"probe/{'cue_reward' if method == 'dqn' else 'continuous'}", "episode_length": 5},
            "total_timesteps": 4 * 32,
            "record_interval": 2 * 32,
            "evaluation": {"num_episodes": 3, "interval": 10**6},
            "run_dir": str(run_dir),
            "recorders": ["jsonl"],
        }
    )


def evolutionary_workflow(method: str, run_dir: Path) -> ECWorkflow:
    """Train for 4 generations of 8 individuals with 2 episodes of 5 steps, with a record after every other one."""
    return build_workflow(
        {
            "agent": {
                "name": method,
                "population_size": 8,
                "num_episodes": 2,
                "num_lanes": 3,
                "network": {"hidden_sizes": [4]},
            },
            "env": {"name": "classic/pendulum", "episode_length": 5},
            "total_timesteps": 4 * 80,
            "record_interval": 2 * 80,
            "evaluation": {"num_episodes": 3, "interval": 10**6},
            "run_dir": str(run_dir),
            "recorders": ["jsonl"],
        }
    )


def params_of(state: Any) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.agent_state.params)])


@pytest.mark.parametrize("method", ON_POLICY)
def test_an_on_policy_method_learns_and_records_under_known_names(method: str, tmp_path: Path) -> None:
    workflow = on_policy_workflow(method, tmp_path / "run")
    state = workflow.init(workflow.make_key())
    learned = workflow.learn(state)
    workflow.close()
    assert (int(learned.iterations), int(learned.env_steps)) == (4, 4 * 32)
    assert int(learned.num_updates) > 0
    assert np.any(params_of(learned) != params_of(state))
    assert np.any(jax.random.key_data(learned.eval_key) != jax.random.key_data(state.eval_key))
    first, last = RunDirectory.open(tmp_path / "run").read_metrics()
    assert set(first) == ALWAYS | TRAIN_METRICS[method] | EPISODES
    assert set(last) == set(first) | EVALUATION
    assert all(np.isfinite(value) for value in (first | last).values())
    assert last["train/n_updates"] == int(learned.num_updates)
    assert -1.0 <= last["eval/mean_reward"] <= 1.0


@pytest.mark.parametrize("method", OFF_POLICY)
def test_an_off_policy_method_learns_and_records_under_known_names(method: str, tmp_path: Path) -> None:
    workflow = off_policy_workflow(method, tmp_path / "run")
    state = workflow.init(workflow.make_key())
    assert int(state.env_steps) == 32
    learned = workflow.learn(state)
    workflow.close()
    assert (int(learned.iterations), int(learned.env_steps)) == (3, 4 * 32)
    assert int(learned.num_updates) == 3 * 2
    assert np.any(params_of(learned) != params_of(state))
    first, last = RunDirectory.open(tmp_path / "run").read_metrics()
    assert set(first) == ALWAYS | TRAIN_METRICS[method] | EPISODES
    assert set(last) == set(first) | EVALUATION
    assert all(np.isfinite(value) for value in (first | last).values())
    assert last["train/n_updates"] == 6


# The other strategies differ from OpenES in their optimizer alone, and tests/learning trains every one of them.
@pytest.mark.parametrize("method", ["openes", "evosax", "nsga2", "map_elites"])
def test_an_evolutionary_method_learns_and_records_under_known_names(method: str, tmp_path: Path) -> None:
    workflow = evolutionary_workflow(method, tmp_path / "run")
    state = workflow.init(workflow.make_key())
    learned = workflow.learn(state)
    workflow.close()
    assert (int(learned.iterations), int(learned.env_steps)) == (4, 4 * 80)
    assert int(learned.learner.evo_state.generation) == 4
    assert np.any(params_of(learned) != params_of(state))
    first, last = RunDirectory.open(tmp_path / "run").read_metrics()
    assert set(first) - CENTER == ALWAYS | {"train/n_updates", "evolution/num_invalid"} | metrics_of(method)
    assert set(last) == set(first) | evaluation_of(method)
    assert all(np.isfinite(value) for value in (first | last).values())
    assert last["evolution/num_invalid"] == 0


@pytest.mark.usefixtures("collecting_timed")
@pytest.mark.parametrize(("make", "method"), [(on_policy_workflow, "ppo"), (evolutionary_workflow, "openes")])
def test_of_every_family_one_is_stepped_evaluated_and_timed_by_itself(
    make: Callable[[str, Path], Workflow], method: str, tmp_path: Path
) -> None:
    workflow = make(method, tmp_path / "run")
    state = workflow.init(workflow.make_key())
    metrics, stepped = workflow.step(state)
    assert isinstance(metrics, PyTreeDict)
    assert all(np.isfinite(value) for value in metrics.values())
    assert (int(stepped.iterations), int(stepped.env_steps)) == (1, workflow.settings.train.total_timesteps // 4)
    assert int(stepped.num_updates) > 0
    assert np.any(params_of(stepped) != params_of(state))
    evaluation, evaluated = workflow.evaluate(stepped)
    assert set(evaluation) == evaluation_of(method)
    assert np.any(jax.random.key_data(evaluated.eval_key) != jax.random.key_data(stepped.eval_key))
    assert workflow.training.collect_seconds(stepped) > 0.0
    workflow.close()
