"""Population-based training: no member is left behind, whichever learning rate it started with."""

from collections.abc import Callable
from typing import Any

import numpy as np

Train = Callable[..., Any]


def test_every_member_solves_cartpole_although_learning_rates_start_anywhere(train: Train) -> None:
    """Without exchange, the worst member reaches 69 to 172 (seeds 0 to 2)."""
    trained = train(
        "agent=pbt",
        "env=classic/cartpole",
        "agent.population_size=8",
        "agent.iterations_per_round=8",
        "agent.member.num_envs=16",
        "agent.member.rollout_length=64",
        "agent.space.learning_rate={low: 1e-5, high: 3e-2, scale: log}",
        "total_timesteps=786_432",
    )
    fitness = np.asarray(trained.state.learner.fitness)
    assert fitness.max() == 500.0
    assert fitness.min() >= 300.0, fitness
