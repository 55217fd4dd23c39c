"""Every method solves the probes, each of which isolates one ability, and knows what their states are worth."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs.env import Env, EnvState
from rookery.registry import agent_names
from rookery.spaces import Box, Dict, Discrete, Space
from rookery.testing import probe_envs
from rookery.testing.probe_envs import CueRewardProbe, ProbeState
from rookery.types import Array, Key, PyTreeDict

Train = Callable[..., Any]

SMALL = [
    "agent.num_envs=32",
    "agent.rollout_length=8",
    "agent.network.hidden_sizes=[32]",
    "env.episode_length=10",
    "total_timesteps=40_000",
]
METHODS = {
    "ppo": ["agent=ppo", "agent.num_minibatches=1", "agent.learning_rate={start: 1e-2, end: 1e-4}"],
    "a2c": ["agent=a2c", "agent.learning_rate={start: 1e-2, end: 1e-4}"],
    "impala": ["agent=impala", "agent.num_minibatches=4", "agent.learning_rate={start: 1e-2, end: 1e-4}"],
}


def test_every_method_is_probed() -> None:
    assert set(METHODS) == set(agent_names())


methods = pytest.mark.parametrize("method", METHODS)


@methods
def test_the_value_of_a_constant_reward_is_that_reward(train: Train, method: str) -> None:
    trained = train(*METHODS[method], *SMALL, "env=probe/constant_reward")
    np.testing.assert_allclose(trained.values_of([0.0]), 1.0, atol=0.05)


@methods
def test_the_value_depends_on_what_is_seen(train: Train, method: str) -> None:
    trained = train(*METHODS[method], *SMALL, "env=probe/observed_reward")
    np.testing.assert_allclose(trained.values_of([-1.0], [1.0]), [[-1.0, 1.0]] * 4, atol=0.1)


@methods
def test_the_value_of_a_later_reward_is_discounted(train: Train, method: str) -> None:
    trained = train(*METHODS[method], *SMALL, "env=probe/delayed_reward", "agent.discount=0.5")
    np.testing.assert_allclose(trained.values_of([0.0], [1.0]), [[0.5, 1.0]] * 4, atol=0.1)


@methods
@pytest.mark.parametrize(
    ("probe", "best"), [("action_reward", 1.0), ("cue_reward", 1.0), ("mask", 8.0), ("multi_discrete", 2.0)]
)
def test_the_greedy_policy_earns_all_there_is(train: Train, method: str, probe: str, best: float) -> None:
    trained = train(*METHODS[method], *SMALL, f"env=probe/{probe}")
    np.testing.assert_array_equal(trained.returns, best)


@methods
@pytest.mark.parametrize("bounds", ["clip", "squash"])
def test_a_continuous_action_follows_the_cue(train: Train, method: str, bounds: str) -> None:
    trained = train(*METHODS[method], *SMALL, "env=probe/continuous", f"agent.network.gaussian.bounds={bounds}")
    assert trained.returns.min() > -0.02  # a constant action earns -0.25 at best
