"""Own methods, networks and wrappers on the command line: imported only if the user names them."""

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import rookery
from rookery import cli, trust
from rookery.api import loading
from rookery.cli.training import new_run_directory
from rookery.configs import compose, sweep
from rookery.envs.config import EnvConfig, RunnerSettings
from rookery.errors import InvalidInputError
from rookery.runners.host_envs import make_envs
from rookery.runs.directory import RunDirectory
from rookery.runs.policy_files import PolicyDescription

MODULE = '''"""Parts that a user wrote."""

import flax.linen as nn
import gymnasium
import numpy as np

import jax.numpy as jnp

from rookery.algorithms.a2c import A2C, A2CAgent, A2CWorkflow
from rookery.algorithms.evolution.open_es import OpenES
from rookery.workflows.evolution.workflow import ECWorkflow


class SignES(ECWorkflow):
    """Follows the signs of the gradient."""

    optimizer_class = OpenES


class OwnA2C(A2CWorkflow):
    """A2C under another name."""


class Lazy(A2CAgent):
    def evaluate_actions(self, agent_state, sample_batch, key):
        actions, extras = super().evaluate_actions(agent_state, sample_batch, key)
        return jnp.zeros_like(actions), extras


class LazyA2C(A2C):
    agent_class = Lazy
    agent: Lazy


class LazyWorkflow(A2CWorkflow):
    """Always pushes to the left in evaluations."""

    learner_class = LazyA2C


class Torso(nn.Module):
    width: int = 6

    @nn.compact
    def __call__(self, obs):
        return nn.tanh(nn.Dense(self.width)(obs.reshape(len(obs), -1)))


class WithClock(gymnasium.Wrapper):
    """Adds a fifth number to the observation."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return np.append(obs, np.float32(1)), info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return np.append(obs, np.float32(1)), *rest


def lost(env):
    return None
'''

