"""Every kind of environment becomes one that the runner knows."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.envs import make_env
from rookery.errors import InvalidInputError
from rookery.runners.envs.autoreset import AutoresetBaseEnv
from rookery.runners.envs.base_env import SINGLE_AGENT, BaseEnv
from rookery.runners.envs.conversion import to_base_env
from rookery.runners.envs.external import ExternalEnv
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.envs.multi_agent import MultiAgentBaseEnv, MultiAgentDictEnv
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import VectorEnv
from rookery.runners.transports.transport import EnvCallError
from rookery.testing.misbehaving_envs import FaultyEnv, exit_process, segfault


def cartpole(index: int = 0) -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


class TwoAgents(MultiAgentDictEnv):
    possible_agents = ("left", "right")
    observation_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Discrete(2))
    action_spaces = dict.fromkeys(possible_agents, gymnasium.spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"left": 0, "right": 1}, {}

    def step(self, actions: dict) -> Any:
        return {"left": 0, "right": 1}, {}, {"__all__": False}, {"__all__": False}, {}


class SameMethods:
    """A dict env that inherits from nothing, with spaces as functions."""

    possible_agents = ("left", "right")
    reset = TwoAgents.reset
    step = TwoAgents.step

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(2)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(2)


class Idle(ExternalEnv):
    def __init__(self) -> None:
        super().__init__(gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2))

    def run(self) -> None:
        self.get_action(self.start_episode(), 1)


@pytest.fixture
def convert() -> Iterator[Callable[..., BaseEnv]]:
    made: list[BaseEnv] = []

    def make(*args: Any, **kwargs: Any) -> BaseEnv:
        made.append(to_base_env(*args, **kwargs))
        return made[-1]

    yield make
    for base_env in made:
        base_env.close()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (cartpole, VectorBaseEnv),
        (lambda: VectorEnv.wrap(cartpole, num_envs=2), VectorBaseEnv),
        (lambda: gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"), AutoresetBaseEnv),
        (
            lambda: gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point"),
            AutoresetBaseEnv,
        ),
        (TwoAgents, MultiAgentBaseEnv),
        (SameMethods, MultiAgentBaseEnv),
        (Idle, ExternalBaseEnv),
    ],
)
def test_each_kind_is_converted_and_gives_its_first_observations(
    convert: Callable[..., BaseEnv], make: Callable, kind: type[BaseEnv]
) -> None:
    base_env = convert(make())
    assert type(base_env) is kind
    polled = base_env.poll(timeout=30.0)
    assert not polled.failed
    assert sorted(polled.resets) == list(range(base_env.num_envs))


@pytest.mark.parametrize("kind", ["parallel_env", "env"])
def test_both_kinds_of_pettingzoo_are_converted(convert: Callable[..., BaseEnv], kind: str) -> None:
    module = pytest.importorskip("mpe2.simple_spread_v3")
    base_env = convert(make_env=lambda index: getattr(module, kind)(N=2), num_envs=2)
    assert isinstance(base_env, MultiAgentBaseEnv)
    assert base_env.name == "simple_spread_v3"
    assert sorted(base_env.poll().resets) == [0, 1]


def test_envpool_is_converted(convert: Callable[..., BaseEnv]) -> None:
    envpool = pytest.importorskip("envpool")
    base_env = convert(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2))
    assert isinstance(base_env, AutoresetBaseEnv)
    assert sorted(base_env.poll().resets) == [0, 1]


def test_a_base_env_stays_as_it_is(convert: Callable[..., BaseEnv]) -> None:
    base_env = convert(cartpole())
    assert to_base_env(base_env) is base_env


def test_the_first_env_is_used_and_the_others_are_made(convert: Callable[..., BaseEnv]) -> None:
    made: list[int] = []

    def make_env(index: int) -> gymnasium.Env:
        made.append(index)
        return cartpole()

    first = cartpole()
    base_env = convert(first, make_env=make_env, num_envs=3)
    base_env.poll()
    assert made == [1, 2]
    assert base_env.vector_env.get_sub_environments()[0] is first  # type: ignore[attr-defined]
    assert base_env.name == "CartPole-v1"
    assert set(base_env.spaces) == {SINGLE_AGENT}


def test_a_function_alone_makes_all_of_them_once(convert: Callable[..., BaseEnv]) -> None:
    made: list[int] = []

    def make_env(index: int) -> Any:
        made.append(index)
        return TwoAgents()

    convert(make_env=make_env, num_envs=2).poll()
    assert made == [0, 1]


def test_several_external_envs_are_sampled_together(convert: Callable[..., BaseEnv]) -> None:
    base_env = convert(make_env=lambda index: Idle(), num_envs=3)
    assert base_env.num_envs == 3


def test_in_other_processes_only_what_can_be_made_there(convert: Callable[..., BaseEnv]) -> None:
    base_env = convert(make_env=lambda index: gymnasium.make("CartPole-v1"), num_envs=2, processes=True)
    base_env.try_reset(0, seed=3)
    there = base_env.poll()
    here, _ = cartpole().reset(seed=3)
    np.testing.assert_array_equal(there.obs[0], here)
    assert base_env.name == "CartPole-v1"
    with pytest.raises(InvalidInputError, match="an existing environment cannot move to another process"):
        to_base_env(cartpole(), make_env=cartpole, processes=True)
    with pytest.raises(InvalidInputError, match=r"make_env returns <.*Idle object.*, which needs processes=False"):
        to_base_env(make_env=lambda index: Idle(), processes=True)


def test_with_processes_no_environment_is_made_in_this_process(convert: Callable[..., BaseEnv]) -> None:
    made: list[int] = []

    def make_env(index: int) -> Any:
        made.append(index)
        return TwoAgents()

    base_env = convert(make_env=make_env, processes=True)
    assert isinstance(base_env, MultiAgentBaseEnv)
    assert base_env.poll().resets == [0]
    assert made == []


@pytest.mark.parametrize(
    ("fault", "cause"), [(segfault, "SIGSEGV"), (exit_process, "exited with code 3")], ids=["segfault", "exit"]
)
def test_an_environment_that_kills_its_process_when_it_is_made_does_not_kill_this_one(fault: Any, cause: str) -> None:
    with pytest.raises(EnvCallError, match=cause):
        to_base_env(make_env=lambda index: FaultyEnv(fault, at_make=True), processes=True)


def test_more_environments_than_exist_need_a_function_that_makes_them() -> None:
    with pytest.raises(InvalidInputError, match=r"num_envs=2 .* with 1 existing environments and no make_env"):
        to_base_env(cartpole(), num_envs=2)
    with pytest.raises(InvalidInputError, match="num_envs=2 needs make_env: only one ExternalEnv was given"):
        to_base_env(Idle(), num_envs=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "got 3"),
        ("CartPole-v1", "got 'CartPole-v1'"),
        (TwoAgents, "the class TwoAgents, which must be called"),
        (make_env("classic/cartpole"), "got CartPole()"),
    ],
)
def test_anything_else_is_refused_with_what_is_accepted(given: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=r"expected a gymnasium\.Env.*PettingZoo.*ExternalEnv") as caught:
        to_base_env(given)
    assert said in str(caught.value)
    with pytest.raises(InvalidInputError, match="neither an environment nor make_env"):
        to_base_env()
