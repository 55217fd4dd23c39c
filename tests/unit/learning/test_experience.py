"""Dead rows of a trajectory against arrays worked out by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from rookery.distributed import DEVICE_AXIS, device_mesh
from rookery.learning.experience import num_env_steps, row_weights, starts_new_episode, zero_dead_rows
from rookery.sample_batch import SampleBatch
from rookery.types import PyTreeDict

NUM_STEPS, NUM_ENVS = 3, 2
AUTORESET = jnp.array([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
"""Two of the six rows are dead."""


def trajectory_of(**env_extras: Any) -> SampleBatch:
    """Make a trajectory without zeros, whose dead rows hold NaN."""
    shape = NUM_STEPS, NUM_ENVS
    rewards = jnp.where(AUTORESET > 0, jnp.nan, jnp.ones(shape))
    return SampleBatch(
        obs=PyTreeDict(image=jnp.broadcast_to(rewards[..., None, None], (*shape, 2, 3)), speed=rewards),
        actions=jnp.ones((*shape, 1), jnp.int32),
        rewards=rewards,
        dones=jnp.ones(shape),
        extras=PyTreeDict(policy_extras=PyTreeDict(log_prob=rewards), env_extras=PyTreeDict(env_extras)),
    )


def on_one_device(function: Any, trajectory: SampleBatch) -> Any:
    same = PartitionSpec()
    return jax.shard_map(function, mesh=device_mesh(1), in_specs=same, out_specs=same)(trajectory)


def test_dead_rows_weigh_0_and_transitions_1() -> None:
    np.testing.assert_array_equal(row_weights(trajectory_of(autoreset=AUTORESET)), 1 - AUTORESET)


def test_trajectories_without_autoreset_flags_have_no_weights_and_stay_as_they_are() -> None:
    trajectory = trajectory_of()
    assert row_weights(trajectory) is None
    assert zero_dead_rows(trajectory) is trajectory
    assert starts_new_episode(trajectory) is None


def test_env_steps_are_counted_without_dead_rows() -> None:
    assert on_one_device(num_env_steps, trajectory_of(autoreset=AUTORESET)) == 4
    assert on_one_device(num_env_steps, trajectory_of()) == 6


def test_env_steps_are_summed_over_devices() -> None:
    two_devices = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), trajectory_of(autoreset=AUTORESET))
    counts = jax.vmap(num_env_steps, axis_name=DEVICE_AXIS)(two_devices)
    np.testing.assert_array_equal(counts, [8, 8])


def test_dead_rows_are_zeroed_even_where_they_hold_nan_and_the_others_are_kept() -> None:
    trajectory = trajectory_of(autoreset=AUTORESET, ori_obs=jnp.full((NUM_STEPS, NUM_ENVS, 2), 5.0))
    zeroed = zero_dead_rows(trajectory)
    is_live = np.asarray(AUTORESET) == 0
    extras = zeroed.extras
    for leaf in jax.tree.leaves((zeroed.obs, zeroed.actions, zeroed.rewards, extras.policy_extras)):
        np.testing.assert_array_equal(np.asarray(leaf)[is_live], 1)
        np.testing.assert_array_equal(np.asarray(leaf)[~is_live], 0)
    np.testing.assert_array_equal(extras.env_extras.ori_obs[is_live], 5.0)
    np.testing.assert_array_equal(extras.env_extras.ori_obs[~is_live], 0.0)
    np.testing.assert_array_equal(zeroed.dones, trajectory.dones)
    np.testing.assert_array_equal(extras.env_extras.autoreset, AUTORESET)


def test_an_env_starts_a_new_episode_if_its_first_row_is_dead_or_has_step_0() -> None:
    steps = jnp.array([[4, 7], [5, 0], [6, 1]], jnp.int32)
    np.testing.assert_array_equal(starts_new_episode(trajectory_of(autoreset=AUTORESET, t=steps)), [False, True])
    np.testing.assert_array_equal(starts_new_episode(trajectory_of(autoreset=0 * AUTORESET, t=steps)), [False, False])
    steps = steps.at[0, 0].set(0)
    np.testing.assert_array_equal(starts_new_episode(trajectory_of(autoreset=0 * AUTORESET, t=steps)), [True, False])


def test_an_env_without_a_live_row_does_not_start_an_episode() -> None:
    absent = jnp.array([[1.0, 0.0]] * NUM_STEPS)
    times = jnp.array([[0, 0], [0, 1], [0, 2]])
    np.testing.assert_array_equal(starts_new_episode(trajectory_of(autoreset=absent, t=times)), [False, True])
