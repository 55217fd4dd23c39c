"""Environments without a name: classes, functions and objects of a program."""

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.envs import create_env, env_names, library_names
from rookery.envs.classic import CartPole
from rookery.envs.registration import all_library_names
from rookery.errors import InvalidInputError
from rookery.registry import build_workflow
from rookery.runners.envs.external import ExternalEnv
from rookery.runners.envs.libraries import make_host_env
from rookery.runners.envs.own import name_own_env
from rookery.runners.envs.vector_env import VectorEnv

SMALL = {"name": "ppo", "network": {"hidden_sizes": [4]}, "num_envs": 2, "rollout_length": 8, "num_minibatches": 2}


class OwnEnv(gymnasium.Env):
    """Counts its steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 5) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, self.count == self.length, False, {}


class OwnTeam:
    """Two agents that act until they are stopped."""

    possible_agents = ("a", "b")
    observation_spaces = dict.fromkeys("ab", gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32))
    action_spaces = dict.fromkeys("ab", gymnasium.spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return dict.fromkeys("ab", np.zeros(1, np.float32)), {}

    def step(self, actions: Any) -> Any:
        flags = {"__all__": False}
        return dict.fromkeys("ab", np.zeros(1, np.float32)), dict.fromkeys("ab", 1.0), flags, dict(flags), {}


def make_by_index(index: int) -> gymnasium.Env:
    return OwnEnv(length=3 + index)


def trained_steps(env_name: str, **env: Any) -> int:
    config = {
        "agent": SMALL,
        "env": {"name": env_name, **env},
        "total_timesteps": 16,
        "evaluation": {"num_episodes": 2},
        "recorders": [],
    }
    workflow = build_workflow(config)
    try:
        return int(workflow.learn(workflow.init(workflow.make_key())).env_steps)
    finally:
        workflow.close()


@pytest.mark.parametrize(
    ("env", "library"),
    [
        (OwnEnv, "own_host"),
        (OwnEnv(), "own_host"),
        (lambda: OwnEnv(4), "own_host"),
        (make_by_index, "own_host"),
        (CartPole, "own"),
        (CartPole(), "own"),
        (OwnTeam, "own_agents"),
        (lambda num_envs: gymnasium.make_vec("CartPole-v1", num_envs=num_envs), "own_vector"),
        (lambda num_envs: VectorEnv.wrap(lambda index: OwnEnv(), num_envs=num_envs), "own_vector"),
    ],
    ids=[
        "class",
        "object",
        "function",
        "function of an index",
        "device class",
        "device object",
        "agents",
        "gym vector",
        "vector",
    ],
)
def test_whatever_makes_environments_can_be_trained_on(env: Any, library: str) -> None:
    name = name_own_env(env)
    assert name.startswith(f"{library}/")
    limit = {"episode_length": 5} if library == "own_agents" else {}
    assert trained_steps(name, **limit) >= 16


def test_the_index_of_an_environment_reaches_its_function() -> None:
    envs = make_host_env(name_own_env(make_by_index), 3)
    assert [env.length for env in envs.vector_env.get_sub_environments()] == [
        3
    ]  # the others follow when they are reset
    envs.poll()
    assert [env.length for env in envs.vector_env.get_sub_environments()] == [3, 4, 5]


def test_arguments_reach_the_class() -> None:
    envs = make_host_env(name_own_env(OwnEnv), 1, length=7)
    envs.poll()
    assert envs.vector_env.get_sub_environments()[0].length == 7


@pytest.mark.parametrize("env", [OwnEnv, OwnEnv(), OwnTeam], ids=["class", "object", "agents"])
def test_it_runs_in_other_processes(env: Any) -> None:
    envs = make_host_env(name_own_env(env), 2, processes=True)
    try:
        assert sorted(envs.poll().resets) == [0, 1]
    finally:
        envs.close()


def test_an_object_is_copied_so_that_it_stays_as_it_was() -> None:
    env = OwnEnv()
    name = name_own_env(env)
    trained_steps(name)
    assert not hasattr(env, "count")


def test_names_stay_and_differ() -> None:
    first, second = OwnEnv, type("OwnEnv", (OwnEnv,), {})
    assert name_own_env(first) == name_own_env(first)
    assert name_own_env(first) != name_own_env(second)


def test_they_are_not_listed() -> None:
    name_own_env(CartPole)
    assert not [name for name in all_library_names() if name.startswith("own")]
    assert "own" not in library_names()
    assert "own/CartPole" in env_names("own")


def test_a_device_environment_is_made_by_its_name() -> None:
    env = create_env(name_own_env(CartPole), parallel=3)
    assert env.num_envs == 3


def test_a_name_that_this_process_does_not_know_says_what_to_do() -> None:
    for name in ("own_host/Gone", "own/Gone"):
        with pytest.raises(InvalidInputError, match="pass it again"):
            make_host_env(name, 1) if "host" in name else create_env(name)


def test_what_is_no_environment_is_refused() -> None:
    for env in (3, "CartPole-v1", lambda: 3, object()):
        with pytest.raises(InvalidInputError, match="expected a device Env"):
            name_own_env(env)


def test_an_object_that_cannot_be_copied_asks_for_its_class() -> None:
    env = OwnEnv()
    env.lock = threading.Lock()
    with pytest.raises(InvalidInputError, match="pass its class"):
        name_own_env(env)


def test_a_vector_object_of_another_size_asks_for_a_function() -> None:
    name = name_own_env(gymnasium.make_vec("CartPole-v1", num_envs=3))
    with pytest.raises(InvalidInputError, match="lambda num_envs"):
        make_host_env(name, 2)


class Simulator(ExternalEnv):
    def __init__(self) -> None:
        super().__init__(gymnasium.spaces.Box(-1.0, 1.0, (1,)), gymnasium.spaces.Discrete(2), max_episodes=3)

    def run(self) -> None:
        raise AssertionError


def test_a_simulator_in_control_is_made_once_and_has_an_env_for_each_episode_at_once() -> None:
    simulator = Simulator()
    name = name_own_env(simulator)
    assert name == name_own_env(simulator) == "own_external/Simulator"
    assert name_own_env(Simulator) == name_own_env(lambda: Simulator())[: len(name)] + "-2"
    base_env = make_host_env(name, num_envs=8)
    assert (base_env.num_envs, base_env.is_external) == (3, True)
