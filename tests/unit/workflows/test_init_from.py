"""`init_from`: a run begins with the agent of another run."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.registry import build_workflow
from rookery.trust import UntrustedError, strangers_config
from rookery.workflows.saved.init_from import Source, with_origin

AGENTS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 4, "rollout_length": 8, "num_minibatches": 2, "normalize_obs": True},
    "impala": {"num_envs": 4, "rollout_length": 8, "actor_lag": 3},
    "dqn": {"num_envs": 4, "warmup_steps": 16, "batch_size": 8, "buffer_capacity": 128},
    "openes": {"population_size": 4},
}


def build(name: str, **config: Any) -> Any:
    agent = {"name": name, "network": {"hidden_sizes": [4]}, **AGENTS[name]}
    common = {"env": {"name": "classic/cartpole", "episode_length": 20}, "total_timesteps": 96, "recorders": []}
    return build_workflow({"agent": agent, **common, "evaluation": {"num_episodes": 2}, **config})


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.broadcast_to(a, np.shape(b)), b), one, other)


@pytest.mark.parametrize("num_seeds", [1, 2])
@pytest.mark.parametrize("name", list(AGENTS))
def test_a_run_begins_with_parameters_and_statistics_of_another(name: str, num_seeds: int, tmp_path: Path) -> None:
    origin = build(name, run_dir=str(tmp_path / "run"))
    trained = origin.learn(origin.init(origin.make_key()))
    workflow = build(name, seed=7, num_seeds=num_seeds, init_from=str(tmp_path / "run"))
    state = workflow.init(workflow.make_key())
    assert_equal(trained.agent_state, state.agent_state)
    learner = state.learner
    if name == "impala":
        assert_equal(trained.agent_state, learner.actor_state)
    if name == "dqn":
        assert_equal({"q": trained.agent_state.params["q"]}, dict(learner.target_params))
    if name == "openes":
        center = workflow.training.optimizer.center
        assert_equal(trained.agent_state.params, (jax.vmap(center) if num_seeds > 1 else center)(learner.evo_state))
    if name == "ppo":
        fresh = build(name, seed=7, num_seeds=num_seeds)
        assert_equal(fresh.init(fresh.make_key()).learner.optimizer_state, learner.optimizer_state)
    assert np.all(np.asarray(learner.iterations.low) == 0)


def test_a_source_names_a_run_a_step_and_a_policy() -> None:
    assert Source.parse("runs/a") == ("runs/a", None, None)
    assert Source.parse("runs/a@128") == ("runs/a", "128", None)
    assert Source.parse("runs/a@best:main") == ("runs/a", "best", "main")
    assert Source.parse("runs/a:main") == ("runs/a", None, "main")
    assert Source.parse("user@host/a") == ("user@host/a", None, None)


def test_a_folder_with_that_very_name_is_the_run(tmp_path: Path) -> None:
    (tmp_path / "a@12").mkdir()
    assert Source.parse(str(tmp_path / "a@12")) == (str(tmp_path / "a@12"), None, None)


def test_the_step_chooses_the_checkpoint(tmp_path: Path) -> None:
    origin = build("ppo", run_dir=str(tmp_path / "run"), checkpoint={"interval": 32, "keep": None})
    origin.learn(origin.init(origin.make_key()))
    workflow = build("ppo", init_from=f"{tmp_path}/run@64")
    assert_equal(origin.restore(64).agent_state, workflow.init(workflow.make_key()).agent_state)


def test_a_run_that_does_not_fit_is_one_error(tmp_path: Path) -> None:
    origin = build("ppo", run_dir=str(tmp_path / "run"))
    origin.learn(origin.init(origin.make_key()))
    workflow = build("ppo", env={"name": "classic/pendulum"}, init_from=str(tmp_path / "run"))
    with pytest.raises(InvalidInputError, match=r"init_from=\S+ does not fit this run: .*observations"):
        workflow.init(workflow.make_key())
    workflow = build("ppo", init_from={"main": str(tmp_path / "run")})
    with pytest.raises(InvalidInputError, match="this run has no policy 'main', but one policy without a name"):
        workflow.init(workflow.make_key())


def test_another_run_is_not_read_because_the_run_of_a_stranger_names_it() -> None:
    training: Any = None  # not reached
    with strangers_config(), pytest.raises(UntrustedError, match=r"init_from=\.\./mine reads another run\. .* --trust"):
        with_origin(training, training, "../mine")
