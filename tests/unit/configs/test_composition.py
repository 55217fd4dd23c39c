"""Composing a config: groups, presets, overrides, and errors in one line."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from rookery.configs import compose, composition, sweep, with_values
from rookery.configs.composition import MEANINGS, OTHER_NAMES, stored_names
from rookery.configs.declared import register
from rookery.configuration import plain, to_mapping
from rookery.envs import env_names, is_installed, library_names, registration
from rookery.envs.config import RunnerSettings
from rookery.envs.libraries import LIBRARIES, Library, is_on_host
from rookery.errors import InvalidInputError, MissingExtraError, RookeryError, UnknownNameError
from rookery.registry import AGENTS, agent_names, workflow_class
from rookery.workflows.config import settings_from

NO_PRESET = "~preset@_global_"


def compose_by_hydra(*overrides: str) -> dict[str, Any]:
    """What a user of Hydra writes."""
    with hydra.initialize_config_module("rookery.configs", version_base="1.3"):
        return plain(hydra.compose("config", overrides=list(overrides)))


def test_the_defaults_are_ppo_on_cartpole() -> None:
    config = compose()
    assert config["agent"]["name"] == "ppo"
    assert config["env"] == {
        "name": "classic/cartpole",
        "episode_length": None,
        "autoreset_mode": "normal",
        "kwargs": {},
        "policies": None,
        "frozen": [],
        "mapping": None,
        "wrappers": [],
        "runner": dataclasses.asdict(RunnerSettings()),
    }


def test_the_composed_config_is_the_one_that_hydra_alone_composes() -> None:
    overrides = ["agent=a2c", "env=brax/hopper", "agent.learning_rate=1e-3", "+env.kwargs.backend=positional", "seed=4"]
    assert compose(overrides) == compose_by_hydra(*overrides)


def test_a_process_that_does_not_answer_is_replaced_after_60_seconds_by_default() -> None:
    assert compose(["env=gymnasium/CartPole-v1"])["env"]["runner"]["step_timeout"] == 60.0


def test_other_policies_replace_those_of_a_run_because_the_first_match_counts() -> None:
    drawn = compose(["env=pettingzoo/classic.tictactoe_v3", "env.policies={player_*: [main, past]}"])
    assert drawn["env"]["policies"] == {"player_*": ["main", "past"]}
    fixed = {"player_1": "main", "player_2": "past"}
    assert with_values(drawn, {"env.policies": fixed})["env"]["policies"] == fixed


def test_the_result_is_plain_data() -> None:
    config = compose(["agent.rollout_length=${agent.num_envs}"])
    assert type(config["agent"]["network"]) is dict
    assert type(config["recorders"]) is list
    assert config["agent"]["rollout_length"] == config["agent"]["num_envs"]


@pytest.mark.parametrize("agent", agent_names())
def test_the_defaults_outside_the_agent_are_those_of_the_dataclasses(agent: str) -> None:
    workflow = workflow_class(agent)
    classes = (agent, workflow.config_class, workflow.hyperparameters_class)
    assert settings_from(compose([f"agent={agent}", NO_PRESET]), *classes).train == settings_from({}, *classes).train


@pytest.mark.parametrize("agent", agent_names())
def test_a_method_has_all_its_settings_and_hyperparameters_with_their_defaults(agent: str) -> None:
    workflow = workflow_class(agent)
    declared = to_mapping(workflow.config_class()) | to_mapping(workflow.hyperparameters_class())
    assert compose([f"agent={agent}", NO_PRESET])["agent"] == {"name": agent, **declared}


def test_hydra_in_a_new_process_finds_every_method_and_imports_the_chosen_one() -> None:
    code = (
        "import hydra, sys\n"
        "with hydra.initialize_config_module('rookery.configs', version_base='1.3'):\n"
        "    print(hydra.compose('config', overrides=['agent=snes']).agent.name)\n"
        "methods = ('evolution.snes', 'evolution.ars', 'ppo', 'dqn')\n"
        "print([name for name in methods if f'rookery.algorithms.{name}' in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["snes", "['evolution.snes']"], done.stderr


@pytest.mark.parametrize("agent", ["ppo", "cmaes"])
def test_composing_starts_no_backend_so_that_the_number_of_devices_can_still_be_set(agent: str) -> None:
    code = (
        f"import jax; from rookery.configs import compose; compose(['agent={agent}', 'env=gymnax/Breakout-MinAtar']);"
        "jax.config.update('jax_num_cpu_devices', 3); print(jax.device_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3", done.stderr


def test_configs_that_others_stored_in_the_same_group_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", {"agent": {"theirs.yaml": "theirs"}})
    register()
    assert store.repo["agent"]["theirs.yaml"] == "theirs"
    assert "ppo.yaml" in store.repo["agent"]


def test_an_override_of_a_value_wins_over_every_file() -> None:
    config = compose(
        ["agent=impala", "agent.num_envs=2", "agent.network.hidden_sizes=[8]", "evaluation.num_episodes=3"]
    )
    assert config["agent"]["num_envs"] == 2
    assert config["agent"]["network"]["hidden_sizes"] == [8]
    assert config["evaluation"]["num_episodes"] == 3


def test_a_hyperparameter_may_become_a_schedule() -> None:
    config = compose(["agent.learning_rate={start: 3e-4, end: 0.0}"])
    assert config["agent"]["learning_rate"] == {"start": 3e-4, "end": 0.0}


def test_arguments_of_an_environment_library_need_no_sign() -> None:
    assert compose(["env.kwargs.backend=spring", "env.kwargs.a.b=1"])["env"]["kwargs"] == {
        "backend": "spring",
        "a": {"b": 1},
    }
    assert compose(["env.kwargs={a: 1}"])["env"]["kwargs"] == {"a": 1}


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A copy of the configs in which PPO has a preset for one more environment; its name."""
    folder = tmp_path / "configs_with_a_preset"
    shutil.copytree(composition.FOLDER, folder)
    (folder / "preset/ppo/probe").mkdir(parents=True)
    (folder / "preset/ppo/probe/continuous.yaml").write_text(
        "total_timesteps: 77\nagent:\n  num_envs: 3\n  learning_rate: {start: 1e-2, end: 1e-3}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(composition, "MODULE", folder.name)
    return "probe/continuous"


def test_a_preset_wins_over_the_files_and_loses_to_the_command_line(preset: str) -> None:
    config = compose([f"env={preset}", "agent.num_envs=5"])
    assert config["total_timesteps"] == 77
    assert config["agent"]["learning_rate"] == {"start": 1e-2, "end": 1e-3}
    assert config["agent"]["num_envs"] == 5


def test_a_preset_holds_for_its_pair_alone_and_can_be_left_out(preset: str) -> None:
    usual = compose([NO_PRESET])["total_timesteps"]
    assert compose(["agent=a2c", f"env={preset}"])["total_timesteps"] == usual
    assert compose(["env=probe/counter"])["total_timesteps"] == usual
    assert compose([f"env={preset}", NO_PRESET])["total_timesteps"] == usual


def test_a_schedule_of_a_preset_can_be_replaced_by_a_number_or_another_schedule(preset: str) -> None:
    assert compose([f"env={preset}", "agent.learning_rate=1e-3"])["agent"]["learning_rate"] == 1e-3
    schedule = {"start": 0.5, "end": 0.25, "steps": 10}
    text = "agent.learning_rate={start: 0.5, end: 0.25, steps: 10}"
    assert compose([f"env={preset}", text])["agent"]["learning_rate"] == schedule


@pytest.mark.parametrize("name", stored_names("preset"))
def test_every_preset_belongs_to_a_method_and_an_environment_and_has_valid_settings(name: str) -> None:
    agent, _, env = name.partition("/")
    workflow = workflow_class(agent)
    config = compose([f"agent={agent}", f"env={env}"])
    assert config != compose([f"agent={agent}", f"env={env}", NO_PRESET])
    settings_from(config, agent, workflow.config_class, workflow.hyperparameters_class)


@pytest.mark.parametrize("library", [name for name in LIBRARIES if not is_on_host(name)])
def test_every_environment_of_our_libraries_has_a_file_with_its_name(library: str) -> None:
    if not is_installed(library):
        pytest.skip(f"{library} is not installed")
    stored = [name for name in stored_names("env") if name.startswith(f"{library}/")]
    assert stored == env_names(library)
    for name in stored:
        assert OmegaConf.load(composition.FOLDER / "env" / f"{name}.yaml").name == name


def test_an_environment_of_another_library_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(names=lambda: ["deep/Thing-v1.2"], make=None)
    entry_point = SimpleNamespace(load=lambda: library)
    monkeypatch.setattr(registration, "_entry_points", lambda: {"foreign": entry_point})
    assert "foreign" in library_names()
    assert compose(["env=foreign/deep/Thing-v1.2"])["env"]["name"] == "foreign/deep/Thing-v1.2"
    with pytest.raises(UnknownNameError, match=r"unknown environment 'foreign/other'"):
        compose(["env=foreign/other"])


def test_an_environment_whose_library_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIBRARIES, "absent", Library("rookery.envs.absent", "absent_package", extra="absent"))
    with pytest.raises(MissingExtraError, match=r"pip install 'rookery\[absent\]'"):
        compose(["env=absent/thing"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("agent=pppo", "unknown agent 'pppo'. Did you mean 'ppo'?"),
        ("agent=null", "unknown agent 'null'. `rookery list agents` shows all; your own is module:Class."),
        ("agent.name=pppo", "unknown agent 'pppo'. Did you mean 'ppo'?"),
        ("env=classic/cartpol", "unknown environment 'classic/cartpol'. Did you mean 'classic/cartpole'"),
        ("env=cartpole", "unknown environment 'cartpole'. Did you mean 'classic/cartpole'"),
        ("env=clasic/cartpole", "unknown environment library 'clasic'. Did you mean 'classic'?"),
        ("agent.lerning_rate=1e-3", "unknown key 'agent.lerning_rate'. Did you mean 'agent.learning_rate'?"),
        ("learning_rate=1e-3", "unknown key 'learning_rate'. Did you mean 'agent.learning_rate'?"),
        ("seeed=3", "unknown key 'seeed'. Did you mean 'seed'?"),
        ("zz=3", "unknown key 'zz'. `rookery train --show-config` shows all keys."),
        ("~agent.lerning_rate", "unknown key 'agent.lerning_rate'. Did you mean 'agent.learning_rate'?"),
        ("seed", "cannot read the override 'seed': expected key=value, like agent.learning_rate=1e-3."),
        ("agent.network.hidden_sizes=[64", "cannot read the override 'agent.network.hidden_sizes=[64': check brackets"),
        ("agent=ppo,a2c", "agent=ppo,a2c asks for several runs: add --multirun"),
        ("seed=range(3)", "seed=range(3) asks for several runs: add --multirun"),
        ("~agent", "~agent: every run has an agent; choose another as agent=NAME."),
        ("hydra.run.dir=x", "hydra.run.dir=x: Hydra's own settings have no effect here; see run_dir=FOLDER."),
        ("hydra/launcher=joblib", "hydra/launcher=joblib: Hydra's own settings have no effect here"),
        ("+agent.learning_rate=1", "Could not append to config. An item is already at 'agent.learning_rate'."),
        ("agent.num_envs=${nothing}", "agent.num_envs: Interpolation key 'nothing' not found."),
        ("+agent._target_=os.system", "agent._target_: a config cannot name Python objects"),
        ("env.kwargs.x={_target_: os.system}", "env.kwargs.x._target_: a config cannot name Python objects"),
    ],
)
def test_a_bad_override_is_one_line_that_helps(override: str, message: str) -> None:
    with pytest.raises(RookeryError) as caught:
        compose([override])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("agent", "key", "answer"),
    [
        ("ppo", "agent.lr", "agent.lr is called agent.learning_rate."),
        ("ppo", "lr", "lr is called agent.learning_rate."),
        ("sac", "lr", "lr is called agent.actor_learning_rate."),
        ("ppo", "agent.gamma", "agent.gamma is called agent.discount."),
        ("ppo", "agent.lambda_", "agent.lambda_ is called agent.gae_lambda."),
        ("impala", "agent.lambda_", "agent.lambda_ is called agent.trace_lambda."),
        ("ppo", "agent.n_steps", "agent.n_steps: set agent.rollout_length, the steps of each environment"),
        ("dqn", "agent.n_steps", "agent.n_steps is called agent.n_step."),
        ("ppo", "agent.n_epochs", "agent.n_epochs is called agent.num_epochs."),
        ("ppo", "n_envs", "n_envs is called agent.num_envs."),
        ("openes", "n_envs", "n_envs is called agent.num_lanes."),
        ("ppo", "num_workers", "num_workers: set num_env_runners, the number of runners of host environments"),
        ("ppo", "agent.batch_size", "agent.batch_size: set agent.num_minibatches, the number of parts of a batch."),
        ("dqn", "agent.train_batch_size", "agent.train_batch_size is called agent.batch_size."),
        ("ppo", "train_batch_size", "train_batch_size: set agent.rollout_length, the steps"),
        ("ppo", "agent.ent_coef", "agent.ent_coef is called agent.entropy_coefficient."),
        ("sac", "agent.ent_coef", "agent.ent_coef is called agent.temperature."),
        ("a2c", "agent.vf_coef", "agent.vf_coef is called agent.value_coefficient."),
        ("ppo", "clip_range", "clip_range is called agent.clip_ratio."),
        ("ppo", "max_grad_norm", "max_grad_norm is called agent.max_grad_norm."),
        ("ppo", "agent.net_arch", "agent.net_arch is called agent.network.hidden_sizes."),
        ("td3", "agent.tau", "agent.tau is called agent.target_update_rate."),
        ("dqn", "agent.buffer_size", "agent.buffer_size is called agent.buffer_capacity."),
        ("dqn", "agent.learning_starts", "agent.learning_starts is called agent.warmup_steps."),
        ("openes", "agent.max_grad_norm", "unknown key 'agent.max_grad_norm'."),
    ],
)
def test_a_name_of_another_library_gets_ours(agent: str, key: str, answer: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        compose([f"agent={agent}", f"{key}=1"])
    assert str(caught.value).startswith(answer)


def test_every_key_that_is_offered_for_another_name_exists() -> None:
    known = {key for agent in AGENTS for key in composition._keys(compose([f"agent={agent}"]))}
    assert {key for keys in OTHER_NAMES.values() for key in keys} <= known
    assert known > set(MEANINGS)


def test_an_unknown_key_is_looked_up_among_those_of_the_chosen_agent() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'agent\.actor_lag'\?"):
        compose(["agent=impala", "agent.actr_lag=1"])
    with pytest.raises(UnknownNameError, match=r"^unknown key 'agent\.actr_lag'"):
        compose(["agent.actr_lag=1"])


@pytest.mark.parametrize(
    ("overrides", "jobs"),
    [
        ([], [[]]),
        (["seed=1"], [["seed=1"]]),
        (
            ["agent=ppo,a2c", "env=classic/cartpole"],
            [["agent=ppo", "env=classic/cartpole"], ["agent=a2c", "env=classic/cartpole"]],
        ),
        (
            ["seed=range(2)", "agent=choice(ppo, a2c)"],
            [[f"seed={seed}", f"agent={agent}"] for seed in (0, 1) for agent in ("ppo", "a2c")],
        ),
        (
            ["agent.network.hidden_sizes=[64,64],[8]"],
            [["agent.network.hidden_sizes=[64,64]"], ["agent.network.hidden_sizes=[8]"]],
        ),
        (["agent=glob([*po*,map*], exclude=map*)"], [["agent=ppo"]]),
        (["env=glob(classic/m*)"], [["env=classic/mountain_car"], ["env=classic/mountain_car_continuous"]]),
    ],
)
def test_a_sweep_is_every_combination_in_order(overrides: list[str], jobs: list[list[str]]) -> None:
    assert sweep(overrides) == jobs
    for job in jobs:
        compose(job)


def test_a_sweep_without_a_list_of_values_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^seed=interval\(0,1\): expected a list of values"):
        sweep(["seed=interval(0,1)"])
    with pytest.raises(InvalidInputError, match=r"^env=glob\(nothing\*\): nothing matches\.$"):
        sweep(["env=glob(nothing*)"])


@pytest.mark.parametrize("path", ["jörg", "a\\b", "it's", "a=b", "a,b", "3", "(p", "日本", "x y", "end\\"])
def test_a_run_directory_is_named_as_it_is(path: str) -> None:
    assert compose([f"run_dir={path}"])["run_dir"] == path


@pytest.mark.parametrize(("text", "path"), [("'a b'", "a b"), ("null", None), ("runs/${seed}", "runs/0")])
def test_a_run_directory_may_be_quoted_null_or_interpolated(text: str, path: str | None) -> None:
    assert compose([f"run_dir={text}"])["run_dir"] == path


@pytest.mark.parametrize(
    "overrides", [["seed=range(0,1000000000)"], ["seed=range(1000)", "agent.num_envs=range(1,12)"]]
)
def test_more_runs_than_anybody_waits_for_are_refused(overrides: list[str]) -> None:
    with pytest.raises(InvalidInputError, match=r"--multirun: these are more than 10,000 runs"):
        sweep(overrides)
