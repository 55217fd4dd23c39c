"""PettingZoo environments, stepped through the runner's interface and by hand."""

import importlib
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from rookery.agent import ACTION_MASK
from rookery.errors import InvalidInputError, MissingExtraError, UnknownNameError
from rookery.runners.envs import pettingzoo as adapter
from rookery.runners.envs.base_env import Actions, End, EnvOutputs
from rookery.runners.envs.conversion import make_transport
from rookery.runners.envs.multi_agent import MultiAgentBaseEnv
from rookery.runners.envs.pettingzoo import as_dict_env, pettingzoo_factory, pettingzoo_names
from rookery.runners.transports.local import LocalTransport
from tests.runner_envs import ParityAgent, make_runner

pettingzoo = pytest.importorskip("pettingzoo")
pytest.importorskip("mpe2")
from pettingzoo.test import api_test, parallel_api_test  # noqa: E402

ActionFn = Callable[[str, int, Any], int]
"""The action of an agent at a step on an observation."""


def any_allowed(agent: str, step: int, obs: Any) -> int:
    """Choose as if at random, but always the same, among what the mask allows."""
    number = sum(agent.encode()) * 31 + step * 17
    if isinstance(obs, Mapping) and ACTION_MASK in obs:
        allowed = np.flatnonzero(obs[ACTION_MASK])
        return int(allowed[number % len(allowed)])
    return number % 3


def make(name: str, episode_length: int | None = None, **kwargs: Any) -> MultiAgentBaseEnv:
    factory = pettingzoo_factory(name, episode_length, render=False, kwargs=kwargs)
    return MultiAgentBaseEnv(make_transport(factory))


def play(base_env: MultiAgentBaseEnv, seed: int, action_fn: ActionFn = any_allowed) -> list[EnvOutputs]:
    """Play one episode; return all polls."""
    base_env.try_reset(0, seed)
    polls = [base_env.poll()]
    while not polls[-1].over:
        polled = polls[-1]
        assert not polled.failed, polled.failed
        assert polled.agents is not None
        acting = [k for k, end in enumerate(polled.ends) if end == End.RUNNING and polled.obs[k] is not None]
        agents = [polled.agents[k] for k in acting]
        actions = [action_fn(polled.agents[k], len(polls) - 1, polled.obs[k]) for k in acting]  # type: ignore[arg-type]
        base_env.send_actions(Actions(np.array([0]), actions, agents, np.zeros(len(acting), np.int64)))
        polls.append(base_env.poll())
    return polls


def totals(polls: list[EnvOutputs]) -> dict[Any, float]:
    """The sum of the rewards of each agent."""
    sums: dict[Any, float] = defaultdict(float)
    for polled in polls:
        for agent, reward in zip(polled.agents or (), polled.rewards, strict=True):
            sums[agent] += reward
    return dict(sums)


MPE2 = [name for name in pettingzoo_names() if name.startswith("mpe2.")]


@pytest.mark.parametrize("name", MPE2)
def test_every_env_of_mpe2_that_parallel_api_test_accepts_runs_as_by_hand(name: str) -> None:
    env = importlib.import_module(name).parallel_env(max_cycles=6)
    parallel_api_test(env, num_cycles=20)
    base_env = make(name, episode_length=6)
    shapes = {agent: f"obs{obs_space.shape}" for agent, (obs_space, _) in base_env.spaces.items()}  # type: ignore[attr-defined]
    runner = make_runner(
        base_env, {policy: ParityAgent() for policy in shapes.values()}, lambda agent, episode: shapes[agent]
    )
    sample = runner.sample(num_episodes=2)
    assert sample.faults == []
    assert sample.agent_steps == 12 * len(shapes)
    for episode in sample.episodes:
        obs, _ = env.reset(seed=episode.seed)
        returns = dict.fromkeys(env.agents, 0.0)
        while env.agents:
            obs, rewards, _, _, _ = env.step({agent: int(obs[agent][0]) % 2 for agent in env.agents})
            returns = {agent: returns[agent] + reward for agent, reward in rewards.items()}
        assert episode.agent_returns == returns


