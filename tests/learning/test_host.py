"""The files that train on the device train on the host: the same methods, on Python environments of Gymnasium."""

import pytest

pytestmark = pytest.mark.usefixtures("optimized_programs")

PPO = ("agent=ppo", "env=gymnasium/CartPole-v1", "agent.num_envs=16", "agent.rollout_length=64", "agent.num_epochs=10")


@pytest.mark.parametrize("overlap", ["false", "true"])
def test_ppo_solves_cartpole(train, overlap: str) -> None:
    trained = train(
        *PPO, "agent.learning_rate={start: 1e-3, end: 0}", "total_timesteps=60_000", f"env.runner.overlap={overlap}"
    )
    assert trained.returns >= 475.0


def test_sac_swings_the_pendulum_up_within_a_few_thousand_steps(train) -> None:
    trained = train("agent=sac", "env=gymnasium/Pendulum-v1", "agent.num_envs=1", "total_timesteps=8_000")
    assert trained.returns >= -300.0
