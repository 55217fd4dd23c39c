"""What runs with runners on Ray cannot do is said before Ray is started."""

import contextlib
import re
from typing import Any

import pytest

from rookery.configs import compose
from rookery.errors import InvalidInputError
from rookery.registry import build_workflow
from rookery.runners.groups.group import LocalRunners
from rookery.runners.ray import group as ray_group
from rookery.runners.ray.settings import RaySettings
from rookery.workflows import workflow

CARTPOLE, PENDULUM = "env=gymnasium/CartPole-v1", "env=gymnasium/Pendulum-v1"


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*arguments: Any) -> None:
        raise AssertionError("Ray is started")

    monkeypatch.setattr(workflow, "connect", connect)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["agent=ppo", CARTPOLE, "agent.num_envs=8", "num_env_runners=3"],
            "num_env_runners=3 does not divide agent.num_envs=8: use 2 or 4 runners, or agent.num_envs=9.",
        ),
        (
            ["agent=sac", PENDULUM, "agent.num_envs=4", "num_env_runners=8"],
            "num_env_runners=8 does not divide agent.num_envs=4: use 4 runners, or agent.num_envs=8.",
        ),
        (
            ["agent=ppo", CARTPOLE, "agent.num_envs=8", "num_env_runners=2", "max_staleness=2"],
            "max_staleness=2 is too much for this method, whose limit is 1: use agent=impala, which corrects for it.",
        ),
        (
            ["agent=impala", CARTPOLE, "agent.num_envs=8", "num_env_runners=2", "max_staleness=2", "agent.actor_lag=4"],
            "agent.actor_lag=4 and max_staleness=2 both let actors lag: use one.",
        ),
        (
            ["agent=openes", CARTPOLE, "num_env_runners=2", "max_staleness=1"],
            "max_staleness=1 is for methods that learn from batches: a generation cannot start before",
        ),
        (
            ["agent=erl", CARTPOLE, "num_env_runners=2", "max_staleness=1"],
            "max_staleness=1 is for methods that learn from batches: a generation cannot start before",
        ),
        (
            ["agent=sac", "env=pettingzoo/mpe2.simple_spread_v3", "agent.num_envs=2", "num_env_runners=2"],
            "pettingzoo/mpe2.simple_spread_v3 has several agents, and sac trains one",
        ),
    ],
)
def test_settings_that_runners_cannot_follow_are_errors_before_ray_starts(
    overrides: list[str], message: str, no_ray: None
) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        build_workflow(compose(overrides))


@pytest.mark.parametrize("agent", ["ppo", "openes", "erl"])
def test_more_runners_to_begin_with_than_there_are_is_an_error_for_every_method(agent: str, no_ray: None) -> None:
    message = "ray.min_env_runners=5 is more than num_env_runners=2: use at most 2, or more runners."
    with pytest.raises(InvalidInputError, match=message):
        build_workflow(compose([f"agent={agent}", CARTPOLE, "num_env_runners=2"]), ray=RaySettings(min_env_runners=5))


@pytest.mark.parametrize(
    ("agent", "key"), [("map_elites", "agent.reevaluate"), ("pga_me", "agent.strategy.reevaluate")]
)
def test_elites_that_cannot_play_again_on_the_host_are_an_error_with_the_key_of_the_method(
    agent: str, key: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"{key}=8 is for environments on the device"):
        build_workflow(compose([f"agent={agent}", PENDULUM, f"{key}=8"]))


@pytest.mark.parametrize(("rollout_length", "num_warnings"), [(15, 1), (16, 0)])
def test_requests_of_fewer_than_64_steps_are_warned_of(
    rollout_length: int, num_warnings: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workflow, "connect", lambda *arguments: contextlib.ExitStack())
    monkeypatch.setattr(ray_group, "RayRunners", lambda spec, num_runners, settings: LocalRunners(spec, num_runners))
    sizes = ["agent.num_envs=8", f"agent.rollout_length={rollout_length}"]
    build_workflow(compose(["agent=a2c", CARTPOLE, "num_env_runners=2", *sizes])).close()
    expected = "A runner is asked for 60 steps at a time, and a request to Ray takes as long as many fast steps: raise"
    assert [message[: len(expected)] for message in caplog.messages] == [expected] * num_warnings