@pytest.mark.parametrize(("own_limit", "length"), [(5, 5), (20, 9)])
def test_the_longest_episode_does_not_replace_a_shorter_limit(own_limit: int, length: int) -> None:
    pytest.importorskip("mpe2")
    kwargs = {"max_cycles": own_limit}
    factory = pettingzoo_factory("mpe2.simple_spread_v3", None, render=False, kwargs=kwargs, longest_episode=9)
    polls = play(MultiAgentBaseEnv(make_transport(factory)), seed=4)
    assert len(polls) - 1 == length
    assert {End(end) for end in polls[-1].ends} == {End.TRUNCATED}


@pytest.mark.parametrize("name", ["simple_spread_v3", "simple_tag_v3"])
def test_a_parallel_env_gives_what_it_gives_by_hand(name: str) -> None:
    polls = play(make(f"mpe2.{name}", episode_length=12), seed=4)
    module = pytest.importorskip(f"mpe2.{name}")
    env = module.parallel_env(max_cycles=12)
    obs, _ = env.reset(seed=4)
    for step, polled in enumerate(polls):
        assert polled.agents == list(env.possible_agents)
        for agent, seen in zip(polled.agents, polled.obs, strict=True):
            np.testing.assert_array_equal(seen, obs[agent])
        if not env.agents:
            break
        actions = {agent: any_allowed(agent, step, obs[agent]) for agent in env.agents}
        obs, rewards, _, _, _ = env.step(actions)
        assert polls[step + 1].rewards.tolist() == [rewards[agent] for agent in polls[step + 1].agents or ()]
    assert step == len(polls) - 1 == 12
    assert {End(end) for end in polls[-1].ends} == {End.TRUNCATED}


def played_in_turns(env: Any, seed: int) -> tuple[list[tuple[str, Any]], dict[str, float]]:
    """Play an AEC env as PettingZoo documents it: who saw what, and the sums of the rewards that `last` gave."""
    env.reset(seed=seed)
    turns, sums, step = [], defaultdict(float), 0
    for agent in env.agent_iter():
        obs, reward, terminated, truncated, _ = env.last()
        turns.append((agent, obs))
        sums[agent] += reward
        is_over = terminated or truncated
        env.step(None if is_over else any_allowed(agent, step, obs))
        step += not is_over
    return turns, dict(sums)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["tictactoe", "connect_four"])
def test_a_game_in_turns_gives_what_it_gives_by_hand(name: str, seed: int) -> None:
    classic = pytest.importorskip(f"pettingzoo.classic.{name}.{name}")
    turns, sums = played_in_turns(classic.env(), seed)
    polls = play(make(f"classic.{name}_v3"), seed)
    seen = [(agent, obs) for polled in polls for agent, obs in zip(polled.agents or (), polled.obs, strict=True)]
    seen = [(agent, obs) for agent, obs in seen if obs is not None]
    assert sorted(agent for agent, _ in seen) == sorted(agent for agent, _ in turns)
    by_agent = {agent: [obs for name, obs in turns if name == agent] for agent in sums}
    for agent, obs in seen:
        np.testing.assert_array_equal(obs["observation"], by_agent[agent].pop(0)["observation"])
    assert {agent: reward for agent, reward in totals(polls).items() if reward} == sums
    assert sorted(sums.values()) == [-1, 1]
    assert {End(end) for end in polls[-1].ends} == {End.TERMINATED}


def test_rewards_of_those_whose_turn_it_is_not_are_counted_once() -> None:
    module = pytest.importorskip("mpe2.simple_spread_v3")
    _, sums = played_in_turns(module.env(max_cycles=8), seed=2)
    polls = play(MultiAgentBaseEnv(LocalTransport([lambda: as_dict_env(module.env(max_cycles=8))])), seed=2)
    assert all(reward != 0 for reward in sums.values())
    for agent, total in totals(polls).items():
        assert total == pytest.approx(sums[agent])


