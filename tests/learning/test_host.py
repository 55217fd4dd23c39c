"""The files that train on the device train on the host: the same methods, on Python environments of Gymnasium."""

import gymnasium
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("fast_programs")

PPO = ("agent=ppo", "env=gymnasium/CartPole-v1", "agent.num_envs=16", "agent.rollout_length=64", "agent.num_epochs=10")


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_ppo_solves_cartpole(train, max_staleness: int) -> None:
    trained = train(
        *PPO, "agent.learning_rate={start: 1e-3, end: 0}", "total_timesteps=60_000", f"max_staleness={max_staleness}"
    )
    assert trained.returns >= 475.0


SMALL = ("agent.network.hidden_sizes=[32,32]", "total_timesteps=1_500")


class TargetEnv(gymnasium.Env):
    """Pays for actions near 0.5, eight times an episode: random play gets -4.7, the best 0."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(1, np.float32), -float((action[0] - 0.5) ** 2), False, False, {}


def test_sac_finds_the_action_that_pays(train) -> None:
    gymnasium.register("Target-v0", TargetEnv, max_episode_steps=8)
    try:
        trained = train("agent=sac", "env=gymnasium/Target-v0", "agent.warmup_steps=200", *SMALL)
    finally:
        del gymnasium.registry["Target-v0"]
    assert trained.returns >= -0.6


def test_openes_solves_cartpole(train) -> None:
    small = ("agent.population_size=32", "agent.network.hidden_sizes=[16]", "total_timesteps=80_000")
    trained = train(
        "agent=openes", "env=gymnasium/CartPole-v1", *small, "agent.noise_std=0.2", "agent.learning_rate=0.1"
    )
    assert trained.returns >= 475.0
