"""Frequencies against NumPy, priorities that come and go with their windows, and weights worked by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import PartitionSpec

from rookery.distributed import DEVICE_AXIS, device_mesh
from rookery.replay_buffers import PrioritizedBuffer, importance_weights
from rookery.replay_buffers.prioritized import EPSILON, MAX_PRIORITY, MIN_PRIORITY, stratified_positions

ROW = jax.ShapeDtypeStruct((), jnp.int32)
NUM_DRAWS = 50_000
# As wholes: called as they are, each of their operations would be compiled for itself.
add = jax.jit(PrioritizedBuffer.add)
update_priorities = jax.jit(PrioritizedBuffer.update_priorities)
sample_from = jax.jit(PrioritizedBuffer.sample, static_argnums=3)


def filled(buffer: PrioritizedBuffer, num_written: int) -> Any:
    rows = np.arange(num_written * buffer.num_envs, dtype=np.int32).reshape(num_written, buffer.num_envs)
    state = buffer.init(ROW)
    for part in np.array_split(rows, 3):
        state = add(buffer, state, part)
    return state


def weights_of(buffer: PrioritizedBuffer, state: Any) -> np.ndarray:
    """Return the weight of the window at each index."""
    return np.asarray(state.priorities.levels[0])[:, : buffer.rows].ravel()


@pytest.mark.parametrize("sequence_length", [1, 4])
@pytest.mark.parametrize(("capacity", "num_envs", "num_written"), [(53, 1, 6), (53, 1, 60), (53, 3, 12), (53, 3, 301)])
def test_windows_are_drawn_in_proportion_to_their_priorities(
    capacity: int, num_envs: int, num_written: int, sequence_length: int
) -> None:
    buffer = PrioritizedBuffer(capacity=capacity, num_envs=num_envs, sequence_length=sequence_length)
    state = filled(buffer, num_written)
    valid = np.flatnonzero(weights_of(buffer, state))
    errors = np.random.default_rng(num_written).exponential(size=len(valid)) * np.where(valid % 2, 1.0, -1.0)
    state = update_priorities(buffer, state, jnp.asarray(valid), jnp.asarray(errors, jnp.float32), exponent=0.7)
    keys = jax.random.split(jax.random.key(num_written), NUM_DRAWS)
    samples = jax.jit(jax.vmap(lambda key: buffer.sample(state, key, 1)))(keys)
    indexes = np.asarray(samples.indexes)[:, 0]

    weights = (np.abs(errors) + EPSILON) ** 0.7
    probabilities = np.zeros(num_envs * buffer.rows)
    probabilities[valid] = weights / weights.sum()
    counts = np.bincount(indexes, minlength=len(probabilities))
    assert counts[valid].sum() == NUM_DRAWS
    assert scipy.stats.chisquare(counts[valid], probabilities[valid] * NUM_DRAWS).pvalue > 1e-4
    np.testing.assert_allclose(samples.probabilities[:, 0], probabilities[indexes], rtol=1e-5)
    starts = np.asarray(samples.sequence)[:, 0, 0]
    np.testing.assert_array_equal(starts % num_envs * buffer.rows + starts // num_envs % buffer.rows, indexes)


def test_in_a_large_batch_every_window_comes_as_often_as_expected_but_for_the_ends_of_its_part() -> None:
    buffer = PrioritizedBuffer(capacity=300, num_envs=7)
    state = filled(buffer, 77)
    errors = np.random.default_rng(0).exponential(size=7 * buffer.rows).astype(np.float32)
    state = update_priorities(buffer, state, jnp.arange(len(errors)), jnp.asarray(errors), exponent=1.0)
    sample = sample_from(buffer, state, jax.random.key(0), 10_000)
    counts = np.bincount(sample.indexes, minlength=len(errors))
    assert np.abs(counts - errors / errors.sum() * 10_000).max() <= 2.0


def test_one_position_is_drawn_in_each_part_of_the_range() -> None:
    for batch_size in (1, 3, 256, 1000):
        positions = np.asarray(stratified_positions(jax.random.key(0), batch_size)).astype(np.float64)
        np.testing.assert_array_equal(np.floor(positions * batch_size / 2**32), np.arange(batch_size))
        within = (positions * batch_size / 2**32) % 1.0
        assert batch_size < 256 or scipy.stats.kstest(within, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(("num_envs", "sequence_length", "capacity"), [(1, 1, 10), (2, 3, 25), (3, 4, 12), (1, 5, 40)])
def test_priorities_belong_to_the_windows_that_can_be_drawn_and_to_no_others(
    num_envs: int, sequence_length: int, capacity: int
) -> None:
    buffer = PrioritizedBuffer(capacity=capacity, num_envs=num_envs, sequence_length=sequence_length)
    state = buffer.init(ROW)
    rng = np.random.default_rng(0)
    model: dict[int, float] = {}  # the first row of a window, by its time -> weight, the same in all envs
    num_written, largest = 0, 1.0
    for length in rng.choice([1, 2, 3, 7, 50], 40):
        state = add(buffer, state, np.zeros((length, num_envs), np.int32))
        for time in range(num_written - sequence_length + 1, num_written + length - sequence_length + 1):
            model[time] = largest
        num_written += length
        model = {time: weight for time, weight in model.items() if time >= max(num_written - buffer.rows, 0)}
        errors = rng.exponential(2.0, buffer.rows)
        indexes = np.arange(buffer.rows)
        for env in range(num_envs):
            state = update_priorities(
                buffer, state, indexes + env * buffer.rows, errors.astype(np.float32), exponent=0.5
            )
        model = {time: (errors[time % buffer.rows] + EPSILON) ** 0.5 for time in model}
        largest = max([largest, *model.values()])
        expected = np.zeros(buffer.rows)
        expected[[time % buffer.rows for time in model]] = list(model.values())
        np.testing.assert_allclose(weights_of(buffer, state), np.tile(expected, num_envs), rtol=1e-5)
        np.testing.assert_allclose(state.priorities.max_priority, largest, rtol=1e-5)
        np.testing.assert_allclose(np.sum(state.priorities.levels[-1]), expected.sum() * num_envs, rtol=1e-5)


@pytest.mark.parametrize(("num_envs", "sequence_length", "capacity"), [(3, 1, 30), (2, 3, 14), (4, 2, 100)])
def test_where_rows_are_not_live_only_the_windows_that_others_complete_get_a_new_priority(
    num_envs: int, sequence_length: int, capacity: int
) -> None:
    buffer = PrioritizedBuffer(capacity=capacity, num_envs=num_envs, sequence_length=sequence_length)
    state, rng, rows = buffer.init(ROW), np.random.default_rng(0), buffer.rows
    num_written, expected = np.zeros(num_envs, int), np.zeros((num_envs, rows))
    for length in rng.choice([1, 2, 5, 2 * rows], 30):
        is_live = rng.random((length, num_envs)) < rng.choice([0.0, 0.5, 1.0], num_envs)
        state = add(buffer, state, np.zeros((length, num_envs), np.int32), is_live)
        largest = float(state.priorities.max_priority)
        for env, count in enumerate(is_live.sum(axis=0)):
            # Window by window: the new row completes one, and makes the one that it overwrites incomplete.
            for _ in range(count):
                expected[env, num_written[env] % rows] = 0.0
                num_written[env] += 1
                if num_written[env] >= sequence_length:
                    expected[env, (num_written[env] - sequence_length) % rows] = largest
        np.testing.assert_allclose(weights_of(buffer, state).reshape(num_envs, rows), expected, rtol=1e-5)
        errors = rng.exponential(2.0, num_envs * rows)
        indexes = jnp.arange(num_envs * rows)
        state = update_priorities(buffer, state, indexes, jnp.asarray(errors, jnp.float32), exponent=0.5)
        expected = np.where(expected > 0, (errors.reshape(expected.shape) + EPSILON) ** 0.5, 0.0)
        np.testing.assert_allclose(weights_of(buffer, state), expected.ravel(), rtol=1e-5)


def test_without_windows_all_importance_weights_are_0() -> None:
    weights = importance_weights(jnp.asarray([jnp.nan, 0.0]), jnp.asarray(0, jnp.int32), 0.4)
    np.testing.assert_array_equal(weights, [0.0, 0.0])


def test_new_windows_get_the_largest_priority_so_far() -> None:
    buffer = PrioritizedBuffer(capacity=10, num_envs=1)
    state = add(buffer, buffer.init(ROW), np.zeros((3, 1), np.int32))
    np.testing.assert_array_equal(weights_of(buffer, state)[:4], [1, 1, 1, 0])
    state = update_priorities(buffer, state, jnp.asarray([1]), jnp.asarray([16.0]), exponent=0.5)
    state = update_priorities(buffer, state, jnp.asarray([1]), jnp.asarray([0.25]), exponent=0.5)
    state = add(buffer, state, np.zeros((2, 1), np.int32))
    np.testing.assert_allclose(weights_of(buffer, state)[:6], [1, 0.5, 1, 4, 4, 0], rtol=1e-5)


def test_sums_are_exact_after_ten_thousand_updates() -> None:
    buffer = PrioritizedBuffer(capacity=3000, num_envs=3)
    state = filled(buffer, 1000)
    rng = np.random.default_rng(0)
    indexes = jnp.asarray(rng.integers(0, 3000, (1000, 10)), jnp.int32)
    errors = jnp.asarray(10.0 ** rng.uniform(-4, 4, (1000, 10)), jnp.float32)

    def step(state: Any, update: Any) -> tuple[Any, None]:
        return buffer.update_priorities(state, *update, exponent=jnp.asarray(0.6)), None

    state, _ = jax.jit(lambda state: jax.lax.scan(step, state, (indexes, errors)))(state)
    weights = weights_of(buffer, state).astype(np.float64).reshape(3, -1)
    np.testing.assert_allclose(np.asarray(state.priorities.levels[-1])[:, 0], weights.sum(axis=1), rtol=1e-6)


def test_a_window_that_comes_twice_in_an_update_is_counted_once() -> None:
    buffer = PrioritizedBuffer(capacity=20, num_envs=1)
    state = filled(buffer, 20)
    indexes, errors = jnp.asarray([3, 3, 4, 3, 3]), jnp.asarray([2.0, 2.0, 5.0, 2.0, 2.0])
    state = update_priorities(buffer, state, indexes, errors, exponent=1.0)
    np.testing.assert_allclose(state.priorities.levels[-1], [[18.0 + 2.0 + 5.0]], rtol=1e-5)


def test_priorities_that_are_not_finite_count_as_the_largest_so_far() -> None:
    buffer = PrioritizedBuffer(capacity=10, num_envs=1)
    state = filled(buffer, 10)
    state = update_priorities(buffer, state, jnp.asarray([0]), jnp.asarray([9.0]), exponent=0.5)
    bad = jnp.asarray([jnp.nan, jnp.inf, -jnp.inf, 4.0])
    state = update_priorities(buffer, state, jnp.asarray([1, 2, 3, 4]), bad, exponent=0.5)
    np.testing.assert_allclose(weights_of(buffer, state)[:6], [3, 3, 3, 3, 2, 1], rtol=1e-5)
    assert np.isfinite(state.priorities.levels[-1]).all()


def test_no_priority_is_too_small_to_be_drawn_or_too_large_to_be_summed() -> None:
    buffer = PrioritizedBuffer(capacity=10, num_envs=1)
    state = filled(buffer, 10)
    state = update_priorities(buffer, state, jnp.asarray([0, 1]), jnp.asarray([0.0, 1e9]), exponent=4.0)
    np.testing.assert_allclose(weights_of(buffer, state)[:2], [MIN_PRIORITY, MAX_PRIORITY], rtol=1e-5)
    state = update_priorities(buffer, state, jnp.asarray([0]), jnp.asarray([0.0]), exponent=1.0)
    np.testing.assert_allclose(weights_of(buffer, state)[0], EPSILON, rtol=1e-5)


def test_a_window_overwritten_since_it_was_drawn_keeps_out_of_the_tree() -> None:
    buffer = PrioritizedBuffer(capacity=8, num_envs=1, sequence_length=3)
    state = filled(buffer, 8)
    drawn = jnp.arange(6, dtype=jnp.int32)
    state = add(buffer, state, np.zeros((2, 1), np.int32))
    state = update_priorities(buffer, state, drawn, jnp.full(6, 4.0), exponent=1.0)
    np.testing.assert_allclose(weights_of(buffer, state), [0, 0, 4, 4, 4, 4, 1, 1], rtol=1e-5)
    sample = sample_from(buffer, state, jax.random.key(0), 1000)
    assert set(np.asarray(sample.indexes).tolist()) == {2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize("exponent", [0.4, 1.0])
def test_importance_weights_are_those_of_the_paper(exponent: float) -> None:
    probabilities = np.array([0.5, 0.25, 0.125, 0.0625])
    weights = importance_weights(jnp.asarray(probabilities, jnp.float32), jnp.asarray(8, jnp.int32), exponent)
    by_hand = (1.0 / (8.0 * probabilities)) ** exponent
    np.testing.assert_allclose(weights, by_hand / by_hand[3], rtol=1e-6)
    if exponent == 1.0:
        np.testing.assert_array_equal(weights, [0.125, 0.25, 0.5, 1.0])


def test_without_correction_all_importance_weights_are_1() -> None:
    weights = importance_weights(jnp.asarray([0.9, 1e-30, 0.1]), 1_000_000, jnp.asarray(0.0))
    np.testing.assert_array_equal(weights, [1.0, 1.0, 1.0])


def test_importance_weights_correct_the_mean_of_what_is_drawn() -> None:
    buffer = PrioritizedBuffer(capacity=50, num_envs=1)
    state = filled(buffer, 50)
    errors = np.random.default_rng(1).exponential(size=50)
    state = update_priorities(buffer, state, jnp.arange(50), jnp.asarray(errors, jnp.float32), exponent=0.6)
    sample = sample_from(buffer, state, jax.random.key(0), NUM_DRAWS)
    weights = importance_weights(sample.probabilities, buffer.num_windows(state), 1.0)
    mean = np.average(np.asarray(sample.sequence[0], np.float64), weights=np.asarray(weights, np.float64))
    np.testing.assert_allclose(mean, np.arange(50).mean(), rtol=0.02)


def test_over_devices_the_largest_priority_and_weight_are_those_of_all() -> None:
    buffer = PrioritizedBuffer(capacity=10, num_envs=1, axis_name="device")
    state = filled(buffer, 10)

    def on_a_device(error: jax.Array) -> tuple[jax.Array, jax.Array]:
        updated = buffer.update_priorities(state, jnp.asarray([0]), error[None], exponent=1.0)
        weights = importance_weights(error[None] / 8.0, 10, 1.0, axis_name="device")
        return updated.priorities.max_priority, weights[0]

    largest, weights = jax.vmap(on_a_device, axis_name="device")(jnp.asarray([2.0, 8.0, 4.0]))
    np.testing.assert_allclose(largest, [8.0, 8.0, 8.0], rtol=1e-5)
    np.testing.assert_allclose(weights, [1.0, 0.25, 0.5], rtol=1e-5)


def test_a_buffer_works_inside_the_mesh() -> None:
    buffer = PrioritizedBuffer(capacity=10, num_envs=1, axis_name=DEVICE_AXIS)

    def run(rows: jax.Array) -> jax.Array:
        state = buffer.add(buffer.init(ROW), rows)
        sample = buffer.sample(state, jax.random.key(0), 4)
        state = buffer.update_priorities(state, sample.indexes, jnp.full(4, 3.0), exponent=1.0)
        return state.priorities.max_priority

    replicated = PartitionSpec()
    mapped = jax.shard_map(run, mesh=device_mesh(1), in_specs=PartitionSpec(None, DEVICE_AXIS), out_specs=replicated)
    np.testing.assert_allclose(jax.jit(mapped)(jnp.zeros((4, 1), jnp.int32)), 3.0, rtol=1e-5)
