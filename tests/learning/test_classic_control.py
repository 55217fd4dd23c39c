"""Every method reaches its bar on a classic task with its preset: the mean over seeds that train side by side."""

import pytest

pytestmark = pytest.mark.usefixtures("fast_programs")


@pytest.mark.parametrize(
    ("method", "task", "num_seeds", "bar"),
    [
        ("ppo", "cartpole", 3, 490.0),
        ("ppo", "acrobot", 6, -90.0),  # seeds differ by ten and more
        ("ppo", "mountain_car_continuous", 3, 90.0),
        ("ppo", "pendulum", 3, -200.0),
        ("a2c", "cartpole", 3, 475.0),
        ("impala", "cartpole", 3, 475.0),
    ],
)
def test_a_method_solves_its_task_with_its_preset(train, method: str, task: str, num_seeds: int, bar: float) -> None:
    trained = train(f"agent={method}", f"env=classic/{task}", f"num_seeds={num_seeds}", "evaluation.num_episodes=32")
    assert trained.returns.shape == (num_seeds,)
    assert trained.returns.mean() >= bar, trained.returns
