"""Shuffles against the statistics of uniform permutations, packing against the bits that went in."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rookery.errors import InvalidInputError, ShapeError
from rookery.learning.minibatches import epoch_indexes, pack, shuffled_indexes
from rookery.types import PyTreeDict

NUM_KEYS = 20_000


def permutations(size: int, num_keys: int, seed: int = 0) -> np.ndarray:
    keys = jax.random.split(jax.random.key(seed), num_keys)
    return np.asarray(jax.jit(jax.vmap(lambda key: shuffled_indexes(key, size)))(keys), np.int64)


def p_value(values: np.ndarray, num_values: int) -> float:
    return scipy.stats.chisquare(np.bincount(values, minlength=num_values)).pvalue


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 1000, 1023, 1024, 1025, 8192])
def test_every_index_comes_exactly_once(size: int) -> None:
    np.testing.assert_array_equal(np.sort(permutations(size, 50)), np.tile(np.arange(size), (50, 1)))


@pytest.mark.parametrize("size", [8, 12, 64, 100])
def test_every_place_is_equally_likely_for_every_index(size: int) -> None:
    shuffles = permutations(size, NUM_KEYS)
    assert min(p_value(shuffles[:, place], size) for place in range(size)) > 1e-3 / size


@pytest.mark.parametrize("size", [8, 12, 64, 100])
def test_the_places_of_two_indexes_do_not_know_of_each_other(size: int) -> None:
    shuffles = permutations(size, NUM_KEYS, seed=1)
    for distance in {1, 2, 3, size // 4, size // 2}:
        differences = (shuffles[:, 0] - shuffles[:, distance]) % size - 1
        assert p_value(differences, size - 1) > 1e-4


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_of_a_few_samples_occur(size: int) -> None:
    orders, counts = np.unique(permutations(size, NUM_KEYS), axis=0, return_counts=True)
    assert len(orders) == {2: 2, 3: 6, 4: 24}[size]
    assert counts.min() > 0.5 * counts.mean()


def test_minibatches_mix_environments_and_times_as_a_uniform_shuffle_does() -> None:
    num_steps, num_envs, num_minibatches = 128, 64, 4
    num_samples = num_steps * num_envs
    size = num_samples // num_minibatches
    keys = jax.random.split(jax.random.key(2), 200)
    deal = jax.jit(jax.vmap(lambda key: epoch_indexes(key, num_samples, num_minibatches)))
    minibatches = np.asarray(deal(keys), np.int64).reshape(-1, size)  # sample index is time * num_envs + env
    for labels, num_labels in ((minibatches % num_envs, num_envs), (minibatches // num_envs, num_steps)):
        counts = np.stack([np.bincount(row, minlength=num_labels) for row in labels])
        assert counts.min() > 0
        per_label = num_samples // num_labels
        expected = scipy.stats.hypergeom(num_samples, per_label, size)
        np.testing.assert_allclose(counts.mean(axis=0), expected.mean(), rtol=0.05)
        np.testing.assert_allclose(counts.var(), expected.var(), rtol=0.1)


def test_the_successor_of_a_sample_is_in_its_minibatch_as_often_as_by_chance() -> None:
    num_envs, num_samples, num_minibatches = 8, 1024, 4
    shuffles = permutations(num_samples, 2_000, seed=3)
    minibatch_of = np.argsort(shuffles, axis=1) // (num_samples // num_minibatches)
    together = (minibatch_of[:, num_envs:] == minibatch_of[:, :-num_envs]).mean(axis=1)
    chance = (num_samples // num_minibatches - 1) / (num_samples - 1)
    assert abs(together.mean() - chance) < 5.0 * together.std() / np.sqrt(len(together))


def test_every_key_gives_another_epoch_and_the_same_key_the_same() -> None:
    first, second = (epoch_indexes(jax.random.key(seed), 64, 4) for seed in (0, 1))
    assert (first != second).any()
    np.testing.assert_array_equal(first, epoch_indexes(jax.random.key(0), 64, 4))


@pytest.mark.parametrize(
    ("num_samples", "num_minibatches", "advice"),
    [(8192, 5, "use 4 or 8"), (6, 4, "use 3 or 6"), (6, 7, "use 6"), (7, 3, "use 1 or 7")],
)
def test_minibatches_that_do_not_divide_are_an_error_that_names_numbers_that_do(
    num_samples: int, num_minibatches: int, advice: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"num_minibatches={num_minibatches} .*{num_samples} samples: {advice}"):
        epoch_indexes(jax.random.key(0), num_samples, num_minibatches)


def samples_of_every_kind(num_samples: int) -> PyTreeDict:
    rng = np.random.default_rng(0)
    floats = rng.integers(0, 2**32, (num_samples, 3), np.uint32).view(np.float32)  # NaN payloads, denormals, infinities
    return PyTreeDict(
        obs={"pixels": rng.integers(0, 256, (num_samples, 5, 5, 2), np.uint8), "state": floats},
        actions=rng.integers(-(2**31), 2**31, (num_samples,), np.int32),
        mask=rng.random((num_samples, 2, 2)) < 0.5,
        half=jnp.asarray(rng.normal(size=(num_samples, 2)), jnp.bfloat16),
        small=rng.integers(-128, 128, (num_samples, 1), np.int8),
        nothing=None,
        empty=np.zeros((num_samples, 0), np.float32),
    )


def bits(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return np.frombuffer(array.tobytes(), np.uint8)


def test_what_is_taken_equals_what_was_packed_bit_for_bit() -> None:
    samples = jax.tree.map(jnp.asarray, samples_of_every_kind(24))
    indexes = shuffled_indexes(jax.random.key(0), 24)[:10]
    taken = jax.jit(lambda samples, indexes: pack(samples).take(indexes))(samples, indexes)
    expected = jax.tree.map(lambda leaf: np.asarray(leaf)[np.asarray(indexes)], samples)
    assert jax.tree.structure(taken) == jax.tree.structure(samples)
    for ours, theirs in zip(jax.tree.leaves(taken), jax.tree.leaves(expected), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(bits(ours), bits(theirs))


def test_one_gather_fetches_all_fields_of_a_width() -> None:
    samples = PyTreeDict(obs=jnp.zeros((8, 4)), actions=jnp.zeros(8, jnp.int32), advantages=jnp.zeros(8))
    packed = pack(samples)
    assert [rows.shape for rows in packed.rows.values()] == [(8, 6)]


def test_fields_of_different_length_are_an_error_that_names_the_field() -> None:
    with pytest.raises(ShapeError, match=r"samples\['rewards'\] has shape \[7\]"):
        pack({"obs": jnp.zeros((8, 4)), "rewards": jnp.zeros(7)})
