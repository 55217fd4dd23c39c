"""Rewards divided by the standard deviation of the discounted return, against float64."""

import jax
import jax.numpy as jnp
import numpy as np

from rookery.learning import reward_scaling

DISCOUNT = 0.9
NUM_STEPS, NUM_ENVS = 7, 3


def make_trajectories(number: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    rewards = generator.normal(1.0, 3.0, size=(number, NUM_STEPS, NUM_ENVS)).astype(np.float32)
    return rewards, (generator.random(rewards.shape) < 0.25).astype(np.float32)


def reference(rewards: np.ndarray, dones: np.ndarray) -> np.ndarray:
    """Scale all trajectories in float64, env by env and step by step."""
    running, seen, scaled = np.zeros(NUM_ENVS), [], []
    for trajectory_rewards, trajectory_dones in zip(rewards.astype(np.float64), dones, strict=True):
        for step, env in np.ndindex(NUM_STEPS, NUM_ENVS):
            running[env] = DISCOUNT * running[env] + trajectory_rewards[step, env]
            seen.append(running[env])
            if trajectory_dones[step, env]:
                running[env] = 0.0
        scaled.append(np.clip(trajectory_rewards / np.std(seen), -10.0, 10.0))
    return np.stack(scaled)


def test_rewards_are_divided_by_the_spread_of_all_returns_so_far() -> None:
    rewards, dones = make_trajectories(3)
    state, scaled = reward_scaling.init(NUM_ENVS), []
    for trajectory_rewards, trajectory_dones in zip(rewards, dones, strict=True):
        result, state = reward_scaling.scale(
            state, jnp.asarray(trajectory_rewards), jnp.asarray(trajectory_dones), DISCOUNT
        )
        scaled.append(result)
    np.testing.assert_allclose(np.stack(scaled), reference(rewards, dones), rtol=1e-5)


def test_dead_steps_weigh_nothing() -> None:
    # The dead step follows upon the end of an episode and has no reward.
    rewards = jnp.array([[1.0], [4.0], [0.0], [2.0], [-3.0]])
    dones = jnp.array([[0.0], [1.0], [0.0], [0.0], [0.0]])
    alive = jnp.array([0, 1, 3, 4])
    weights = jnp.zeros((5, 1)).at[alive].set(1.0)
    scaled, state = reward_scaling.scale(reward_scaling.init(1), rewards, dones, DISCOUNT, weights)
    expected, expected_state = reward_scaling.scale(reward_scaling.init(1), rewards[alive], dones[alive], DISCOUNT)
    np.testing.assert_allclose(scaled[alive], expected, rtol=1e-6)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), state, expected_state)


def test_devices_share_their_statistics_and_keep_their_own_returns() -> None:
    (rewards, *_), (dones, *_) = make_trajectories(1)
    rewards, dones = jnp.asarray(np.tile(rewards, (1, 2))), jnp.asarray(np.tile(dones, (1, 2)).cumsum(axis=1) % 2)
    together, state = reward_scaling.scale(reward_scaling.init(2 * NUM_ENVS), rewards, dones, DISCOUNT)

    def one_device(rewards: jax.Array, dones: jax.Array) -> tuple:
        return reward_scaling.scale(reward_scaling.init(NUM_ENVS), rewards, dones, DISCOUNT, None, "dp")

    halves = [array.reshape(NUM_STEPS, 2, NUM_ENVS) for array in (rewards, dones)]
    apart, states = jax.vmap(one_device, in_axes=1, out_axes=(1, 0), axis_name="dp")(*halves)
    np.testing.assert_allclose(apart.reshape(together.shape), together, rtol=1e-5)
    np.testing.assert_allclose(states.returns.ravel(), state.returns, rtol=1e-6)


def test_rewards_stay_finite_where_there_is_no_spread_and_are_cut_off_at_10() -> None:
    for value in (0.0, 1.0):
        rewards, dones = jnp.full((4, 2), value), jnp.ones((4, 2))
        scaled, _ = reward_scaling.scale(reward_scaling.init(2), rewards, dones, DISCOUNT)
        np.testing.assert_array_equal(scaled, rewards)
    outlier = jnp.zeros((400, 1)).at[7].set(-1e6)
    scaled, _ = reward_scaling.scale(reward_scaling.init(1), outlier, jnp.ones((400, 1)), DISCOUNT)
    assert scaled[7] == -10.0


def test_an_env_without_a_live_row_keeps_its_return() -> None:
    rewards, dones = jnp.ones((3, 2)), jnp.zeros((3, 2))
    _, before = reward_scaling.scale(reward_scaling.init(2), rewards, dones, DISCOUNT)
    weights = jnp.array([[1.0, 0.0]] * 3)
    _, after = reward_scaling.scale(before, rewards, dones.at[1, 1].set(1.0), DISCOUNT, weights)
    assert after.returns[1] == before.returns[1]
    assert after.returns[0] > before.returns[0]
