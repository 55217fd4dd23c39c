"""Every method learns small tasks from its preset, several seeds at once.

The budgets are smaller than those of the presets, and the bars leave room for other machines, on which the same seeds
take other ways. `python -m bench.learning` has the full studies.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("agent", "env", "total_timesteps", "bar"),
    [
        ("ppo", "classic/cartpole", 150_000, 475.0),
        ("ppo", "classic/acrobot", 150_000, -100.0),
        ("ppo", "classic/pendulum", 250_000, -250.0),
        ("ppo", "classic/mountain_car_continuous", 150_000, 85.0),
        ("a2c", "classic/cartpole", 400_000, 475.0),
        ("impala", "classic/cartpole", 400_000, 475.0),
    ],
)
def test_a_preset_learns_its_task(
    train: Callable[..., Any], agent: str, env: str, total_timesteps: int, bar: float
) -> None:
    trained = train(f"agent={agent}", f"env={env}", f"total_timesteps={total_timesteps}", "num_seeds=8")
    assert trained.returns.mean() >= bar


def test_impala_learns_from_actors_that_lag_behind(train: Callable[..., Any]) -> None:
    trained = train("agent=impala", "agent.actor_lag=4", "total_timesteps=400_000", "num_seeds=8")
    assert trained.returns.mean() >= 475.0
