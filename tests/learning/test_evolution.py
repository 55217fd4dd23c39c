"""Evolution solves CartPole with every strategy that should, each seed by itself, and remembers what it must."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Train = Callable[..., Any]


@pytest.mark.usefixtures("fast_programs")
@pytest.mark.parametrize("method", ["openes", "ars", "cmaes", "sepcem", "ga"])
def test_every_seed_solves_cartpole_with_the_preset(train: Train, method: str) -> None:
    trained = train(f"agent={method}", "env=classic/cartpole", "num_seeds=3", "evaluation.num_episodes=100")
    assert trained.returns.shape == (3,)
    assert trained.returns.min() >= 475.0, trained.returns


SMALL = ("num_seeds=2", "total_timesteps=40_000", "agent.population_size=64", "agent.network.hidden_sizes=[16]")


@pytest.mark.parametrize("method", ["vanilla_es", "snes", "sep_cma_es", "pso", "cso"])
def test_an_action_follows_the_cue(train: Train, method: str) -> None:
    trained = train(f"agent={method}", "env=probe/cue_reward", "env.episode_length=5", "agent.num_episodes=8", *SMALL)
    np.testing.assert_array_equal(trained.returns, [1.0] * 2)


def test_a_recurrent_agent_evolves_a_memory_of_the_cue(train: Train) -> None:
    overrides = ["env=probe/memory", "env.episode_length=10", "agent.network.core=gru", "agent.network.core_size=8"]
    noise = ["agent.noise_std=0.3", "agent.learning_rate=0.1", "agent.num_episodes=16", "total_timesteps=400_000"]
    trained = train("agent=openes", *overrides, *SMALL[:1], *SMALL[2:], *noise)
    np.testing.assert_array_equal(trained.returns, [1.0] * 2)
