"""From a composed config to settings: valid values, errors, and the way back to a mapping."""

from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from rookery.algorithms.ppo import PPOConfig, PPOHyperparameters, PPOWorkflow
from rookery.envs import AutoresetMode
from rookery.errors import InvalidInputError, RookeryError, UnknownNameError
from rookery.hyperparameters import LinearSchedule
from rookery.workflows.config import Settings, settings_from

ON_HOST = {"env": {"name": "gymnasium/CartPole-v1"}}
ON_RAY = {**ON_HOST, "num_env_runners": 2}


def parse(config: Any = None, **agent: Any) -> Settings:
    return settings_from({**(config or {}), "agent": agent}, "ppo", PPOConfig, PPOHyperparameters)


def test_an_empty_config_gives_the_defaults() -> None:
    settings = parse()
    assert settings.method == PPOConfig()
    assert settings.train.env.name == "classic/cartpole"
    assert settings.hyperparameters.learning_rate == PPOHyperparameters().learning_rate


@pytest.mark.parametrize(
    ("env", "given", "expected"),
    [
        ("classic/cartpole", None, 32),
        ("gymnasium/CartPole-v1", None, 8),
        ("classic/cartpole", 5, 5),
        ("gymnasium/CartPole-v1", 50, 50),
    ],
)
def test_an_evaluation_has_fewer_episodes_on_the_host_unless_a_number_is_given(
    env: str, given: int | None, expected: int
) -> None:
    settings = parse({"env": {"name": env}, "evaluation": {"num_episodes": given}})
    assert settings.train.evaluation_episodes == expected
    assert settings.to_mapping()["evaluation"]["num_episodes"] == given


def test_settings_and_hyperparameters_are_separated() -> None:
    settings = parse(num_epochs=7, clip_ratio=0.1, network={"hidden_sizes": [3, 4], "core": "gru"}, target_kl=0.02)
    assert (settings.method.num_epochs, settings.method.network.hidden_sizes) == (7, (3, 4))
    assert (settings.hyperparameters.clip_ratio, settings.hyperparameters.target_kl) == (0.1, 0.02)


def test_numbers_may_be_written_as_yaml_reads_them() -> None:
    settings = parse({"total_timesteps": 1e6}, learning_rate="3e-4", num_envs="1e2")
    assert (settings.train.total_timesteps, settings.method.num_envs) == (1_000_000, 100)
    assert isinstance(settings.train.total_timesteps, int)
    assert settings.hyperparameters.learning_rate == 3e-4


def test_a_schedule_lasts_for_the_whole_run_unless_it_says_otherwise() -> None:
    settings = parse(
        {"total_timesteps": 5000},
        learning_rate={"start": "1e-3", "end": 0},
        clip_ratio={"start": 0.2, "end": 0.1, "steps": 300},
    )
    learning_rate, clip_ratio = settings.hyperparameters.learning_rate, settings.hyperparameters.clip_ratio
    assert isinstance(learning_rate, LinearSchedule)
    assert (learning_rate.start, learning_rate.end, learning_rate.steps) == (1e-3, 0.0, 5000)
    assert clip_ratio.steps == 300


def test_settings_survive_being_written_to_a_file() -> None:
    config = {
        "env": {"name": "probe/counter", "autoreset_mode": "envpool", "kwargs": {"terminates_after": 4}},
        "seed": 3,
        "evaluation": {"interval": 500},
        "recorders": ["jsonl"],
    }
    settings = parse(
        config, learning_rate={"start": 1e-3, "end": 0.0}, max_grad_norm=None, network={"hidden_sizes": [5]}
    )
    assert settings.train.env.autoreset_mode is AutoresetMode.ENVPOOL
    mapping = settings.to_mapping()
    again = settings_from(yaml.safe_load(yaml.safe_dump(mapping)), "ppo", PPOConfig, PPOHyperparameters)
    assert again.to_mapping() == mapping
    assert (again.train, again.method) == (settings.train, settings.method)
    assert again.hyperparameters.max_grad_norm is None


def test_a_composed_config_is_resolved() -> None:
    config = OmegaConf.create(
        {"seed": 4, "total_timesteps": "${seed}", "agent": {"name": "ppo", "num_envs": "${seed}"}}
    )
    settings = settings_from(config, "ppo", PPOConfig, PPOHyperparameters)
    assert (settings.train.total_timesteps, settings.method.num_envs) == (4, 4)


