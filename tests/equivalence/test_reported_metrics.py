"""Numbers that host environments report of their episodes have the same names wherever the episodes are played."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from pettingzoo import ParallelEnv

import rookery

TINY: dict[str, Any] = {
    "total_timesteps": 64,
    "network": {"hidden_sizes": [4]},
    "recorders": [],
    "config": {"evaluation.num_episodes": 8, "evaluation.interval": 64, "record_interval": 64},
}
PPO = {"num_envs": 2, "rollout_length": 16}
BOX, CHOICE = gymnasium.spaces.Box(0.0, 1.0, (1,)), gymnasium.spaces.Discrete(2)


class Goal(gymnasium.Env):
    """Every second episode reaches its goal, and only these report how far they went."""

    observation_space, action_space = BOX, CHOICE

    def __init__(self, render_mode: str | None = None) -> None:
        self.episode = self.t = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.episode, self.t = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        # Only the last info counts: before it, many environments say that the goal is not reached yet.
        return np.zeros(1, np.float32), 0.0, self.t == 4, False, self.info() if self.t == 4 else {"is_success": False}

    def info(self) -> dict:
        return {"is_success": True, "episode_metrics": {"distance": 7}} if self.episode % 2 else {"is_success": False}


class Silent(Goal):
    def info(self) -> dict:
        return {}


class Pair(ParallelEnv):
    """One of two agents succeeds in every episode."""

    metadata: ClassVar = {"name": "pair"}
    possible_agents: ClassVar = ["left", "right"]

    def observation_space(self, agent: str) -> Any:
        return BOX

    def action_space(self, agent: str) -> Any:
        return CHOICE

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.agents, self.t = list(self.possible_agents), 0
        return self._all(np.zeros(1, np.float32)), self._all({})

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        self.t += 1
        infos = {agent: {"is_success": np.bool_(agent == "left")} for agent in self.agents}
        result = self._all(np.zeros(1, np.float32)), self._all(0.0), self._all(self.t == 4), self._all(False), infos
        self.agents = [] if self.t == 4 else self.agents
        return result

    def _all(self, value: Any) -> dict:
        return dict.fromkeys(self.agents, value)


def last_record(agent: str, env: Any, **settings: Any) -> dict[str, float]:
    settings = {**TINY, **settings, "config": {**TINY["config"], **settings.get("config", {})}}
    run = rookery.train(agent, env, **settings)
    return {name: float(values[-1]) for name, values in run.metrics.items()}


@pytest.mark.parametrize(
    ("agent", "settings"),
    [
        ("ppo", PPO),
        ("ppo", PPO | {"config": {"env.runner.processes": True}}),
        ("openes", {"population_size": 4}),
    ],
    ids=["in process", "in processes", "a population"],
)
def test_successes_and_own_metrics_are_averaged_in_training_and_evaluation(agent: str, settings: dict) -> None:
    row = last_record(agent, Goal, **settings)
    for where in ("rollout", "eval"):
        assert row[f"{where}/success_rate"] == 0.5
        assert row[f"{where}/distance"] == 7.0


def test_the_successes_of_a_gymnasium_vector_env_are_averaged() -> None:
    row = last_record("ppo", lambda: gymnasium.vector.SyncVectorEnv([Goal] * 2), **PPO)
    assert row["rollout/success_rate"] == row["eval/success_rate"] == 0.5


def test_the_successes_of_several_agents_are_averaged() -> None:
    row = last_record("ppo", Pair, **PPO)
    assert row["rollout/success_rate"] == row["eval/success_rate"] == 0.5


def test_nothing_is_recorded_of_what_an_environment_does_not_report() -> None:
    assert not [name for name in last_record("ppo", Silent, **PPO) if "success" in name or "distance" in name]
