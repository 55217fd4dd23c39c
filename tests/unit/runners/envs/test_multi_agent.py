"""Multi-agent dict environments as the runner knows them."""

import re
from collections import UserDict
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.runners.envs.base_env import Actions, End, EnvOutputs
from rookery.runners.envs.multi_agent import MultiAgentBaseEnv, MultiAgentDictEnv
from rookery.runners.envs.validation import CALLS_PER_CHECK
from rookery.runners.faults import FaultKind, Phase
from rookery.runners.transports.local import LocalTransport

AGENTS = ("a", "b", "c")
GOES_ON = {"__all__": False}
ENDS = {"__all__": True}


def seen(number: float) -> np.ndarray:
    return np.array([number], np.float32)


class ScriptedEnv(MultiAgentDictEnv):
    """Replies what its script says, first at the reset and then at each step; an exception there is raised."""

    possible_agents = AGENTS
    observation_spaces = dict.fromkeys(AGENTS, gymnasium.spaces.Box(-np.inf, np.inf, (1,)))
    action_spaces: ClassVar = {
        "a": gymnasium.spaces.Discrete(3, start=1),
        "b": gymnasium.spaces.Box(-1, 1, (2,)),
        "c": gymnasium.spaces.Discrete(2),
    }

    def __init__(self, *script: Any) -> None:
        self.script = script
        self.seeds: list[int | None] = []
        self.actions: list[dict] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.actions.clear()
        return self._reply(0)

    def step(self, actions: dict) -> Any:
        self.actions.append(actions)
        return self._reply(len(self.actions))

    def _reply(self, index: int) -> Any:
        if isinstance(self.script[index], Exception):
            raise self.script[index]
        return self.script[index]


def base_env_of(*envs: ScriptedEnv) -> MultiAgentBaseEnv:
    return MultiAgentBaseEnv(LocalTransport([lambda env=env: env for env in envs]))


def rows(polled: EnvOutputs) -> list[tuple]:
    """Each row as (env, agent, number seen, reward, end)."""
    assert polled.agents is not None
    numbers = [None if obs is None else float(obs[0]) for obs in polled.obs]
    ends = [End(end) for end in polled.ends]
    return list(zip(polled.envs.tolist(), polled.agents, numbers, polled.rewards.tolist(), ends, strict=True))


def step(base_env: MultiAgentBaseEnv, *acting: tuple[int, str, Any], envs: Any = (0,)) -> EnvOutputs:
    row_envs = np.array([env for env, _, _ in acting], np.int64)
    actions = [action for _, _, action in acting]
    base_env.send_actions(Actions(np.array(envs), actions, [agent for _, agent, _ in acting], row_envs))
    return base_env.poll()


def played(*script: Any) -> list[list[tuple]]:
    """Play a script with nobody acting; return the rows of each poll."""
    base_env = base_env_of(ScriptedEnv(*script))
    polls = [rows(base_env.poll())]
    for _ in script[1:]:
        polls.append(rows(step(base_env)))
    return polls


def failure_of(*script: Any) -> str:
    """Play a script whose last reply is invalid; return what is said of it."""
    base_env = base_env_of(ScriptedEnv(*script))
    polled = base_env.poll()
    for _ in script[1:]:
        assert not polled.failed
        polled = step(base_env)
    assert polled.failed[0].kind is FaultKind.INVALID
    assert len(polled.envs) == 0
    return polled.failed[0].error


def test_no_env_is_reset_before_the_first_poll_which_gives_the_first_observations_of_all() -> None:
    envs = [ScriptedEnv(({"b": seen(2), "a": seen(1)}, {})), ScriptedEnv(({"c": seen(3)}, {"c": {"k": 1}}))]
    base_env = base_env_of(*envs)
    base_env.try_reset(0, seed=5)
    base_env.try_reset(1, seed=6)
    assert [env.seeds for env in envs] == [[], []]
    polled = base_env.poll()
    assert [env.seeds for env in envs] == [[5], [6]]
    assert rows(polled) == [
        (0, "a", 1.0, 0.0, End.RUNNING),
        (0, "b", 2.0, 0.0, End.RUNNING),
        (1, "c", 3.0, 0.0, End.RUNNING),
    ]
    assert polled.is_reset.all()
    assert list(polled.resets) == [0, 1]
    assert polled.infos == {1: {"c": {"k": 1}}}
    assert not polled.stepped


