"""Quality diversity fills the archives of Pendulum at least as well as QDax does on the same problem."""

from collections.abc import Callable
from typing import Any

import pytest

Train = Callable[..., Any]

PENDULUM = ["env=classic/pendulum", "agent.population_size=64", "evaluation.num_episodes=1"]
ARCHIVE = ["descriptors=[mean:obs.0,mean:action]", "low=[-1,-2]", "high=[1,2]", "qd_offset=3256"]
ARCHIVE += ["iso_std=0.005", "line_std=0.05"]


@pytest.mark.usefixtures("fast_programs")
def test_map_elites_keeps_its_score_on_pendulum(train: Train) -> None:
    archive = ["agent.descriptors=[mean:obs.0,mean:action]", "agent.low=[-1,-2]", "agent.high=[1,2]"]
    spread = [
        "agent.iso_std=0.005",
        "agent.line_std=0.05",
        "agent.qd_offset=3256",
        "agent.network.hidden_sizes=[64,64]",
    ]
    trained = train("agent=map_elites", *PENDULUM, *archive, *spread, "total_timesteps=1_280_000")
    assert trained.recorded("evolution/qd_score").min() >= 1_350_000.0, trained.last_record.rows
    assert trained.recorded("evolution/coverage").min() >= 0.62, trained.last_record.rows


@pytest.mark.usefixtures("fast_programs")
def test_elites_that_climb_the_critic_swing_the_pendulum_up_in_the_first_generations(train: Train) -> None:
    archive = [f"agent.strategy.{option}" for option in (*ARCHIVE, "archive=grid", "cells=[32,32]")]
    small = ["agent.num_random=64", "agent.num_lanes=64", "agent.num_climbing_steps=50", "agent.learner.batch_size=100"]
    network = "agent.learner.network.hidden_sizes=[64,64]"
    trained = train("agent=pga_me", *PENDULUM, *archive, *small, network, "total_timesteps=320_000")
    assert trained.recorded("evolution/max_fitness")[0] >= -20.0, trained.last_record.rows
    assert trained.recorded("evolution/qd_score")[0] >= 900_000.0, trained.last_record.rows
