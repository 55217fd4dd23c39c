"""Hybrids learn on Python environments: the learner from the episodes of the population, and it from the learner."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("fast_programs")

Train = Callable[..., Any]


def test_erl_swings_up_a_pendulum_of_gymnasium(train: Train) -> None:
    trained = train(
        "agent=erl",
        "env=gymnasium/Pendulum-v1",
        "total_timesteps=11_000",
        "agent.learner.network.hidden_sizes=[64,64]",
        "evaluation.num_episodes=10",
    )
    assert trained.recorded("eval/rl_mean_reward").min() >= -300.0, trained.returns


class TargetEnv(gymnasium.Env):
    """Pays for actions near the number it shows, ten times an episode: random play gets about -5, the best 0."""

    observation_space = gymnasium.spaces.Box(-0.8, 0.8, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self.next(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = -float((action[0] - self.number) ** 2)
        return self.next(), reward, False, False, {}

    def next(self) -> np.ndarray:
        self.number = self.np_random.uniform(-0.8, 0.8)
        return np.array([self.number], np.float32)


def test_individuals_that_climb_find_the_action_that_pays(train: Train) -> None:
    gymnasium.register("Target-v0", TargetEnv, max_episode_steps=10)
    try:
        trained = train(
            "agent=cem_rl",
            "env=gymnasium/Target-v0",
            "total_timesteps=3_000",
            "agent.warmup_steps=500",
            "agent.learner.network.hidden_sizes=[32]",
            "agent.learner.actor_learning_rate=3e-3",
            "agent.learner.critic_learning_rate=3e-3",
            "agent.evolution=openes",
        )
    finally:
        del gymnasium.registry["Target-v0"]
    assert trained.recorded("eval/rl_mean_reward").min() >= -0.5
