"""Shuffles against the statistics of uniform permutations, and what an epoch visits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rookery.errors import InvalidInputError
from rookery.learning.minibatches import Metrics, epoch_indexes, scan_minibatches, shuffled_indexes
from rookery.learning.moments import Weighted
from rookery.metrics import Mean

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


class Numbered(Weighted):
    """A trajectory `[T, B]` whose rows have different numbers, in fields of two dtypes."""

    floats: jax.Array
    integers: jax.Array


def visits(carry: jax.Array | tuple = ()) -> jax.Array:
    """Return how often two epochs of three minibatches visit the rows of a trajectory of two steps and six envs."""
    numbers = jnp.arange(12).reshape(2, 6)
    samples = Numbered(floats=jnp.stack([numbers, -numbers], axis=-1).astype(jnp.float32), integers=numbers)

    def count(counts: jax.Array, group: Numbered, carry: jax.Array, num_chunks: int) -> tuple[jax.Array, Metrics]:
        numbers = group.integers.astype(jnp.float32)
        is_same = (group.floats[..., 0] == numbers) & (group.floats[..., 1] == -numbers)
        return counts.at[group.integers].add(is_same.astype(jnp.int32)), {"size": Mean.of(jnp.float32(is_same.size))}

    keys = jax.random.split(jax.random.key(0), 2)
    counts, metrics = scan_minibatches(count, jnp.zeros(12, jnp.int32), samples, carry, keys, num_minibatches=3)
    assert (metrics["size"].total, metrics["size"].weight) == (24.0, 6.0)
    return counts


@pytest.mark.parametrize("carry", [(), jnp.zeros((6, 3))], ids=["feed-forward", "recurrent"])
def test_an_epoch_visits_every_row_once_with_all_its_fields(carry: jax.Array | tuple) -> None:
    np.testing.assert_array_equal(visits(carry), 2)


def test_one_gather_fetches_all_fields_of_a_width() -> None:
    def take(samples: Numbered, key: jax.Array) -> Metrics:
        def size(state: None, minibatch: Numbered, carry: tuple, num_chunks: int) -> tuple[None, Metrics]:
            return state, {"sum": Mean.of(jnp.sum(minibatch.floats)), "size": Mean.of(jnp.sum(minibatch.integers))}

        return scan_minibatches(size, None, samples, (), key[None], num_minibatches=2)[1]

    samples = Numbered(floats=jnp.zeros((2, 4, 3)), integers=jnp.zeros((2, 4), jnp.int32))
    assert str(jax.make_jaxpr(take)(samples, jax.random.key(0))).count(" gather[") == 1


@pytest.mark.parametrize(("obs_shape", "num_chunks"), [((10, 10, 4), 4), ((400,), 1)])
def test_minibatches_with_images_are_cut_into_smaller_chunks(obs_shape: tuple, num_chunks: int) -> None:
    samples = Numbered(floats=jnp.zeros((32, 64, *obs_shape)), integers=jnp.zeros((32, 64), jnp.int32))
    given = []

    def step(state: None, minibatch: Numbered, carry: tuple, num_chunks: int) -> tuple[None, Metrics]:
        given.append(num_chunks)
        return state, {}

    scan_minibatches(step, None, samples, (), jax.random.key(0)[None], num_minibatches=2)
    assert set(given) == {num_chunks}