TRACES = '''"""Runs commands on a run; prints their codes and which of the modules that the run names are imported."""

import sys

seen = []
sys.addaudithook(lambda event, arguments: seen.append(arguments[0]) if event == "import" else None)

from rookery import cli

codes = []
for command in sys.argv[1:]:
    codes.append(cli.main([command, "run"]))
    print(f"end of {command}", file=sys.stderr)
print(codes, [name for name in seen if name.startswith("evil")])
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a module of the user's."""
    (tmp_path / "my_parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop("my_parts", None)


def main(*argv: str) -> None:
    assert cli.main([*argv]) == 0


def test_an_own_method_with_an_own_network_is_trained_resumed_evaluated_and_loaded_by_name(
    folder: Path, small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["agent=my_parts:OwnA2C", "agent.network=my_parts:Torso"]
    main("train", *small, *names, "agent.normalize_rewards=false", "run_dir=run")
    assert "preparing my_parts:OwnA2C on classic/cartpole" in (output := capsys.readouterr().out)
    assert "rookery evaluate run --episodes 100 --trust" in output
    agent = RunDirectory.open(folder / "run").config["agent"]
    assert (agent["name"], agent["normalize_rewards"]) == ("my_parts:OwnA2C", False)
    assert (agent["network"]["encoder"], agent["network"]["hidden_sizes"]) == ("my_parts:Torso", [4])
    main("resume", "run", *names, "agent.learning_rate=1e-4")
    main("evaluate", "run", *names, "--episodes", "2")
    assert "my_parts:OwnA2C on classic/cartpole after 64 env steps" in capsys.readouterr().out
    # The agent that acts is a class of ours, the network is not.
    with pytest.raises(
        InvalidInputError, match=r"network my_parts:Torso, which is not a class of Rookery: .* network="
    ):
        rookery.load("run")
    policy = rookery.load("run", network=sys.modules["my_parts"].Torso)
    kernel = policy.agent_state.params["trunk"]["layers"]["encoder"]["own"]["Dense_0"]["kernel"]
    assert kernel.shape == (4, 6)
    assert policy.predict([0.0] * 4)[0] in (0, 1)


def test_a_policy_of_an_own_agent_acts_as_that_agent(
    folder: Path, small: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main("train", *small, "agent=my_parts:LazyWorkflow", "run_dir=run")
    evaluated = RunDirectory.open(folder / "run").read_metrics()[-1]["eval/mean_reward"]
    assert evaluated < 11  # CartPole falls at once if it is always pushed to the left
    monkeypatch.setattr(trust, "_given", {})  # as in a new process
    capsys.readouterr()
    for options in (["agent=my_parts:LazyWorkflow"], ["agent=my_parts:Lazy"], ["--trust"]):
        main("evaluate", "run", "--episodes", "5", *options)
        assert float(capsys.readouterr().out.split()[-7]) < 11
    assert cli.main(["evaluate", "run"]) == 2
    assert "agent=my_parts:Lazy imports a module of its own" in capsys.readouterr().err
    assert not rookery.load("run", agent=sys.modules["my_parts"].Lazy).predict(np.eye(4, dtype=np.float32))[0].any()


def test_the_config_of_an_own_method_is_shown_without_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main("train", "agent=my_parts:SignES", "agent.noise_std=0.2", "--show-config")
    output = capsys.readouterr().out
    assert "name: 'my_parts:SignES'" in output
    assert "noise_std: 0.2  # * standard deviation of individuals around their mean" in output


def test_own_and_other_methods_are_swept_together(folder: Path) -> None:
    jobs = sweep(["agent=a2c,my_parts:OwnA2C", "agent.network=my_parts:Torso"])
    configs = [compose(job) for job in jobs]
    assert [config["agent"]["name"] for config in configs] == ["a2c", "my_parts:OwnA2C"]
    assert [config["agent"]["network"]["encoder"] for config in configs] == ["my_parts:Torso"] * 2


def test_a_run_of_an_own_method_is_named_after_its_class(folder: Path) -> None:
    path = new_run_directory({"agent": {"name": "my_parts:OwnA2C"}, "env": {"name": "classic/cartpole"}})
    assert path.startswith("runs/OwnA2C-classic-cartpole-")


@pytest.mark.parametrize("is_evaluation", [False, True])
def test_wrappers_surround_host_environments_in_other_processes(folder: Path, is_evaluation: bool) -> None:
    names = ("my_parts:WithClock", "gymnasium.wrappers:FlattenObservation")
    env = EnvConfig("gymnasium/CartPole-v1", wrappers=names, runner=RunnerSettings(processes=True))
    with contextlib.closing(make_envs(env, 1, is_evaluation)) as base_env:
        base_env.try_reset(0, 0)
        assert base_env.poll().obs.shape == (1, 5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.wrappers=[my_parts:WithClock]"], r"wrappers=\['my_parts:WithClock'\] are for single Gymnasium env"),
        (
            ["env=gymnasium/CartPole-v1", "env.wrappers=[my_parts:np]"],
            r"env\.wrappers=\[my_parts:np\]: <module 'numpy'",
        ),
        (["env=gymnasium/CartPole-v1", "env.wrappers=[my_parts:lost]"], "lost returned None; expected an environment"),
        (["agent.network=my_parts:lost"], r"agent\.network\.encoder=my_parts:lost is <function lost .*flax\.linen\.M"),
        (["agent.network=my_parts:Torsso"], r"my_parts has no 'Torsso'\. Did you mean 'Torso'"),
    ],
)
def test_a_wrong_part_is_refused_before_training(
    folder: Path, small: list[str], capsys: pytest.CaptureFixture[str], overrides: list[str], message: str
) -> None:
    assert cli.main(["train", *small, *overrides]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not (folder / "runs").exists()


def test_only_an_own_class_of_the_run_can_be_named_again(finished_run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for override in ("agent=my_parts:OwnA2C", "agent.network=my_parts:Torso", "env.wrappers=[my_parts:WithClock]"):
        assert cli.main(["resume", finished_run.path, override]) == 2
        assert "this run has no own class there" in capsys.readouterr().err


OWN_SETTINGS = {
    "agent=evil:X": ("agent", "name", "evil:X"),
    "agent.network=evil:X": ("agent", "network", {"encoder": "evil:X"}),
    "env.wrappers=[evil:X]": ("env", "wrappers", ["evil:X"]),
}


@pytest.mark.parametrize("setting", OWN_SETTINGS)
def test_a_run_that_names_own_parts_imports_nothing(
    folder: Path, environment: dict[str, str], finished_run: Any, setting: str
) -> None:
    (folder / "evil.py").write_text("raise SystemExit('evil was imported')\n")
    (folder / "traces.py").write_text(TRACES)
    group, key, value = OWN_SETTINGS[setting]
    shutil.copytree(finished_run.path, folder / "run")
    run = RunDirectory(folder / "run")
    config = run.config
    config["env"]["name"] = "gymnasium/CartPole-v1"
    config[group][key] = value
    run.config_path.write_text(yaml.safe_dump(config))
    # An evaluation needs the policy file and the environment alone.
    codes = {"evaluate": 2 if group == "env" else 0, "resume": 2, "report": 0}
    argv = [sys.executable, "traces.py", *codes]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == f"{[*codes.values()]} []", done.stderr
    advice = f"{setting} imports a module of its own. If you trust the run, name it again, {setting}, or add"
    errors = re.split(r"end of \w+\n", done.stderr)
    assert [advice in error for error in errors[:-1]] == [code == 2 for code in codes.values()]


def test_a_policy_that_names_own_classes_imports_nothing(
    folder: Path, finished_run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "evil.py").write_text("raise SystemExit('evil was imported')\n")
    read = loading.read_description

    def changed(**changes: Any) -> Callable[..., PolicyDescription]:
        def read_changed(*args: Any) -> PolicyDescription:
            description = read(*args)
            return PolicyDescription(**{**vars(description), **changes})

        return read_changed

    monkeypatch.setattr(loading, "read_description", changed(agent="evil:X"))
    assert cli.main(["evaluate", finished_run.path]) == 2
    assert "agent=evil:X imports a module of its own. If you trust the run, name" in capsys.readouterr().err
    with pytest.raises(
        InvalidInputError, match=r"has the agent evil:X, which is not .* rookery\.load\(path, agent=X\)"
    ):
        rookery.load(finished_run.path)
    monkeypatch.setattr(loading, "read_description", changed(settings={"config": {"encoder": "evil:X"}}))
    with pytest.raises(InvalidInputError, match=r"has the network evil:X, .* rookery\.load\(path, network=X\)"):
        rookery.load(finished_run.path)
    assert "evil" not in sys.modules
