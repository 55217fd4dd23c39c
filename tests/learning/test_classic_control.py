"""Every method reaches its bar on a classic task with its preset: the mean over three seeds that train side by side."""

import pytest

pytestmark = pytest.mark.usefixtures("fast_programs")


@pytest.mark.parametrize(
    ("method", "task", "bar"),
    [
        ("ppo", "cartpole", 490.0),
        ("ppo", "acrobot", -90.0),
        ("ppo", "mountain_car_continuous", 90.0),
        ("ppo", "pendulum", -200.0),
        ("a2c", "cartpole", 475.0),
        ("impala", "cartpole", 475.0),
    ],
)
def test_a_method_solves_its_task_with_its_preset(train, method: str, task: str, bar: float) -> None:
    trained = train(f"agent={method}", f"env=classic/{task}", "num_seeds=3", "evaluation.num_episodes=32")
    assert trained.returns.shape == (3,)
    assert trained.returns.mean() >= bar, trained.returns
