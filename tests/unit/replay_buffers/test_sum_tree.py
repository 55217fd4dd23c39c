"""Sums against float64, and draws against the positions that NumPy finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.replay_buffers import sum_tree


def positions_of(fractions: np.ndarray) -> jax.Array:
    return jnp.asarray((fractions * 2**32).astype(np.uint32))


def assert_sums_fit(levels: sum_tree.Levels, weights: np.ndarray) -> None:
    """Compare every level with float64 sums of the weights."""
    expected = np.zeros(levels[0].shape)
    expected[:, : weights.shape[1]] = weights
    for level in levels:
        np.testing.assert_allclose(level[:, : expected.shape[1]], expected, rtol=1e-6)
        assert not np.asarray(level[:, expected.shape[1] :]).any()
        padded = np.pad(expected, ((0, 0), (0, -expected.shape[1] % sum_tree.FAN_OUT)))
        expected = padded.reshape(len(weights), -1, sum_tree.FAN_OUT).sum(axis=2)


@pytest.mark.parametrize("num_leaves", [1, 2, 7, 8, 9, 64, 65, 1000])
@pytest.mark.parametrize("num_trees", [1, 3])
def test_every_level_sums_the_one_below(num_trees: int, num_leaves: int) -> None:
    weights = np.random.default_rng(0).random((num_trees, num_leaves)).astype(np.float32)
    levels = sum_tree.build(jnp.asarray(weights))
    assert [level.shape for level in levels] == [(num_trees, size) for size in sum_tree.level_sizes(num_leaves)]
    assert_sums_fit(levels, weights)


def test_sums_are_exact_after_many_updates() -> None:
    num_trees, num_leaves, batch, num_updates = 2, 700, 50, 200
    rng = np.random.default_rng(1)
    trees, leaves = rng.integers(0, num_trees, (num_updates, batch)), rng.integers(0, num_leaves, (num_updates, batch))
    weights = (10.0 ** rng.uniform(-6, 6, (num_updates, batch))).astype(np.float32)
    # One weight for a leaf that comes twice in a batch.
    weights = np.where(trees * num_leaves + leaves < 300, weights[:, :1], weights)
    model = np.zeros((num_trees, num_leaves))

    def step(levels: sum_tree.Levels, change: tuple) -> tuple[sum_tree.Levels, None]:
        trees, leaves, weights = change
        return sum_tree.update(levels, trees, leaves, weights), None

    levels = sum_tree.build(jnp.zeros((num_trees, num_leaves)))
    changes = (jnp.asarray(trees, jnp.int32), jnp.asarray(leaves, jnp.int32), jnp.asarray(weights))
    levels, _ = jax.jit(lambda levels: jax.lax.scan(step, levels, changes))(levels)
    for at in zip(trees, leaves, weights, strict=True):
        model[at[0], at[1]] = at[2]
    changed_last = np.asarray(levels[0])[:, :num_leaves]
    np.testing.assert_allclose(changed_last[0, :300], model[0, :300], rtol=1e-6)
    assert_sums_fit(levels, changed_last.astype(np.float64))


def test_several_leaves_of_every_tree_are_set_at_once() -> None:
    weights = np.zeros((3, 40), np.float32)
    levels = sum_tree.build(jnp.asarray(weights))
    trees, leaves = np.arange(3)[:, None], np.array([[5, 39], [6, 7], [0, 31]])
    new = np.arange(6, dtype=np.float32).reshape(3, 2)
    weights[trees, leaves] = new
    assert_sums_fit(sum_tree.update(levels, jnp.asarray(trees), jnp.asarray(leaves), jnp.asarray(new)), weights)


@pytest.mark.parametrize(("num_trees", "num_leaves"), [(1, 1), (1, 9), (1, 1000), (5, 100), (100, 3), (70, 1)])
def test_a_draw_finds_the_leaf_in_which_the_position_lies(num_trees: int, num_leaves: int) -> None:
    rng = np.random.default_rng(2)
    weights = (rng.integers(0, 4, (num_trees, num_leaves)) + np.eye(num_trees, num_leaves)).astype(np.float32)
    fractions = rng.random(2000)
    trees, leaves, shares = sum_tree.sample(sum_tree.build(jnp.asarray(weights)), positions_of(fractions))
    ends = np.cumsum(weights.ravel().astype(np.float64))
    expected = np.searchsorted(ends, fractions * ends[-1], side="right")
    found = np.asarray(trees) * num_leaves + np.asarray(leaves)
    near_border = np.abs(ends[None, :] - fractions[:, None] * ends[-1]).min(axis=1) < 1e-5 * ends[-1]
    np.testing.assert_array_equal(found[~near_border], expected[~near_border])
    np.testing.assert_allclose(shares, weights.ravel()[found] / ends[-1], rtol=1e-5)


def test_a_leaf_of_weight_0_is_never_found() -> None:
    rng = np.random.default_rng(3)
    extremes = np.array([0, 1, 2**8, 2**31, 2**32 - 2, 2**32 - 1])
    positions = jnp.asarray(np.append(extremes, rng.integers(0, 2**32, 3000)).astype(np.uint32))
    draw = jax.jit(sum_tree.sample)
    for _ in range(50):
        weights = 10.0 ** rng.uniform(-6, 6, (3, 100)) * (rng.random((3, 100)) < rng.random())
        weights[rng.integers(3), rng.integers(100)] = 0.1
        trees, leaves, shares = draw(sum_tree.build(jnp.asarray(weights.astype(np.float32))), positions)
        assert weights[np.asarray(trees), np.asarray(leaves)].min() > 0.0
        assert np.asarray(shares).min() > 0.0


def test_a_forest_without_weights_gives_the_first_leaf() -> None:
    trees, leaves, _ = sum_tree.sample(sum_tree.build(jnp.zeros((3, 20))), positions_of(np.array([0.0, 0.5, 0.999])))
    assert not np.asarray(trees).any()
    assert not np.asarray(leaves).any()


def test_small_weights_behind_a_large_one_are_each_found_as_often_as_they_weigh() -> None:
    # Near 2^24 a float32 counts in ones: by 24 bits alone only one of four leaves of weight 1/4 would ever be found.
    num_small = 7 + 8 * 399
    weights = np.full((1, 1 + num_small), 0.25, np.float32)
    weights[0, 0] = 2.0**24 - 800.0
    num_positions_each = 2**32 // 2**26
    positions = np.arange(2**32 - num_small * num_positions_each, 2**32, 4).astype(np.uint32)
    _, leaves, _ = sum_tree.sample(sum_tree.build(jnp.asarray(weights)), jnp.asarray(positions))
    counts = np.bincount(np.asarray(leaves), minlength=1 + num_small)
    # Those that share a parent with the large one have the error of one rounding.
    np.testing.assert_allclose(counts[8:], num_positions_each // 4, atol=1)