def test_an_episode_may_begin_without_observations_and_is_then_stepped_with_an_empty_dict() -> None:
    env = ScriptedEnv(({}, {}), ({"a": seen(1)}, {}, GOES_ON, GOES_ON, {}))
    base_env = base_env_of(env)
    polled = base_env.poll()
    assert len(polled.envs) == 0
    assert list(polled.resets) == [0]
    polled = step(base_env)
    assert env.actions == [{}]
    assert rows(polled) == [(0, "a", 1.0, 0.0, End.RUNNING)]
    assert list(polled.stepped) == [0]


def test_actions_arrive_in_the_form_that_the_spaces_of_the_agents_ask_for() -> None:
    env = ScriptedEnv(({"a": seen(0), "b": seen(0)}, {}), ({}, {}, GOES_ON, GOES_ON, {}))
    base_env = base_env_of(env)
    base_env.poll()
    step(base_env, (0, "a", np.int32(3)), (0, "b", np.array([0.5, -0.5], np.float32)))
    assert type(env.actions[0]["a"]) is int
    assert env.actions[0]["a"] == 3
    np.testing.assert_array_equal(env.actions[0]["b"], np.array([0.5, -0.5], np.float32))
    assert not env.actions[0]["b"].flags.writeable


def test_a_reward_without_an_observation_is_a_row_without_one() -> None:
    _, first, second = played(
        ({"a": seen(0), "b": seen(0)}, {}),
        ({"a": seen(1)}, {"a": 1.0, "b": np.array([3.0])}, GOES_ON, GOES_ON, {}),
        ({"b": seen(2)}, {"b": np.int64(4)}, GOES_ON, GOES_ON, {}),
    )
    assert first == [(0, "a", 1.0, 1.0, End.RUNNING), (0, "b", None, 3.0, End.RUNNING)]
    assert second == [(0, "b", 2.0, 4.0, End.RUNNING)]


@pytest.mark.parametrize(
    ("terminateds", "truncateds", "end", "end_without_observation"),
    [
        (ENDS, GOES_ON, End.TERMINATED, End.GONE_TERMINATED),
        (GOES_ON, ENDS, End.TRUNCATED, End.GONE_TRUNCATED),
        (ENDS, ENDS, End.TERMINATED, End.GONE_TERMINATED),
    ],
)
def test_the_end_for_all_ends_also_those_that_are_not_observed(
    terminateds: dict, truncateds: dict, end: End, end_without_observation: End
) -> None:
    _, last = played(
        ({"a": seen(0), "b": seen(0)}, {}),
        ({"a": seen(1)}, {"a": 1.0}, terminateds, truncateds, {}),
    )
    assert last == [(0, "a", 1.0, 1.0, end), (0, "b", None, 0.0, end_without_observation)]


def test_one_agent_may_terminate_in_the_step_in_which_another_is_truncated() -> None:
    first_obs = {"a": seen(0), "b": seen(0), "c": seen(0)}
    next_obs = {"a": seen(1), "b": seen(2), "c": seen(3)}
    _, last = played((first_obs, {}), (next_obs, {}, {"a": True, **ENDS}, {"a": True, "b": True, **GOES_ON}, {}))
    assert [row[4] for row in last] == [End.TERMINATED, End.TRUNCATED, End.TERMINATED]


def test_an_agent_that_ended_early_is_not_heard_of_again() -> None:
    _, _, last = played(
        ({"a": seen(0), "b": seen(0)}, {}),
        ({"a": seen(1), "b": seen(1)}, {}, {"b": True, **GOES_ON}, GOES_ON, {}),
        ({"a": seen(2)}, {}, {"b": True, **ENDS}, GOES_ON, {}),
    )
    assert last == [(0, "a", 2.0, 0.0, End.TERMINATED)]


