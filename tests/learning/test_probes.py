"""Every method solves the probes, each of which isolates one ability, and knows what their states are worth."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.registry import agent_names, workflow_class
from rookery.spaces import Box, Dict, Discrete, Space
from rookery.testing import probe_envs
from rookery.testing.probe_envs import ConstantRewardProbe, CueRewardProbe, ProbeState
from rookery.types import Array, PyTreeDict
from rookery.workflows.on_policy import OnPolicyWorkflow

Train = Callable[..., Any]

METHODS = {
    "ppo": ["agent=ppo", "agent.num_minibatches=1"],
    "a2c": ["agent=a2c"],
    "impala": ["agent=impala", "agent.num_minibatches=4"],
}
SMALL = [
    "num_seeds=2",
    "total_timesteps=20_000",
    "agent.num_envs=32",
    "agent.rollout_length=8",
    "agent.learning_rate={start: 1e-2, end: 1e-4}",
    "agent.normalize_obs=false",
    "agent.normalize_rewards=false",
    "agent.network.hidden_sizes=[32]",
    "env.episode_length=10",
]

with_every_method = pytest.mark.parametrize("method", METHODS)


def test_no_gradient_method_is_left_out() -> None:
    assert set(METHODS) == {name for name in agent_names() if issubclass(workflow_class(name), OnPolicyWorkflow)}


def test_the_value_of_a_constant_reward_is_that_reward(train: Train) -> None:
    trained = train(*METHODS["ppo"], *SMALL, "env=probe/constant_reward")
    np.testing.assert_allclose(trained.values_of([0.0]), [[1.0]] * 2, atol=0.05)


@with_every_method
def test_the_value_depends_on_what_is_seen(train: Train, method: str) -> None:
    trained = train(*METHODS[method], *SMALL, "env=probe/observed_reward")
    np.testing.assert_allclose(trained.values_of([-1.0], [1.0]), [[-1.0, 1.0]] * 2, atol=0.1)


@with_every_method
def test_the_value_of_a_later_reward_is_discounted(train: Train, method: str) -> None:
    trained = train(*METHODS[method], *SMALL, "env=probe/delayed_reward", "agent.discount=0.5")
    np.testing.assert_allclose(trained.values_of([0.0], [1.0]), [[0.5, 1.0]] * 2, atol=0.1)


@pytest.mark.parametrize(
    ("method", "probe", "best"),
    [("ppo", "action_reward", 1.0), ("ppo", "mask", 8.0), ("ppo", "multi_discrete", 2.0)]
    + [(method, "cue_reward", 1.0) for method in METHODS],
)
def test_the_greedy_policy_earns_all_there_is(train: Train, method: str, probe: str, best: float) -> None:
    trained = train(*METHODS[method], *SMALL, f"env=probe/{probe}")
    np.testing.assert_array_equal(trained.returns, [best] * 2)


@pytest.mark.parametrize(("method", "bounds"), [("ppo", "squash"), ("a2c", "squash"), ("impala", "clip")])
def test_a_continuous_action_follows_the_cue(train: Train, method: str, bounds: str) -> None:
    settings = [*METHODS[method], *SMALL, f"agent.network.gaussian.bounds={bounds}", "total_timesteps=40_000"]
    trained = train(*settings, "env=probe/continuous")
    assert trained.returns.min() > -0.02  # what does not depend on the cue earns -0.25 at best


class PixelProbe(CueRewardProbe):
    """The cue as an image: its left or its right half is white."""

    @property
    def obs_space(self) -> Space:
        return Box(0, 255, (6, 6, 1), np.uint8)

    def observe(self, state: ProbeState) -> Array:
        is_left = jnp.arange(6) < 3
        column_values = jnp.where(is_left == (state.cue < 0), 255, 0).astype(jnp.uint8)
        return jnp.broadcast_to(column_values[None, :, None], (6, 6, 1))


class DictProbe(CueRewardProbe):
    """The cue stands in one entry of the observation or in the other: an agent must look at both."""

    @property
    def obs_space(self) -> Space:
        return Dict(number=Box(-1.0, 1.0, (1,)), choice=Discrete(3))

    def observe(self, state: ProbeState) -> PyTreeDict:
        in_number = jax.random.bernoulli(state.key)
        choice = 1 + jnp.where(in_number, 0.0, state.cue).astype(jnp.int32)
        return PyTreeDict(number=jnp.where(in_number, state.cue, 0.0)[None], choice=choice)


@pytest.mark.usefixtures("fast_programs")
@pytest.mark.parametrize("probe", [PixelProbe, DictProbe])
def test_a_cue_in_an_image_or_in_a_dict_is_understood(
    train: Train, probe: type[CueRewardProbe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(probe_envs.PROBES, "special", probe)
    trained = train(*METHODS["ppo"], *SMALL, "env=probe/special")
    np.testing.assert_array_equal(trained.returns, [1.0] * 2)


class LongProbe(ConstantRewardProbe):
    """Reward 1 at each of `num_steps` steps that all look the same."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps


@pytest.fixture
def long_probe(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides that choose the `LongProbe`, with a discount for which a reward of 1 for ever is worth 10."""
    monkeypatch.setitem(probe_envs.PROBES, "long", LongProbe)
    return ["env=probe/long", "agent.discount=0.9"]


@pytest.mark.parametrize(
    ("method", "autoreset_mode"),
    [("ppo", "normal"), ("ppo", "fast"), ("ppo", "envpool"), ("a2c", "normal"), ("impala", "normal")],
)
def test_what_a_time_limit_cuts_off_still_counts(
    train: Train, long_probe: list[str], method: str, autoreset_mode: str
) -> None:
    trained = train(
        *METHODS[method], *SMALL, *long_probe, f"env.autoreset_mode={autoreset_mode}", "env.kwargs.num_steps=1_000_000"
    )
    np.testing.assert_allclose(trained.values_of([0.0]), [[10.0]] * 2, atol=0.3)


@pytest.mark.parametrize("method", ["ppo", "a2c"])
def test_nothing_counts_after_a_termination(train: Train, long_probe: list[str], method: str) -> None:
    whole_episodes = ["env.kwargs.num_steps=10", "agent.rollout_length=10", "agent.gae_lambda=1"]
    trained = train(*METHODS[method], *SMALL, *long_probe, *whole_episodes)
    mean_return = np.mean([(1 - 0.9**steps_left) / (1 - 0.9) for steps_left in range(1, 11)])
    np.testing.assert_allclose(trained.values_of([0.0]), [[mean_return]] * 2, atol=0.3)


@pytest.mark.parametrize(("method", "core"), [("ppo", "lstm"), ("a2c", "lstm"), ("impala", "gru")])
def test_a_recurrent_agent_remembers_the_cue(train: Train, method: str, core: str) -> None:
    trained = train(
        *METHODS[method], *SMALL, "env=probe/memory", f"agent.network.core={core}", "agent.network.core_size=32"
    )
    np.testing.assert_array_equal(trained.returns, [1.0] * 2)


def test_an_agent_without_memory_cannot_know_the_cue(train: Train) -> None:
    trained = train(*METHODS["ppo"], *SMALL, "env=probe/memory", "evaluation.num_episodes=1000")
    assert np.abs(trained.returns).max() < 0.15  # chance: 0 with a standard deviation of 0.03
