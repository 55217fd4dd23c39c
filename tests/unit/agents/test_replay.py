"""Transitions of replayed windows by hand, weights of rows, and recurrent states replayed step by step."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from rookery.agent import AgentState
from rookery.agents.critics import mean_squared_errors
from rookery.agents.replay import LossInfo, ReplayBatch, Transitions
from rookery.algorithms.td3 import TD3Agent
from rookery.distributed import DEVICE_AXIS
from rookery.errors import ShapeError
from rookery.networks.critic import ActorCriticsConfig
from rookery.networks.distributions import GaussianConfig
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box
from rookery.types import PyTreeDict

OBS, ACTIONS = Box(-9.0, 9.0, (2,)), Box(-2.0, 2.0, (1,))


def normal(*shape: int, seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@functools.cache
def make_agent(core: str | None = None, **options: Any) -> tuple[TD3Agent, AgentState]:
    config = ActorCriticsConfig(
        hidden_sizes=(8,), core=core, core_size=4, num_critics=2, gaussian=GaussianConfig(bounds="squash")
    )
    agent = TD3Agent(config=config, **options)
    return agent, agent.init(OBS, ACTIONS, jax.random.key(0))


def make_replayed(
    rewards: Any, terminations: Any, truncations: Any, autoreset: Any = None, **changes: Any
) -> ReplayBatch:
    """Make windows `[L, N]`: the observation of row t of window n is `[t, n]`; its true successor is negative.

    So a true successor differs from the observation of the next row.
    """
    rewards = jnp.asarray(rewards, jnp.float32)
    terminations, truncations = jnp.asarray(terminations, jnp.float32), jnp.asarray(truncations, jnp.float32)
    steps, windows = jnp.meshgrid(jnp.arange(rewards.shape[0]), jnp.arange(rewards.shape[1]), indexing="ij")
    obs = jnp.stack([steps, windows], axis=-1).astype(jnp.float32)
    env_extras = PyTreeDict(termination=terminations)
    if autoreset is not None:
        env_extras.autoreset = jnp.asarray(autoreset, jnp.float32)
    fields = {
        "obs": obs,
        "actions": normal(*rewards.shape, 1, seed=1),
        "rewards": rewards,
        "next_obs": -obs - 1.0,
        "dones": jnp.maximum(terminations, truncations),
    }
    extras = PyTreeDict(policy_extras=changes.pop("policy_extras", PyTreeDict()), env_extras=env_extras)
    importance = changes.pop("importance", None)
    return ReplayBatch(windows=SampleBatch(**fields | changes, extras=extras), importance=importance)


def transitions_of(agent: TD3Agent, state: AgentState, replayed: ReplayBatch) -> Transitions:
    return agent.transitions(state, replayed, jnp.float32(0.5))


def test_one_step_transitions_are_the_rows_and_only_termination_has_no_successor() -> None:
    agent, state = make_agent()
    # Running, terminated, truncated, both at once.
    replayed = make_replayed([[1.0, 2.0, 3.0, 4.0]], [[0, 1, 0, 1]], [[0, 0, 1, 1]])
    transitions = transitions_of(agent, state, replayed)
    np.testing.assert_array_equal(transitions.returns, [[1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_array_equal(transitions.discounts, [[0.5, 0.0, 0.5, 0.0]])
    np.testing.assert_array_equal(transitions.obs, replayed.windows.obs)
    np.testing.assert_array_equal(transitions.actions, replayed.windows.actions)
    np.testing.assert_array_equal(transitions.next_obs, replayed.windows.next_obs)
    assert transitions.weights is None
    next_values = jnp.array([[8.0, jnp.nan, 8.0, jnp.inf]])
    np.testing.assert_array_equal(transitions.with_discounted(next_values), [[5.0, 2.0, 7.0, 4.0]])


def test_transitions_over_two_steps_after_a_burn_in_are_worked_by_hand() -> None:
    agent, state = make_agent(n_step=2, burn_in=1)
    rewards = [[64.0, 64.0], [1.0, 1.0], [2.0, 2.0], [4.0, 4.0], [8.0, 8.0]]
    # The first window is truncated at row 2, the second terminates at row 3; what came before does not matter.
    terminations, truncations = np.zeros((5, 2)), np.zeros((5, 2))
    truncations[2, 0] = terminations[3, 1] = terminations[0, 0] = 1
    transitions = transitions_of(agent, state, make_replayed(rewards, terminations, truncations))
    np.testing.assert_array_equal(transitions.returns, [[2.0, 2.0], [2.0, 4.0], [8.0, 4.0]])
    np.testing.assert_array_equal(transitions.discounts, [[0.25, 0.25], [0.5, 0.0], [0.25, 0.0]])
    np.testing.assert_array_equal(transitions.obs[..., 0], [[1, 1], [2, 2], [3, 3]])
    # The successors of rows 2 and 2, 2 and 3, 4 and 3.
    np.testing.assert_array_equal(transitions.next_obs[..., 0], [[-3, -3], [-3, -4], [-5, -4]])
    np.testing.assert_array_equal(transitions.next_obs[..., 1], [[-1, -2], [-1, -2], [-1, -2]])
    np.testing.assert_array_equal(transitions.last, [[1, 1], [1, 2], [3, 2]])


def test_observations_and_successors_are_normalized_by_the_same_statistics() -> None:
    agent, state = make_agent(normalize_obs=True)
    seen = 3.0 + 2.0 * normal(500, 2, seed=3)
    state = agent.update_obs_statistics(state, seen)
    replayed = make_replayed([[0.0, 0.0]], [[0, 1]], [[0, 0]])
    transitions = transitions_of(agent, state, replayed)
    mean, std = np.mean(np.asarray(seen, np.float64), axis=0), np.std(np.asarray(seen, np.float64), axis=0)
    rows = jax.tree.map(np.asarray, replayed.windows)
    np.testing.assert_allclose(transitions.obs, (rows.obs - mean) / std, atol=1e-4)
    np.testing.assert_allclose(transitions.next_obs, (rows.next_obs - mean) / std, atol=1e-4)


def on_one_device(function: Any) -> Any:
    """Run a function inside a device axis of length one."""
    return jax.vmap(function, in_axes=None, out_axes=None, axis_size=1, axis_name=DEVICE_AXIS)


def loss_and_report(values: Any, targets: Any, replayed: ReplayBatch, **options: Any) -> tuple[Any, LossInfo]:
    agent, state = make_agent(**options)

    def loss(values: Any, targets: Any) -> tuple[Any, LossInfo]:
        return mean_squared_errors(values, targets, transitions_of(agent, state, replayed))

    return on_one_device(loss)(jnp.asarray(values), jnp.asarray(targets))


def test_the_loss_is_half_the_squared_error_summed_over_critics_and_averaged_over_rows() -> None:
    replayed = make_replayed([[0.0, 0.0]], [[0, 0]], [[0, 0]])
    values, targets = [[[1.0, 2.0]], [[5.0, 4.0]]], [[2.0, 2.0]]
    loss, report = loss_and_report(values, targets, replayed)
    assert loss == (0.5 * (1 + 9) + 0.5 * (0 + 4)) / 2
    np.testing.assert_array_equal(report.errors, [[2.0, 1.0]])
    assert report.metrics["train/critic_loss"] == loss
    assert report.metrics["train/value"] == 1.5


def test_importance_weights_enter_the_loss_and_not_the_errors() -> None:
    replayed = make_replayed([[0.0, 0.0]], [[0, 0]], [[0, 0]], importance=jnp.array([1.0, 0.25]))
    loss, report = loss_and_report([[[1.0, 4.0]]], [[2.0, 2.0]], replayed)
    assert loss == (0.5 * 1 + 0.25 * 0.5 * 4) / 2
    np.testing.assert_array_equal(report.errors, [[1.0, 2.0]])


def test_dead_rows_weigh_nothing_even_if_they_are_nan() -> None:
    replayed = make_replayed([[0.0, 0.0, 0.0]], [[0, 0, 0]], [[0, 0, 0]], autoreset=[[0, 1, 0]])
    loss, report = loss_and_report([[[1.0, jnp.nan, 4.0]]], [[2.0, jnp.nan, 2.0]], replayed)
    assert loss == (0.5 + 2.0) / 2
    assert report.metrics["train/value"] == 2.5


def test_errors_of_dead_rows_are_zero_so_their_priority_does_not_grow() -> None:
    replayed = make_replayed([[0.0, 0.0, 0.0]], [[0, 0, 0]], [[0, 0, 0]], autoreset=[[0, 1, 0]])
    _, report = loss_and_report([[[1.0, 9.0, 4.0]]], [[2.0, 2.0, 2.0]], replayed)
    np.testing.assert_array_equal(report.errors, [[1.0, 0.0, 2.0]])


def test_targets_in_a_column_are_an_error_when_traced() -> None:
    replayed = make_replayed([[0.0, 0.0]], [[0, 0]], [[0, 0]])
    with jax.numpy_rank_promotion("allow"), pytest.raises(ShapeError, match=r"targets has shape \[1, 2, 1\]"):
        loss_and_report([[[1.0, 2.0]]], [[[2.0], [2.0]]], replayed)


@pytest.mark.parametrize("name", ["rewards", "dones"])
def test_rows_in_a_column_are_an_error_when_traced(name: str) -> None:
    agent, state = make_agent()
    replayed = make_replayed([[0.0, 0.0]], [[0, 0]], [[0, 0]])
    replayed = replayed.replace(windows=replayed.windows.replace(**{name: jnp.zeros((1, 2, 1))}))
    with jax.numpy_rank_promotion("allow"), pytest.raises((ShapeError, jaxtyping.TypeCheckError), match="rewards"):
        transitions_of(agent, state, replayed)


def test_importance_in_a_column_is_an_error_when_traced() -> None:
    replayed = make_replayed([[0.0, 0.0]], [[0, 0]], [[0, 0]], importance=jnp.ones((2, 1)))
    with jax.numpy_rank_promotion("allow"), pytest.raises(ShapeError, match="importance"):
        loss_and_report([[[1.0, 2.0]]], [[2.0, 2.0]], replayed)


def windows_across_episodes(length: int, num_windows: int) -> ReplayBatch:
    """Make windows with borders in many places; past a border the true successor is not the next row's observation."""
    generator = np.random.default_rng(5)
    kinds = generator.choice(3, size=(length, num_windows), p=[0.6, 0.2, 0.2])
    obs = normal(length + 1, num_windows, 2, seed=6)
    dones = kinds > 0
    next_obs = jnp.where(jnp.asarray(dones)[..., None], normal(length, num_windows, 2, seed=7), obs[1:])
    starts = np.concatenate([generator.integers(2, size=(1, num_windows)), dones[:-1]])
    return make_replayed(
        normal(length, num_windows, seed=8),
        kinds == 1,
        kinds == 2,
        obs=obs[:-1],
        next_obs=next_obs,
        policy_extras=PyTreeDict(episode_start=jnp.asarray(starts, jnp.float32)),
    )