def test_only_the_agent_whose_turn_it_is_is_observed() -> None:
    base_env = make("classic.tictactoe_v3")
    polls = play(base_env, seed=0)
    observed = [[a for a, obs in zip(p.agents or (), p.obs, strict=True) if obs is not None] for p in polls[:-1]]
    assert observed[:4] == [["player_1"], ["player_2"], ["player_1"], ["player_2"]]


def test_a_mask_in_the_observation_is_what_agents_look_for() -> None:
    base_env = make("classic.tictactoe_v3")
    obs_space, action_space = base_env.spaces["player_1"]
    polled = base_env.poll()
    assert obs_space[ACTION_MASK].shape == (action_space.n,)  # type: ignore[index, attr-defined]
    assert polled.obs[0][ACTION_MASK].tolist() == [1] * 9
    assert adapter.ACTION_MASK == ACTION_MASK


class MaskInInfos(pettingzoo.ParallelEnv):
    """Two agents; the mask of the first is in its info, the second may do anything."""

    metadata: ClassVar = {"name": "mask_in_infos"}
    possible_agents: ClassVar = ["left", "right"]

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(0, 1, (2,))

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(3) if agent == "left" else gymnasium.spaces.MultiDiscrete([2, 2])

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        self.agents = list(self.possible_agents)
        obs = {agent: np.zeros(2, np.float32) for agent in self.agents}
        return obs, {"left": {"action_mask": np.array([0, 1, 0])}, "right": {}, "common": {"wind": 2}}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        obs, infos = self.reset()
        return obs, dict.fromkeys(obs, 0.0), dict.fromkeys(obs, False), dict.fromkeys(obs, False), infos


def test_a_mask_in_the_infos_becomes_part_of_the_observation() -> None:
    base_env = MultiAgentBaseEnv(LocalTransport([lambda: as_dict_env(MaskInInfos())]))
    polled = base_env.poll()
    assert not polled.failed
    assert polled.obs[0][ACTION_MASK].tolist() == [0, 1, 0]
    assert polled.obs[1][ACTION_MASK].tolist() == [1, 1, 1, 1]
    assert polled.obs[0]["observation"].shape == (2,)
    assert polled.infos[0]["__common__"] == {"wind": 2}
    obs_space, _ = base_env.spaces["left"]
    assert set(obs_space.spaces) == {"observation", ACTION_MASK}  # type: ignore[attr-defined]