@pytest.mark.parametrize(
    ("config", "agent", "message"),
    [
        ({}, {"minibatches": 3}, "agent: unknown key 'minibatches'. Did you mean 'num_minibatches'"),
        (
            {},
            {"network": {"hiden_sizes": [3]}},
            "agent.network: unknown key 'hiden_sizes'. Did you mean 'hidden_sizes'",
        ),
        ({"total_timestep": 3}, {}, "unknown key 'total_timestep'. Did you mean 'total_timesteps'"),
        ({"env": {"nam": "x"}}, {}, "env: unknown key 'nam'. Did you mean 'name'"),
        ({"prng": "threfry"}, {}, "unknown prng 'threfry'. Did you mean 'threefry2x32'"),
        ({}, {"optimizer": "adm"}, "unknown optimizer 'adm'. Did you mean 'adam'"),
        ({}, {"network": {"core": "gruu"}}, "unknown core 'gruu'. Did you mean 'gru'"),
    ],
)
def test_a_misspelt_name_is_an_error_with_the_nearest_match(config: dict, agent: dict, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        parse(config, **agent)


@pytest.mark.parametrize(
    ("config", "agent", "message"),
    [
        ({}, {"num_envs": 0}, "agent.num_envs=0 must be an integer of at least 1"),
        ({}, {"num_envs": 2.5}, "agent.num_envs=2.5: expected an integer"),
        ({}, {"discount": 99}, "agent.discount=99 must lie between 0 and 1"),
        ({}, {"learning_rate": -1}, "agent.learning_rate=-1 must be at least 0"),
        ({}, {"learning_rate": "fast"}, "agent.learning_rate='fast': expected a number"),
        ({}, {"learning_rate": True}, "agent.learning_rate=True: expected a number"),
        ({}, {"learning_rate": None}, "agent.learning_rate=None: expected a number"),
        ({}, {"learning_rate": float("nan")}, "agent.learning_rate=nan"),
        ({}, {"learning_rate": float("inf")}, "agent.learning_rate=inf"),
        ({}, {"learning_rate": {"start": 1}}, "agent.learning_rate=.*a schedule is {start: NUMBER, end: NUMBER}"),
        ({}, {"learning_rate": {"start": 1, "end": 0, "step": 5}}, "agent.learning_rate=.*a schedule is"),
        ({}, {"discount": {"start": 0.9, "end": 1.1}}, "agent.discount.end=1.1 must lie between 0 and 1"),
        ({}, {"discount": {"start": 0.9, "end": 1, "steps": -5}}, "agent.discount.steps=-5 must be at least 0"),
        ({}, {"network": {"hidden_sizes": [0]}}, "hidden_sizes=\\(0,\\)"),
        ({}, {"name": "a2c"}, "agent.name='a2c': this workflow trains 'ppo'"),
        ({"total_timesteps": 0}, {}, "total_timesteps=0 must be an integer of at least 1"),
        ({"num_seeds": 0}, {}, "num_seeds=0 must lie between 1 and 65536"),
        ({"seed": -1}, {}, "seed=-1: all seeds must lie between 0 and 2147483647"),
        ({"seed": 2**31 - 2, "num_seeds": 3}, {}, "seed=2147483646: all seeds must lie between"),
        ({"devices": 0}, {}, "devices=0 must be an integer of at least 1"),
        ({"record_interval": 0}, {}, "record_interval=0 must be an integer of at least 1"),
        ({"evaluation": {"interval": 0}}, {}, "evaluation.interval=0 must be an integer of at least 1"),
        ({"evaluation": {"num_episodes": 0}}, {}, "evaluation.num_episodes=0 must lie between 1 and 1048576"),
        ({"checkpoint": {"keep": 0}}, {}, "checkpoint.keep=0 must be an integer of at least 1"),
        ({"env": {"autoreset_mode": "disabled"}}, {}, "autoreset_mode=disabled ends training"),
        ({"env": {"autoreset_mode": "never"}}, {}, "env.autoreset_mode='never': expected one of normal, fast, envpool"),
        ({"env": {"episode_length": 0}}, {}, "env.episode_length=0 must be an integer of at least 1"),
        ({"env": {"_target_": "os.system"}}, {}, "env._target_: a config cannot name Python objects"),
        ({"evaluation": 3}, {}, "evaluation=3: expected a mapping"),
        ({"min_ready": 0.5}, {}, "min_ready=0.5 is for environments on the host"),
        (
            {**ON_RAY, "min_ready": 0.5},
            {},
            "min_ready=0.5 lets slow runners fall behind: set max_staleness to at least",
        ),
        ({**ON_HOST, "max_staleness": 2}, {}, "max_staleness=2 with min_ready=1 needs runners that work meanwhile"),
        (
            {**ON_HOST, "max_staleness": 1, "min_ready": 0.5},
            {},
            "max_staleness=1 with min_ready=0.5 needs runners that work meanwhile: set num_env_runners, or use",
        ),
    ],
)
def test_an_impossible_value_is_an_error_that_names_it_and_what_is_possible(
    config: dict, agent: dict, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse(config, **agent)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"recorders": ["jsonll"]}, "unknown recorder 'jsonll'. Did you mean 'jsonl'"),
        ({"env": {"name": "classic/cartpol"}}, "classic/cartpole"),
        ({"env": {"name": "probe/counter"}}, "probe/counter has no time limit of its own: set env.episode_length"),
        ({"env": {"name": "probe/counter", "episode_length": 5, "kwargs": {"size": 3}}}, "size"),
        ({"env": {"name": "probe/multi_agent_counter", "episode_length": 5}}, "agent"),
        ({"devices": 64}, "devices=64: JAX has"),
    ],
)
def test_errors_that_need_the_environment_are_raised_when_the_workflow_is_built(config: dict, message: str) -> None:
    with pytest.raises(RookeryError, match=message):
        PPOWorkflow.build_from_config(config)