@pytest.mark.parametrize(("core", "n_step", "burn_in"), [("gru", 1, 0), ("lstm", 1, 3), ("gru", 3, 2)])
def test_features_equal_a_replay_of_the_window_step_by_step(core: str, n_step: int, burn_in: int) -> None:
    agent, state = make_agent(core, n_step=n_step, burn_in=burn_in)
    num_rows, num_windows = 4, 6
    replayed = windows_across_episodes(burn_in + num_rows + n_step - 1, num_windows)
    rows = replayed.windows
    transitions = transitions_of(agent, state, replayed)
    network = state.extra_state.network
    first_critic = jax.tree.map(lambda leaf: leaf[0], state.params.critics)
    for trunk, params in (
        (network.policy.trunk, state.params.policy.trunk),
        (network.critic.trunk, first_critic.trunk),
    ):
        features, next_features = jax.jit(lambda p, t, trunk=trunk: agent.features(trunk, p, t))(params, transitions)
        step = jax.jit(trunk)
        for window in range(num_windows):
            carry, seen, carries = trunk.initial_carry(), [], []
            for row in range(rows.rewards.shape[0]):
                start = rows.extras.policy_extras.episode_start[row, window]
                feature, carry = step(params, rows.obs[row, window], carry, start)
                seen.append(feature)
                carries.append(carry)
            for row in range(num_rows):
                last = burn_in + row
                while last < burn_in + row + n_step - 1 and not rows.dones[last, window]:
                    last += 1
                after, _ = step(params, rows.next_obs[last, window], carries[last], jnp.zeros(()))
                np.testing.assert_allclose(features[row, window], seen[burn_in + row], atol=1e-5)
                np.testing.assert_allclose(next_features[row, window], after, atol=1e-5)