class LastOneStanding(pettingzoo.AECEnv):
    """Players take turns: x is out after its first action, with reward -5, and y wins with its second."""

    metadata: ClassVar = {"name": "last_one_standing"}
    possible_agents: ClassVar = ["x", "y", "z"]
    seen, choices = gymnasium.spaces.Box(0, 100, (1,)), gymnasium.spaces.Discrete(3)

    def observation_space(self, agent: str) -> gymnasium.Space:
        return self.seen

    def action_space(self, agent: str) -> gymnasium.Space:
        return self.choices

    def observe(self, agent: str) -> np.ndarray:
        return np.array([self.num_actions], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "x"
        self.num_actions = 0

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.num_actions += 1
        alive = [name for name in self.agents if not self.terminations[name]]
        self.agent_selection = alive[(alive.index(agent) + 1) % len(alive)]
        if self.num_actions == 1:
            self.rewards["x"] = -5.0
            self.terminations["x"] = True
        if self.num_actions == 4:
            self.rewards.update(y=1.0, z=-1.0)
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self._deads_step_first()


def test_an_agent_that_is_out_is_observed_a_last_time_and_then_never_again() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would like other names and a picture
        api_test(LastOneStanding(), num_cycles=10)
    polls = play(MultiAgentBaseEnv(LocalTransport([lambda: as_dict_env(LastOneStanding())])), seed=0)
    heard = [
        [(agent, float(obs[0]), reward, End(end)) for agent, obs, reward, end in zip(*columns, strict=True)]
        for columns in ((p.agents or (), p.obs, p.rewards, p.ends) for p in polls)
    ]
    assert heard == [
        [("x", 0.0, 0.0, End.RUNNING)],
        [("x", 1.0, -5.0, End.TERMINATED), ("y", 1.0, 0.0, End.RUNNING)],
        [("z", 2.0, 0.0, End.RUNNING)],
        [("y", 3.0, 0.0, End.RUNNING)],
        [("y", 4.0, 1.0, End.TERMINATED), ("z", 4.0, -1.0, End.TERMINATED)],
    ]


def test_a_time_limit_truncates_a_game_that_has_none_of_its_own() -> None:
    polls = play(make("classic.connect_four_v3", episode_length=5), seed=0)
    assert len(polls) == 6
    ends = dict(zip(polls[-1].agents or (), polls[-1].ends.tolist(), strict=True))
    assert ends == {"player_0": End.GONE_TRUNCATED, "player_1": End.TRUNCATED}


def test_a_time_limit_needs_no_raw_env(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("last_one_standing")
    module.env = LastOneStanding  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "last_one_standing", module)
    polls = play(make("last_one_standing", episode_length=2), seed=0)
    assert len(polls) == 3


def test_a_module_without_an_environment_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="pettingzoo/os: the module os has neither parallel_env nor env"):
        make("os")


def test_an_env_that_parallel_api_test_accepts_runs() -> None:
    rps = pytest.importorskip("pettingzoo.classic.rps.rps")
    parallel_api_test(rps.parallel_env(max_cycles=20), num_cycles=20)
    polls = play(make("classic.rps_v2", episode_length=20), seed=1)
    assert len(polls) == 21
    assert sum(totals(polls).values()) == 0


def test_in_other_processes_it_is_the_same() -> None:
    factory = pettingzoo_factory("mpe2.simple_spread_v3", 5, render=False, kwargs={"N": 2})
    here = play(MultiAgentBaseEnv(make_transport(factory)), seed=8)
    base_env = MultiAgentBaseEnv(make_transport(factory, processes=True))
    try:
        there = play(base_env, seed=8)
    finally:
        base_env.close()
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(np.stack(one.obs), np.stack(other.obs))
        np.testing.assert_array_equal(one.rewards, other.rewards)


def test_names_lead_to_environments() -> None:
    assert {"mpe2.simple_spread_v3", "classic.tictactoe_v3"} <= set(pettingzoo_names())
    with pytest.raises(UnknownNameError, match=r"Did you mean 'pettingzoo/mpe2\.simple_spread_v3'"):
        pettingzoo_factory("mpe2.simple_spred_v3", None, render=False, kwargs={})


def test_an_env_whose_own_packages_are_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'rlcard'", name="rlcard")

    monkeypatch.setattr(adapter.importlib, "import_module", import_module)
    with pytest.raises(MissingExtraError, match="leduc_holdem_v4 needs rlcard, which is not installed"):
        pettingzoo_factory("classic.leduc_holdem_v4", None, render=False, kwargs={})


def test_an_env_that_does_not_name_its_agents_is_refused() -> None:
    module = pytest.importorskip("pettingzoo.test.example_envs.generated_agents_parallel_v0")
    with pytest.raises(InvalidInputError, match="has no possible_agents"):
        as_dict_env(module.parallel_env())


def test_an_action_for_another_agent_than_the_one_whose_turn_it_is_is_refused() -> None:
    env = as_dict_env(LastOneStanding())
    env.reset(seed=0)
    with pytest.raises(InvalidInputError, match="it is the turn of 'x'"):
        env.step({"y": 0})
