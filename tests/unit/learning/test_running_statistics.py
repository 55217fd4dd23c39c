"""Running statistics against float64 NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from rookery.errors import ShapeError
from rookery.learning import running_statistics
from rookery.spaces import Box, Dict, Discrete, MultiBinary, Space, Tuple
from rookery.types import Array, PyTreeDict

NUM_SAMPLES = 244 * 4096


@pytest.fixture(scope="module")
def million_samples() -> np.ndarray:
    """Columns that are hard in float32: a drift, a large offset, a large scale, a tiny scale."""
    noise = np.random.default_rng(0).normal(size=(NUM_SAMPLES, 4))
    noise[:, 0] += np.linspace(-3.0, 3.0, NUM_SAMPLES)
    return (noise * [1.0, 0.1, 1e4, 1e-3] + [0.5, 1000.0, -2e4, 0.01]).astype(np.float32)


@jax.jit
def statistics_of_batches(batches: Array) -> running_statistics.RunningStatistics:
    empty = running_statistics.init(jnp.zeros(batches.shape[2:]))
    return jax.lax.scan(lambda state, batch: (running_statistics.update(state, batch), None), empty, batches)[0]


def assert_statistics_are(state: running_statistics.RunningStatistics, samples: np.ndarray, rtol: float = 1e-5) -> None:
    samples = np.asarray(samples, np.float64)
    np.testing.assert_allclose(state.mean["obs"], samples.mean(0), rtol=rtol, atol=rtol * samples.std(0).min())
    np.testing.assert_allclose(state.std["obs"], samples.std(0), rtol=rtol)
    assert int(state.count.high) + int(state.count.low) == len(samples)


@pytest.mark.parametrize("batch_size", [1, 64, 4096, NUM_SAMPLES])
def test_a_million_samples_in_batches_of_any_size_are_exact(million_samples: np.ndarray, batch_size: int) -> None:
    state = statistics_of_batches(million_samples.reshape(-1, batch_size, 4))
    assert_statistics_are(state, million_samples)


def test_the_order_of_very_different_batches_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    samples = np.concatenate([rng.normal(1e3, 0.1, (5_000, 2)), rng.normal(-7.0, 50.0, (3_000, 2))]).astype(np.float32)
    for order in (samples, samples[::-1]):
        assert_statistics_are(statistics_of_batches(order.reshape(80, 100, 2)), samples)


def test_the_count_loses_no_increment_past_the_integers_of_float32_and_int32() -> None:
    state = running_statistics.init(jnp.zeros(1))
    half_billion = running_statistics.TwoFloat(high=jnp.asarray(2.0**33), low=jnp.asarray(0.0))
    state = state.replace(count=half_billion)
    state = jax.jit(
        lambda state: jax.lax.fori_loop(0, 1001, lambda _, s: running_statistics.update(s, jnp.ones((3, 1))), state)
    )(state)
    assert int(state.count.high) + int(state.count.low) == 2**33 + 3003


def test_an_observation_of_weight_zero_is_ignored_even_if_it_is_nan() -> None:
    rng = np.random.default_rng(2)
    samples = rng.normal(3.0, 2.0, (6, 50, 2)).astype(np.float32)
    weights = rng.random((6, 50)) < 0.5
    poisoned = np.where(weights[..., None], samples, np.nan).astype(np.float32)
    state = running_statistics.init(jnp.zeros(2))
    state = running_statistics.update(state, poisoned, jnp.asarray(weights))
    assert_statistics_are(state, samples[weights])
    ignored = running_statistics.update(state, poisoned, jnp.zeros((6, 50)))
    jax.tree.map(np.testing.assert_array_equal, ignored, state)


def test_an_empty_state_stays_empty_when_every_weight_is_zero() -> None:
    empty = running_statistics.init(jnp.zeros(2))
    state = running_statistics.update(empty, jnp.full((4, 2), jnp.nan), jnp.zeros(4))
    jax.tree.map(np.testing.assert_array_equal, state, empty)


def test_weights_count_as_repetitions() -> None:
    samples = np.random.default_rng(3).normal(size=(40, 2)).astype(np.float32)
    weights = np.arange(40) % 4
    state = running_statistics.update(running_statistics.init(jnp.zeros(2)), samples, jnp.asarray(weights))
    assert_statistics_are(state, np.repeat(samples, weights, axis=0))


def test_merge_equals_the_statistics_of_both() -> None:
    samples = np.random.default_rng(4).normal(1000.0, 0.1, (900, 3)).astype(np.float32)
    first, second = statistics_of_batches(samples[None, :100]), statistics_of_batches(samples[None, 100:])
    assert_statistics_are(running_statistics.merge(first, second), samples)
    empty = running_statistics.init(jnp.zeros(3))
    jax.tree.map(np.testing.assert_array_equal, running_statistics.merge(first, empty), first)
    jax.tree.map(np.testing.assert_array_equal, running_statistics.merge(empty, first), first)


def sharded_samples(num_shards: int) -> np.ndarray:
    samples = np.random.default_rng(5).normal(1000.0, 0.1, (num_shards, 200, 3)).astype(np.float32)
    samples[0] += 5.0
    return samples


def test_updates_over_a_mapped_axis_equal_those_of_one_device() -> None:
    samples = sharded_samples(4)
    before = statistics_of_batches(samples[:1])

    def update(batch):
        return running_statistics.update(before, batch, axis_name="devices")

    states = jax.vmap(update, axis_name="devices")(samples)
    for shard in range(4):
        state = jax.tree.map(lambda leaf, i=shard: leaf[i], states)
        assert_statistics_are(state, np.concatenate([samples[0], samples.reshape(-1, 3)]))


def test_shard_map_knows_that_the_merged_statistics_are_replicated() -> None:
    devices = jax.devices()
    samples = sharded_samples(len(devices))
    before = running_statistics.init(jnp.zeros(3))
    update = jax.shard_map(
        lambda state, batch: running_statistics.update(state, batch, axis_name="devices"),
        mesh=Mesh(np.asarray(devices), ("devices",)),
        in_specs=(PartitionSpec(), PartitionSpec("devices")),
        out_specs=PartitionSpec(),
    )
    assert_statistics_are(jax.jit(update)(before, samples), samples.reshape(-1, 3))


def test_a_device_without_valid_observations_does_not_disturb_the_others() -> None:
    samples = sharded_samples(3)
    weights = np.ones((3, 200), np.float32)
    weights[1] = 0.0

    def update(batch, weights):
        return running_statistics.update(running_statistics.init(jnp.zeros(3)), batch, weights, axis_name="devices")

    states = jax.vmap(update, axis_name="devices")(samples, jnp.asarray(weights))
    assert_statistics_are(jax.tree.map(lambda leaf: leaf[0], states), samples[[0, 2]].reshape(-1, 3))


def test_normalized_observations_have_mean_zero_and_standard_deviation_one() -> None:
    samples = np.random.default_rng(6).normal(1000.0, 0.1, (20, 500, 2)).astype(np.float32)
    state = running_statistics.update(running_statistics.init(jnp.zeros(2)), samples)
    normalized = np.asarray(running_statistics.normalize(state, samples), np.float64)
    exact = samples.astype(np.float64)
    np.testing.assert_allclose(normalized, (exact - exact.mean((0, 1))) / exact.std((0, 1)), atol=1e-4)
    np.testing.assert_allclose(running_statistics.denormalize(state, normalized.astype(np.float32)), samples, rtol=1e-6)


def test_normalized_observations_are_clipped() -> None:
    state = running_statistics.update(running_statistics.init(jnp.zeros(1)), jnp.asarray([[-1.0], [1.0]]))
    far = jnp.asarray([[-100.0], [3.0], [100.0]])
    np.testing.assert_allclose(running_statistics.normalize(state, far), [[-10.0], [3.0], [10.0]], rtol=1e-6)
    np.testing.assert_allclose(running_statistics.normalize(state, far, max_abs=2.0), [[-2.0], [2.0], [2.0]], rtol=1e-6)


def test_constant_features_are_centered_and_the_first_observations_pass_unchanged() -> None:
    empty = running_statistics.init(jnp.zeros(2))
    obs = jnp.asarray([0.5, -4.0])
    np.testing.assert_array_equal(running_statistics.normalize(empty, obs), obs)
    state = running_statistics.update(empty, jnp.broadcast_to(jnp.asarray([7.0, 1000.0]), (50, 2)))
    np.testing.assert_allclose(running_statistics.normalize(state, jnp.asarray([7.0, 1000.5])), [0.0, 0.5])


OBS_SPACE = Dict(
    position=Box(-1.0, 1.0, (3,)),
    image=Box(0, 255, (4, 4, 1), np.uint8),
    room=Discrete(5),
    parts=Tuple([Box(-1.0, 1.0, ()), MultiBinary(2)]),
    action_mask=Box(0.0, 1.0, (2,)),
)


def draw(space: Space, batch_shape: tuple = ()) -> Any:
    return space.sample(jax.random.key(0), batch_shape)


def test_floats_are_tracked_and_integers_and_the_action_mask_pass_unchanged() -> None:
    obs = draw(OBS_SPACE, (64, 8))
    state = running_statistics.update(running_statistics.init(OBS_SPACE), obs)
    assert set(state.moments) == {"obs['position']", "obs['parts'][0]"}
    normalized = running_statistics.normalize(state, obs)
    for name in ("image", "room", "action_mask"):
        np.testing.assert_array_equal(normalized[name], obs[name])
        assert normalized[name].dtype == obs[name].dtype
    np.testing.assert_array_equal(normalized.parts[1], obs.parts[1])
    for leaf in (normalized.position, normalized.parts[0]):
        np.testing.assert_allclose(leaf.mean((0, 1)), 0.0, atol=1e-5)
        np.testing.assert_allclose(leaf.std((0, 1)), 1.0, rtol=1e-4)


def test_a_space_and_an_example_of_it_make_the_same_state() -> None:
    from_space, from_example = running_statistics.init(OBS_SPACE), running_statistics.init(draw(OBS_SPACE))
    assert jax.tree.structure(from_space) == jax.tree.structure(from_example)
    jax.tree.map(np.testing.assert_array_equal, from_space, from_example)


def test_plain_dicts_and_numbers_of_another_type_fit_the_same_state() -> None:
    space = Dict(a=Box(-1.0, 1.0, (2,)))
    state = running_statistics.init(space)
    first = running_statistics.update(state, {"a": np.asarray([[1, 2], [3, 5]])})
    second = running_statistics.update(state, PyTreeDict(a=jnp.asarray([[1.0, 2.0], [3.0, 5.0]])))
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_observations_without_floats_leave_the_state_empty() -> None:
    state = running_statistics.init(Discrete(3))
    assert not state.moments
    obs = jnp.asarray([0, 2])
    np.testing.assert_array_equal(running_statistics.normalize(running_statistics.update(state, obs), obs), obs)


def test_observations_that_do_not_fit_are_errors() -> None:
    state = running_statistics.init(Dict(a=Box(-1.0, 1.0, (2,)), b=Box(-1.0, 1.0, ())))
    with pytest.raises(ShapeError, match=r"no obs\['b'\]"):
        running_statistics.update(state, {"a": jnp.zeros((3, 2))})
    with pytest.raises(ShapeError, match="end in"):
        running_statistics.normalize(state, {"a": jnp.zeros((2, 3)), "b": jnp.zeros(2)})
    with pytest.raises(ShapeError, match="leading axes"):
        running_statistics.update(state, {"a": jnp.zeros((3, 2)), "b": jnp.zeros(4)})
    with pytest.raises(ShapeError, match="weights"):
        running_statistics.update(state, {"a": jnp.zeros((3, 2)), "b": jnp.zeros(3)}, jnp.ones((3, 1)))
