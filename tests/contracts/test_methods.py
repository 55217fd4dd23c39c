"""What every method of the registry does: build, train, evaluate, record under known names, and describe itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from rookery.configs import compose
from rookery.registry import AGENTS, build_workflow, workflow_class
from rookery.runs import RunDirectory
from rookery.types import PyTreeDict

METHODS = sorted(AGENTS)
ENV_OVERRIDES = {
    "counter": ["env=probe/counter", "env.kwargs.dict_obs=true"],
    "mask": ["env=probe/mask", "env.autoreset_mode=envpool", "agent.normalize_obs=true"],
    "multi_discrete": ["env=probe/multi_discrete", "agent.network.shared=true"],
    "continuous": ["env=probe/continuous", "agent.network.gaussian.bounds=squash", "agent.normalize_rewards=true"],
    "memory": ["env=probe/memory", "agent.network.core=gru", "env.autoreset_mode=fast"],
}
ACTOR_CRITIC = {"train/loss", "train/value_loss", "train/entropy_loss", "train/grad_norm"}
ACTOR_CRITIC |= {"train/learning_rate", "train/n_updates"}
TRAIN_METRICS = {
    "ppo": ACTOR_CRITIC
    | {"train/policy_gradient_loss", "train/approx_kl", "train/clip_fraction", "train/clip_range"}
    | {"train/explained_variance"},
    "a2c": ACTOR_CRITIC | {"train/policy_loss", "train/explained_variance"},
    "impala": ACTOR_CRITIC | {"train/policy_loss", "train/approx_kl"},
}
"""The names that Stable-Baselines3 gives to the same numbers; it has none for the norm of the gradient."""
ALWAYS = {"seed", "time/total_timesteps", "time/iterations", "time/fps", "time/time_elapsed"}
EPISODES = {"rollout/ep_rew_mean", "rollout/ep_len_mean"}
EVALUATION = {"eval/mean_reward", "eval/std_reward", "eval/mean_ep_length"}


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    """Compile in less time to slower programs: what is run here is over at once."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def kinds_of(tree: Any) -> list[tuple]:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def test_the_metrics_of_every_method_are_stated_here() -> None:
    assert set(TRAIN_METRICS) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ENV_OVERRIDES)
def test_it_can_be_traced_with_its_defaults_on_environments_of_every_kind(method: str, kind: str) -> None:
    workflow = build_workflow(compose([f"agent={method}", *ENV_OVERRIDES[kind], "env.episode_length=10"]))
    state = jax.eval_shape(workflow.init, workflow.make_key())
    metrics, after = jax.eval_shape(workflow.step, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert kinds_of(after) == kinds_of(state)
    assert {leaf.shape for leaf in jax.tree.leaves(metrics)} == {()}
    evaluation, _ = jax.eval_shape(workflow.evaluate, state)
    assert set(evaluation) == EVALUATION


@pytest.mark.parametrize("method", METHODS)
def test_its_config_describes_it_completely(method: str) -> None:
    overrides = [f"agent={method}", "env=classic/pendulum", "agent.learning_rate={start: 1e-3, end: 0}", "num_seeds=2"]
    workflow = build_workflow(compose(overrides))
    mapping = workflow.settings.to_mapping()
    again = build_workflow(yaml.safe_load(yaml.safe_dump(mapping)))
    assert again.settings.to_mapping() == mapping
    assert (again.settings.train, again.settings.method) == (workflow.settings.train, workflow.settings.method)
    assert type(again) is workflow_class(method)


@pytest.mark.parametrize("method", METHODS)
def test_its_yaml_and_its_dataclasses_have_the_same_defaults(method: str) -> None:
    composed = build_workflow(compose([f"agent={method}", "env=probe/cue_reward", "env.episode_length=5"]))
    bare = build_workflow({"agent": {"name": method}, "env": {"name": "probe/cue_reward", "episode_length": 5}})
    assert composed.settings.to_mapping() == bare.settings.to_mapping()


@pytest.mark.parametrize("method", METHODS)
def test_it_does_all_that_a_workflow_does(method: str, tmp_path: Path) -> None:
    agent: dict[str, Any] = {"name": method, "num_envs": 4, "rollout_length": 8, "network": {"hidden_sizes": [8]}}
    workflow = build_workflow(
        {
            "agent": agent,
            "env": {"name": "probe/cue_reward", "episode_length": 5},
            "total_timesteps": 4 * 8 * 4,
            "record_interval": 4 * 8 * 2,
            "evaluation": {"num_episodes": 3, "interval": 10**6},
            "run_dir": str(tmp_path / "run"),
            "recorders": ["jsonl"],
        }
    )
    state = workflow.init(workflow.make_key())
    metrics, stepped = workflow.step(state)
    assert isinstance(metrics, PyTreeDict)
    assert set(metrics) == TRAIN_METRICS[method] - {"train/n_updates"} | EPISODES
    assert all(np.isfinite(value) for value in metrics.values())
    assert int(stepped.env_steps) == 32
    assert int(stepped.num_updates) > 0
    before = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.agent_state.params)])
    after = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(stepped.agent_state.params)])
    assert np.any(before != after)

    evaluation, evaluated = workflow.evaluate(stepped)
    assert set(evaluation) == EVALUATION
    assert -1.0 <= evaluation["eval/mean_reward"] <= 1.0
    assert np.any(jax.random.key_data(evaluated.eval_key) != jax.random.key_data(stepped.eval_key))

    learned = workflow.learn(state)
    workflow.close()
    assert int(learned.iterations) == 4
    first, last = RunDirectory.open(tmp_path / "run").read_metrics()
    assert set(first) == ALWAYS | TRAIN_METRICS[method] | EPISODES
    assert set(last) == set(first) | EVALUATION
    assert last["train/n_updates"] == int(learned.num_updates)