def test_an_agent_first_seen_as_already_done_shows_no_observation_and_keeps_its_reward() -> None:
    _, late, last = played(
        ({"a": seen(0)}, {}),
        ({"a": seen(1), "b": seen(9)}, {"b": 7.0}, {"b": True, **GOES_ON}, GOES_ON, {"b": {}}),
        ({"a": seen(2)}, {}, ENDS, GOES_ON, {}),
    )
    assert late == [(0, "a", 1.0, 0.0, End.RUNNING), (0, "b", None, 7.0, End.GONE_TERMINATED)]
    assert last == [(0, "a", 2.0, 0.0, End.TERMINATED)]


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (({}, {}, {}, GOES_ON, {}), "InvalidFlagError: at step 0, terminateds has no entry '__all__'"),
        (({}, {}, GOES_ON, {"a": False}, {}), "truncateds has no entry '__all__'"),
        (({}, {}, {"__all__": "no"}, GOES_ON, {}), r"terminateds\['__all__'\] is 'no'"),
        (({"a": seen(1)}, {}, GOES_ON, GOES_ON, {"b": {}}), "InvalidInfoError: at step 0, .*info for agent 'b'"),
        (({"a": seen(1)}, {}, GOES_ON, GOES_ON, {"a": 3}), "agent 'a': info is 3"),
        (({}, {"a": np.nan}, GOES_ON, GOES_ON, {}), "InvalidRewardError: at step 0, agent 'a': reward is nan"),
        (({"b": np.zeros(2, np.float32)}, {}, GOES_ON, GOES_ON, {}), "agent 'b': observation has shape"),
        (({"b": np.zeros(1)}, {}, GOES_ON, GOES_ON, {}), "agent 'b': observation has dtype float64"),
        (({"d": seen(0)}, {}, GOES_ON, GOES_ON, {}), "'d', which is not in possible_agents"),
        (([], {}, GOES_ON, GOES_ON, {}), r"observations are \[\]"),
        (({}, {}), "step returned a tuple of 2"),
    ],
)
def test_an_env_that_breaks_the_rules_fails_with_agent_and_step(reply: Any, expected: str) -> None:
    assert re.search(expected, failure_of(({"a": seen(0)}, {}), reply))


class BoundedEnv(ScriptedEnv):
    """Its agents see numbers from 0 to 1, if they are true."""

    observation_spaces = dict.fromkeys(AGENTS, gymnasium.spaces.Box(0, 1, (1,)))


@pytest.mark.parametrize("sample_bounds", [True, False])
def test_the_bounds_of_every_agent_are_checked_now_and_then_unless_told_not_to(sample_bounds: bool) -> None:
    steps = [({"b": seen(2)}, {}, GOES_ON, GOES_ON, {})] * CALLS_PER_CHECK
    env = BoundedEnv(({"a": seen(0), "b": seen(1)}, {}), *steps)
    base_env = MultiAgentBaseEnv(LocalTransport([lambda: env]), sample_bounds=sample_bounds)
    polled = base_env.poll()
    while not polled.failed and len(env.actions) < len(steps):
        polled = step(base_env)
    if not sample_bounds:
        assert polled.failed == {}
        return
    assert polled.failed[0].kind is FaultKind.INVALID
    assert re.search(r"at step \d+, agent 'b': observation is 2.0 at \[0\], .* outside of Box", polled.failed[0].error)


def test_common_infos_are_for_no_agent() -> None:
    base_env = base_env_of(ScriptedEnv(({}, {"__common__": {"map": 3}})))
    assert base_env.poll().infos == {0: {"__common__": {"map": 3}}}


@pytest.mark.parametrize(
    ("obs", "rewards", "what"), [({"b": seen(5)}, {}, "an observation"), ({}, {"b": 0.0}, "a reward")]
)
def test_data_for_an_agent_that_is_done_is_an_error_that_names_agent_and_step(
    obs: Any, rewards: Any, what: str
) -> None:
    error = failure_of(
        ({"a": seen(0), "b": seen(0)}, {}),
        ({"a": seen(1)}, {}, {"b": True, **GOES_ON}, GOES_ON, {}),
        (obs, rewards, GOES_ON, GOES_ON, {}),
    )
    assert error == f"EndedAgentError: at step 1, agent 'b' gets {what}, but has ended before."


class RaisingReward:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("no reward")


class RaisingMapping(UserDict):
    def keys(self) -> Any:
        raise ZeroDivisionError("no keys")


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (({"__all__": seen(1)}, {}, GOES_ON, GOES_ON, {}), "observations has an entry '__all__'"),
        (({"__common__": seen(1)}, {}, GOES_ON, GOES_ON, {}), "observations has an entry '__common__'"),
        (({}, {"__all__": 1.0}, GOES_ON, GOES_ON, {}), "rewards has an entry '__all__'"),
        (({}, {"__common__": 1.0}, GOES_ON, GOES_ON, {}), "rewards has an entry '__common__'"),
        (({}, {}, {"__common__": True, **GOES_ON}, GOES_ON, {}), "terminateds has an entry '__common__'"),
        (({}, {}, GOES_ON, GOES_ON, {"__all__": {}}), "infos has an entry '__all__'"),
        (({"a": seen(1)}, {"a": RaisingReward()}, GOES_ON, GOES_ON, {}), "ZeroDivisionError('no reward')"),
        (({"a": seen(1)}, RaisingMapping(), GOES_ON, GOES_ON, {}), "ZeroDivisionError('no keys')"),
        (({"a": seen(1)}, {"a": 1e300}, GOES_ON, GOES_ON, {}), "agent 'a': reward is 1e+300"),
        (({"a": seen(np.nan)}, {}, GOES_ON, GOES_ON, {}), "agent 'a': observation is nan"),
        (({}, {}, {(): True, **GOES_ON}, GOES_ON, {}), "terminateds has an entry ()"),
    ],
)
def test_every_lie_is_a_fault_of_its_env(reply: Any, text: str) -> None:
    assert text in failure_of(({"a": seen(0)}, {}), reply)


