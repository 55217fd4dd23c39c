"""The names of the package: load a policy of a run."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

import rookery
from rookery.agent import Agent, AgentState
from rookery.api.loading import load_team
from rookery.errors import InvalidInputError, RookeryError
from rookery.registry import build_workflow
from rookery.runs.checkpoint import CheckpointError
from rookery.runs.policy_files import read_description
from rookery.sample_batch import SampleBatch
from rookery.spaces import Discrete
from rookery.types import PyTreeDict

SMALL = {"network": {"hidden_sizes": [4]}, "num_envs": 4, "rollout_length": 8, "num_minibatches": 2}
TRAIN: dict[str, Any] = {
    "env": {"name": "classic/cartpole", "episode_length": 20},
    "total_timesteps": 64,
    "evaluation": {"num_episodes": 2},
    "recorders": [],
}


def trained(path: Path, **changes: Any) -> tuple[Any, Any]:
    config = {"agent": {"name": "ppo", **SMALL}, **TRAIN, **changes, "run_dir": str(path)}
    workflow = build_workflow(config)
    try:
        return workflow, workflow.learn(workflow.init(workflow.make_key()))
    finally:
        workflow.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ppo") / "run"
    env = {"name": "classic/cartpole", "episode_length": 5}  # too short to fall: the first evaluation is the best
    trained(path, env=env, total_timesteps=128, checkpoint={"interval": 32})
    return path


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    path = tmp_path_factory.mktemp("openes") / "run"
    agent = {"name": "openes", "network": {"hidden_sizes": [4]}, "population_size": 4}
    return path, *trained(path, agent=agent, num_seeds=2, seed=5)


def greedy(workflow: Any, agent_state: AgentState, obs: np.ndarray) -> np.ndarray:
    batch = SampleBatch(obs=jax.numpy.asarray(obs))
    return np.asarray(workflow.agent.evaluate_actions(agent_state, batch, jax.random.key(0))[0])


OBS = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)


def test_a_loaded_policy_acts_like_the_trained_agent(tmp_path: Path) -> None:
    workflow, state = trained(tmp_path / "run")
    policy = rookery.load(tmp_path / "run")
    np.testing.assert_array_equal(policy.predict(OBS)[0], greedy(workflow, state.agent_state, OBS))
    assert policy.num_steps == 64


def test_step_chooses_the_checkpoint(run: Path) -> None:
    assert rookery.load(run).num_steps == 128
    assert rookery.load(run, step=64).num_steps == 64
    with pytest.raises(CheckpointError, match="64, 96, 128"):
        rookery.load(run, step=65)


def test_best_chooses_the_checkpoint_of_the_best_evaluation(run: Path) -> None:
    assert rookery.load(run, best=True).num_steps == 32
    with pytest.raises(InvalidInputError, match="step=64 and best: choose one"):
        rookery.load(run, step=64, best=True)


def test_a_run_without_a_best_checkpoint_says_so(tmp_path: Path) -> None:
    trained(tmp_path / "run", checkpoint={"keep_best": False})
    with pytest.raises(InvalidInputError, match=r"run has no best checkpoint: .* leave out --best\."):
        rookery.load(tmp_path / "run", best=True)


def test_seed_and_individual_choose_one_of_several(seeds: tuple[Path, Any, Any]) -> None:
    path, workflow, state = seeds
    for index, seed in enumerate((5, 6)):
        for individual, prefix in ((None, "eval/"), ("best", "eval/best_")):
            agent_state = jax.tree.map(lambda leaf, index=index: leaf[index], workflow.training.agents(state)[prefix])
            actions = rookery.load(path, seed=seed, individual=individual).predict(OBS)[0]
            np.testing.assert_array_equal(actions, greedy(workflow, agent_state, OBS))
    np.testing.assert_array_equal(rookery.load(path).predict(OBS)[0], rookery.load(path, seed=5).predict(OBS)[0])
    with pytest.raises(InvalidInputError, match=r"seed-7.*policy\.seed-5"):
        rookery.load(path, seed=7)


def test_a_server_loads_an_individual_as_well(seeds: tuple[Path, Any, Any]) -> None:
    for individual in (None, "best"):
        _, team = load_team(seeds[0], individual=individual)
        expected = rookery.load(seeds[0], individual=individual).predict(OBS)[0]
        np.testing.assert_array_equal(team["policy"].predict(OBS)[0], expected)


def test_a_run_without_individuals_says_so(run: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"individual-best.*choose one of policy"):
        rookery.load(run, individual="best")


@pytest.mark.third_party
def test_one_of_several_policies_is_loaded_by_name(tmp_path: Path) -> None:
    env = {"name": "pettingzoo/mpe2.simple_spread_v3", "policies": "per_agent", "episode_length": 8}
    agent = {"name": "ppo", **SMALL, "num_envs": 2, "num_minibatches": 2}
    workflow, state = trained(tmp_path / "run", env=env, agent=agent, total_timesteps=16)
    policy = rookery.load(tmp_path / "run", policy="agent_1")
    obs = np.asarray(policy.obs_space.sample(jax.random.key(0), (16,)))
    np.testing.assert_array_equal(policy.predict(obs)[0], greedy(workflow, state.agent_state["agent_1"], obs))
    with pytest.raises(InvalidInputError, match="choose one of agent_0, agent_1, agent_2"):
        rookery.load(tmp_path / "run")


class OwnAgent(Agent):
    """Always acts in the same way."""

    def init(self, obs_space: Any, action_space: Any, key: Any) -> AgentState:
        return AgentState(params=PyTreeDict(action=jax.numpy.ones((), jax.numpy.int32)))

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Any) -> Any:
        return jax.numpy.full(sample_batch.obs.shape[:1], agent_state.params.action), PyTreeDict()

    evaluate_actions = compute_actions


def test_a_checkpoint_is_loaded_from_its_folder_and_from_a_copy(run: Path, tmp_path: Path) -> None:
    folder = run / "checkpoints" / f"{64:012d}"
    copy = shutil.copytree(folder, tmp_path / "copy")
    for path in (folder, copy):
        policy = rookery.load(path)
        assert policy.num_steps == 64
        np.testing.assert_array_equal(policy.predict(OBS)[0], rookery.load(run, step=64).predict(OBS)[0])
    with pytest.raises(InvalidInputError, match="one checkpoint"):
        rookery.load(copy, step=64)
    with pytest.raises(InvalidInputError, match="one checkpoint"):
        rookery.load(copy, best=True)


def test_a_damaged_checkpoint_folder_and_a_link_in_it_are_refused(run: Path, tmp_path: Path) -> None:
    folder = run / "checkpoints" / f"{64:012d}"
    for name in ("damaged", "linked"):
        file = shutil.copytree(folder, tmp_path / name) / "policy" / "policy.safetensors"
        if name == "damaged":
            file.write_bytes(file.read_bytes()[:-1] + b"x")
        else:
            file.unlink()
            file.symlink_to(folder / "policy" / "policy.safetensors")
        with pytest.raises(CheckpointError, match=rf"{name} is damaged: .*policy\.safetensors"):
            rookery.load(tmp_path / name)


def test_a_policy_that_changes_after_its_verification_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rookery.api import loading

    copy = shutil.copytree(run / "checkpoints" / f"{64:012d}", tmp_path / "copy")
    read = loading.read_description

    def replaced(folder: Path, stem: str) -> Any:
        path = folder / "policy" / f"{stem}.json"
        path.write_text(path.read_text().replace('"env_steps": 64', '"env_steps": 65'))
        return read(folder, stem)

    monkeypatch.setattr(loading, "read_description", replaced)
    with pytest.raises(CheckpointError, match=r"changed while it was read: policy/policy\.json"):
        rookery.load(copy)


def test_a_policy_file_names_the_last_evaluation(run: Path) -> None:
    evaluations = {
        step: read_description(run / "checkpoints" / f"{step:012d}", "policy").about.get("evaluation")
        for step in (64, 128)
    }
    assert evaluations == {step: {"env_steps": step, "eval/mean_reward": 5.0} for step in (64, 128)}


def test_an_own_agent_is_named_again(run: Path, change_agent: Callable[[Path, str], Path]) -> None:
    path = change_agent(run, "my_module:OwnAgent")
    with pytest.raises(InvalidInputError, match=r"my_module:OwnAgent.*agent=OwnAgent"):
        rookery.load(path)
    assert "my_module" not in sys.modules
    with pytest.raises(RookeryError, match="params"):  # the parameters are those of another agent
        rookery.load(path, agent=OwnAgent())


@pytest.fixture
def change_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], Path]:
    """Return a function that reads a run as if its policy named another agent."""

    def change(path: Path, name: str) -> Path:
        from rookery.api import loading

        read = loading.read_description

        def renamed(folder: Path, stem: str) -> Any:
            import dataclasses

            return dataclasses.replace(read(folder, stem), agent=name)

        monkeypatch.setattr(loading, "read_description", renamed)
        return path

    return change


def test_loading_builds_no_environment_and_imports_no_module_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "evil_module.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(folder)
    env = {"name": "gymnasium/evil_module:Mine-v0", "episode_length": 20}
    trained(tmp_path / "run", env=env)
    del sys.modules["evil_module"], gymnasium.registry["Mine-v0"]
    imported: list[str] = []
    is_listening = True

    def listen(event: str, arguments: tuple) -> None:
        if is_listening and event == "import":
            imported.append(arguments[0])

    sys.addaudithook(listen)
    policy = rookery.load(tmp_path / "run")
    action, _ = policy.predict(np.zeros(4, np.float32))
    is_listening = False
    assert action in (0, 1)
    assert policy.action_space == Discrete(2, dtype=np.int64)
    assert not [name for name in imported if "evil" in name]
