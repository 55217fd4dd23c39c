"""Environments in this process: when they are built, what can be given for them, what is read off them."""

from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

from rookery.errors import InvalidInputError
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.transports.local import LocalTransport
from rookery.runners.transports.transport import EnvCallError, describe_env
from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv

BOX = gymnasium.spaces.Box(0.0, 1.0, (2,))
DISCRETE = gymnasium.spaces.Discrete(3)


class CountedMaker:
    """Makes counting envs and knows how many."""

    def __init__(self) -> None:
        self.num_made = 0

    def __call__(self) -> CountingEnv:
        self.num_made += 1
        return CountingEnv()


def reset(envs: LocalTransport, index: int = 0) -> Any:
    envs.send_reset(index, seed=0)
    return envs.receive([index])[index]


def test_envs_are_built_when_first_needed_and_once() -> None:
    make_env = CountedMaker()
    envs = LocalTransport([make_env, make_env])
    assert make_env.num_made == 0
    envs.describe()
    reset(envs)
    assert make_env.num_made == 1
    envs.rebuild(0)
    assert make_env.num_made == 1
    reset(envs)
    assert make_env.num_made == 2


def test_existing_envs_are_used_as_they_are_and_rebuilt_by_their_function() -> None:
    make_env, existing = CountedMaker(), CountingEnv()
    envs = LocalTransport([make_env, make_env], existing_envs=[existing])
    reset(envs)
    assert (envs.envs, make_env.num_made) == ([existing], 0)
    envs.rebuild(0)
    reset(envs)
    assert envs.envs[0] is not existing
    assert make_env.num_made == 1


def test_an_existing_env_without_a_function_cannot_be_rebuilt_and_says_so() -> None:
    envs = LocalTransport([None], existing_envs=[CountingEnv()])
    assert reset(envs)[0] == 0.0
    envs.rebuild(0)
    failed = reset(envs)
    assert isinstance(failed, Failed)
    assert failed.phase is Phase.MAKE
    assert "without a make_env" in failed.error


def test_ctrl_c_is_not_a_fault_of_the_env() -> None:
    def press_ctrl_c() -> None:
        raise KeyboardInterrupt

    envs = LocalTransport([lambda: FaultyEnv(press_ctrl_c, at_step=0), lambda: FaultyEnv(press_ctrl_c, at_reset=0)])
    envs.send_reset(0, seed=None)
    with pytest.raises(KeyboardInterrupt):
        envs.send_steps([0], [0])
    with pytest.raises(KeyboardInterrupt):
        envs.send_reset(1, seed=None)


def test_stepping_before_the_first_reset_is_the_callers_error() -> None:
    with pytest.raises(InvalidInputError, match="env 1 was stepped before it was reset"):
        LocalTransport([CountingEnv, CountingEnv]).send_steps([1], [0])


def test_an_error_of_a_function_that_is_applied_is_a_value() -> None:
    failed = LocalTransport([CountingEnv]).apply(0, lambda env: env.no_such_thing)
    assert isinstance(failed, Failed)
    assert failed.kind is FaultKind.RAISED
    assert "no_such_thing" in failed.error


def test_a_failed_call_names_the_env_once_it_was_described() -> None:
    envs = LocalTransport([lambda: gymnasium.make("CartPole-v1")] * 2)
    with pytest.raises(EnvCallError, match=r"^no_such_thing\(\) of env 1 failed \(raised\): AttributeError"):
        envs.call(1, "no_such_thing")
    envs.describe()
    with pytest.raises(
        EnvCallError, match=r"^no_such_thing\(\) of env 1 \(CartPole-v1\) failed \(raised\): AttributeError"
    ):
        envs.call(1, "no_such_thing")


@pytest.mark.parametrize("slots", [([], []), ([None], []), ([CountingEnv], [CountingEnv()] * 2)])
def test_slots_without_an_env_and_envs_without_a_slot_are_refused(slots: tuple[list, list]) -> None:
    with pytest.raises(InvalidInputError, match="slot"):
        LocalTransport(*slots)


def test_a_time_limit_is_found_below_other_wrappers() -> None:
    limited = gymnasium.wrappers.TimeLimit(CountingEnv(), 7)
    assert describe_env(gymnasium.wrappers.OrderEnforcing(limited)).max_episode_steps == 7
    assert describe_env(gymnasium.make("CartPole-v1").unwrapped).max_episode_steps is None


@pytest.mark.parametrize(
    "spaces",
    [
        {"observation_spaces": {"a": BOX, "b": DISCRETE}, "action_spaces": {"a": DISCRETE, "b": BOX}},
        {"observation_space": {"a": BOX, "b": DISCRETE}, "action_space": {"a": DISCRETE, "b": BOX}},
        {
            "observation_space": gymnasium.spaces.Dict({"a": BOX, "b": DISCRETE}),
            "action_space": gymnasium.spaces.Dict({"a": DISCRETE, "b": BOX}),
        },
        {
            "observation_space": {"a": BOX, "b": DISCRETE}.__getitem__,
            "action_space": {"a": DISCRETE, "b": BOX}.__getitem__,
        },
    ],
    ids=["spaces", "dicts", "Dict spaces", "methods"],
)
def test_spaces_of_several_agents_become_dicts_however_the_env_holds_them(spaces: dict[str, Any]) -> None:
    described = describe_env(SimpleNamespace(possible_agents=["a", "b"], metadata={"name": "x"}, **spaces))
    assert described.possible_agents == ("a", "b")
    assert described.observation_space == {"a": BOX, "b": DISCRETE}
    assert described.action_space == {"a": DISCRETE, "b": BOX}