def test_an_episode_is_over_when_all_agents_have_ended_although_the_env_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = (
        ({"a": seen(0), "b": seen(0)}, {}),
        ({"b": seen(1)}, {}, {"a": True, "c": True, **GOES_ON}, GOES_ON, {}),
        ({"b": seen(2)}, {}, GOES_ON, {"b": True, **GOES_ON}, {}),
    )
    base_env = base_env_of(ScriptedEnv(*script))
    base_env.poll()
    assert list(step(base_env).over) == []
    polled = step(base_env)
    assert "all agents have ended, but neither terminateds nor truncateds has '__all__': True" in caplog.text
    assert list(polled.over) == [0]
    assert rows(polled) == [(0, "b", 2.0, 0.0, End.TRUNCATED)]


def test_an_env_that_raises_fails_alone_and_is_restarted() -> None:
    good_script = (({"a": seen(0)}, {}), *[({"a": seen(k)}, {}, GOES_ON, GOES_ON, {}) for k in (1, 2)])
    bad_script = (({"a": seen(0)}, {}), KeyError())
    scripts = [bad_script, good_script]
    makers: list[Callable] = [lambda: ScriptedEnv(*good_script), lambda: ScriptedEnv(*scripts.pop(0))]
    base_env = MultiAgentBaseEnv(LocalTransport(makers))
    base_env.poll()
    polled = step(base_env, (0, "a", 1), (1, "a", 1), envs=(0, 1))
    assert rows(polled) == [(0, "a", 1.0, 0.0, End.RUNNING)]
    assert (polled.failed[1].kind, polled.failed[1].phase) == (FaultKind.RAISED, Phase.STEP)
    with pytest.raises(
        InvalidInputError, match="env 1 of ScriptedEnv cannot take actions: it failed: call try_restart"
    ):
        step(base_env, envs=(0, 1))
    base_env.try_restart(1, seed=9)
    polled = step(base_env, (0, "a", 1))
    assert rows(polled) == [(0, "a", 2.0, 0.0, End.RUNNING), (1, "a", 0.0, 0.0, End.RUNNING)]
    assert polled.is_reset.tolist() == [False, True]


def test_an_env_that_is_over_takes_no_actions_until_it_is_reset() -> None:
    env = ScriptedEnv(({"a": seen(0)}, {}), ({"a": seen(1)}, {}, ENDS, GOES_ON, {}))
    base_env = base_env_of(env)
    base_env.poll()
    assert list(step(base_env).over) == [0]
    with pytest.raises(InvalidInputError, match="it is over: call try_reset first"):
        step(base_env)
    base_env.try_reset(0, seed=3)
    assert rows(base_env.poll()) == [(0, "a", 0.0, 0.0, End.RUNNING)]
    assert env.seeds == [None, 3]


def test_a_poll_with_nothing_under_way_is_empty() -> None:
    base_env = base_env_of(ScriptedEnv(({"a": seen(0)}, {})))
    base_env.poll()
    polled = base_env.poll()
    assert len(polled.envs) == 0
    assert not polled.resets


def test_last_observations_stay_true_when_the_env_reuses_their_memory() -> None:
    buffer = seen(0)

    class ReusingEnv(ScriptedEnv):
        def _reply(self, index: int) -> Any:
            buffer[0] = index
            return super()._reply(index)

    base_env = base_env_of(ReusingEnv(({"a": buffer}, {}), ({"a": buffer}, {}, ENDS, GOES_ON, {})))
    first = base_env.poll()
    last = step(base_env)
    base_env.try_reset(0, seed=None)
    assert (float(first.obs[0][0]), float(last.obs[0][0])) == (0.0, 1.0)
