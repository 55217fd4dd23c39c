"""Policies that are trained together learn different things: on a task each, and on one that they share."""

import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("fast_programs")

NAME = "opposite_tasks_v0"
LENGTH = 8


class OppositeTasks:
    """Every agent is told 0 or 1; `friend_0` and `friend_1` should say the same, `rebel` should not.

    Who is right gets 1, who is wrong loses 1: by chance that is 0, and at best 8 in an episode for each.
    """

    possible_agents = ("friend_0", "friend_1", "rebel")

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(0.0, 1.0, (1,))

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.random, self.num_steps = np.random.default_rng(seed), 0
        self.agents = list(self.possible_agents)
        return self.tell(), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        rewards = {}
        for agent, action in actions.items():
            is_same = int(action) == int(self.told[agent])
            rewards[agent] = 1.0 if is_same is (agent != "rebel") else -1.0
        self.num_steps += 1
        obs, is_over = self.tell(), self.num_steps == LENGTH
        if is_over:
            self.agents = []
        return obs, rewards, dict.fromkeys(obs, False), dict.fromkeys(obs, is_over), {agent: {} for agent in obs}

    def tell(self) -> dict[str, np.ndarray]:
        self.told = {agent: self.random.integers(2) for agent in self.possible_agents}
        return {agent: np.array([told], np.float32) for agent, told in self.told.items()}

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def opposite_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType(NAME)
    module.parallel_env = module.raw_env = OppositeTasks
    monkeypatch.setitem(sys.modules, NAME, module)


TASKS = (f"env=pettingzoo/{NAME}", "agent.num_envs=8", "agent.rollout_length=32", "agent.learning_rate=3e-3")


@pytest.mark.parametrize("agent", ["ppo", "impala"])
def test_two_policies_learn_opposite_tasks(train, agent: str) -> None:
    policies = "env.policies={friend_*: friend, rebel: rebel}"
    trained = train(f"agent={agent}", *TASKS, policies, "total_timesteps=6_000", "agent.discount=0.5")
    assert trained.recorded("friend/eval/mean_reward") >= 2 * LENGTH - 0.5
    assert trained.recorded("rebel/eval/mean_reward") >= LENGTH - 0.5


def test_one_policy_cannot_learn_both(train) -> None:
    trained = train("agent=ppo", *TASKS, "env.policies=shared", "total_timesteps=6_000", "agent.discount=0.5")
    assert trained.returns <= LENGTH + 2.0  # the friends are right, and the rebel is always wrong


def test_speaker_and_listener_get_near_the_landmark(train) -> None:
    trained = train(
        "agent=ppo",
        "env=pettingzoo/mpe2.simple_speaker_listener_v4",
        "agent.num_envs=16",
        "agent.rollout_length=50",
        "agent.num_epochs=10",
        "agent.learning_rate=1e-3",
        "agent.entropy_coefficient=0.01",
        "agent.normalize_obs=true",
        "agent.normalize_rewards=true",
        "total_timesteps=30_000",
        "evaluation.num_episodes=64",
    )
    assert set(trained.state.learner.policies) == {"speaker", "listener"}
    assert trained.returns >= -45.0  # random play gets -80