def test_a_burn_in_builds_up_the_recurrent_state_and_has_no_gradient() -> None:
    agent, state = make_agent("gru", burn_in=3)
    transitions = transitions_of(agent, state, windows_across_episodes(length=5, num_windows=6))
    trunk, params = state.extra_state.network.policy.trunk, state.params.policy.trunk
    starts, obs = transitions.episode_start, transitions.window_obs
    assert starts is not None
    _, carry = trunk.unroll(params, obs[:3], trunk.initial_carry((6,)), starts[:3])

    def from_there(params: Any) -> Any:
        return jnp.sum(trunk.unroll(params, obs[3:], carry, starts[3:])[0] ** 2)

    def from_the_window(params: Any) -> Any:
        return jnp.sum(agent.features(trunk, params, transitions)[0] ** 2)

    def without_burn_in(params: Any) -> Any:
        return jnp.sum(trunk.unroll(params, obs, trunk.initial_carry((6,)), starts)[0][3:] ** 2)

    expected, gradients = jax.jit(jax.grad(from_there))(params), jax.jit(jax.grad(from_the_window))(params)
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, atol=1e-5), gradients, expected)
    through_time = jax.jit(jax.grad(without_burn_in))(params)
    distances = jax.tree.map(lambda left, right: np.max(np.abs(np.subtract(left, right))), gradients, through_time)
    assert max(jax.tree.leaves(distances)) > 1e-3


def test_without_a_core_features_are_those_of_single_rows() -> None:
    agent, state = make_agent(n_step=2)
    transitions = transitions_of(agent, state, windows_across_episodes(length=4, num_windows=3))
    trunk, params = state.extra_state.network.policy.trunk, state.params.policy.trunk
    features, next_features = agent.features(trunk, params, transitions)
    np.testing.assert_array_equal(features, trunk(params, transitions.obs)[0])
    np.testing.assert_array_equal(next_features, trunk(params, transitions.next_obs)[0])
