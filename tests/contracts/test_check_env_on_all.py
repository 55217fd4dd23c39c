"""Environments of ours keep every rule of `check_env`: all bare, and some vectorized with episodes of three steps."""

import pytest

from rookery.envs import AutoresetMode, MultiAgentEnv, create_env, env_names, make_env
from rookery.testing.check_env import check_env

SINGLE_AGENT_ENVS = [
    name for name in [*env_names("classic"), *env_names("probe")] if not isinstance(make_env(name), MultiAgentEnv)
]
IN_EVERY_MODE = ["classic/cartpole", "probe/counter"]
VECTORISED = [
    *((name, AutoresetMode.NORMAL) for name in [*IN_EVERY_MODE, "classic/pendulum", "probe/mask"]),
    *((name, mode) for name in IN_EVERY_MODE for mode in AutoresetMode if mode is not AutoresetMode.NORMAL),
]


@pytest.mark.parametrize("name", SINGLE_AGENT_ENVS)
def test_a_bare_env_keeps_every_rule(name: str) -> None:
    report = check_env(make_env(name))
    assert report.passed, report


@pytest.mark.parametrize(("name", "mode"), VECTORISED)
def test_a_vectorized_env_of_short_episodes_keeps_every_rule(name: str, mode: AutoresetMode) -> None:
    report = check_env(create_env(name, episode_length=3, parallel=2, autoreset_mode=mode))
    assert report.passed, report
