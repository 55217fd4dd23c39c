"""Crossover: genes are exchanged, none is lost, and spreads follow the paper's distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rookery.evolution.crossover import arithmetic, one_point, recombine, simulated_binary, uniform
from rookery.types import Key, Params

NUM_PAIRS = 64


def parents() -> tuple[Params, Params]:
    """Pairs in which all genes of all individuals are different, and none is 0."""
    leaves = {"bias": (5,), "kernel": (3, 5), "scale": ()}
    start, trees = 1, []
    for _ in range(2):
        tree = {}
        for name, shape in leaves.items():
            size = NUM_PAIRS * int(np.prod(shape))
            tree[name] = jnp.arange(start, start + size, dtype=jnp.float32).reshape(NUM_PAIRS, *shape)
            start += size
        trees.append(tree)
    return trees[0], trees[1]


def flat(population: Params) -> np.ndarray:
    """Return the individuals as rows of genes, in the order of the leaves."""
    return np.concatenate([np.asarray(leaf).reshape(NUM_PAIRS, -1) for leaf in jax.tree.leaves(population)], axis=1)


@pytest.mark.parametrize("crossover", [uniform, one_point])
def test_children_have_exactly_the_genes_of_their_parents_at_the_same_places(crossover: object) -> None:
    first, second = parents()
    children = crossover(first, second, jax.random.key(0))  # type: ignore[operator]
    expected, given = np.stack([flat(first), flat(second)]), np.stack([flat(child) for child in children])
    np.testing.assert_array_equal(np.sort(given, axis=0), np.sort(expected, axis=0))
    is_exchanged = given[0] != expected[0]
    assert 0 < is_exchanged.sum() < is_exchanged.size


@pytest.mark.parametrize("probability", [0.2, 0.5])
def test_uniform_crossover_exchanges_each_gene_with_its_probability(probability: float) -> None:
    first, second = {"a": jnp.zeros((100, 50)), "b": jnp.zeros((100, 50))}, {"a": jnp.ones((100, 50))}
    second["b"] = second["a"]
    child, _ = uniform(first, second, jax.random.key(1), probability)
    for leaf in child.values():
        assert abs(float(jnp.mean(leaf)) - probability) < 5 * np.sqrt(probability * (1 - probability) / 5000)
    agreement = float(jnp.mean(child["a"] == child["b"]))
    assert abs(agreement - (probability**2 + (1 - probability) ** 2)) < 0.05


def test_one_point_crossover_exchanges_what_lies_behind_a_point_of_the_flattened_individual() -> None:
    first, second = parents()
    child, _ = one_point(first, second, jax.random.key(2))
    is_exchanged = flat(child) != flat(first)
    points = is_exchanged.argmax(axis=1)
    np.testing.assert_array_equal(is_exchanged, np.arange(21)[None] >= points[:, None])
    assert points.min() >= 1
    assert len(set(points)) > 10


def test_one_point_crossover_of_single_genes_leaves_them() -> None:
    child, other = one_point(jnp.ones((3, 1)), jnp.zeros((3, 1)), jax.random.key(0))
    np.testing.assert_array_equal(child, np.ones((3, 1)))
    np.testing.assert_array_equal(other, np.zeros((3, 1)))


@pytest.mark.parametrize("eta", [2.0, 20.0])
def test_simulated_binary_crossover_spreads_as_in_the_paper(eta: float) -> None:
    first, second = jnp.full((100, 100), -1.0), jnp.full((100, 100), 3.0)
    child, other = simulated_binary(first, second, jax.random.key(3), eta, probability=1.0)
    np.testing.assert_allclose(child + other, 2.0, atol=1e-5)
    spread = np.abs(np.asarray(child - other, np.float64)).ravel() / 4.0

    def distribution(beta: np.ndarray) -> np.ndarray:
        """Integrate equations (9) and (10) of Deb & Agrawal (1995)."""
        return np.where(beta <= 1.0, 0.5 * beta ** (eta + 1.0), 1.0 - 0.5 / np.maximum(beta, 1.0) ** (eta + 1.0))

    assert stats.kstest(spread, distribution).pvalue > 1e-3
    assert abs(float(jnp.mean(child < other)) - 0.5) < 0.025


def test_simulated_binary_crossover_leaves_genes_that_are_not_chosen_or_equal() -> None:
    first, second = parents()
    children = simulated_binary(first, second, jax.random.key(4), probability=0.0)
    np.testing.assert_array_equal(np.stack([flat(child) for child in children]), np.stack([flat(first), flat(second)]))
    same, _ = simulated_binary(first, first, jax.random.key(4), probability=1.0)
    np.testing.assert_array_equal(flat(same), flat(first))


def test_arithmetic_crossover_places_children_at_one_share_of_the_way_for_all_genes() -> None:
    first, second = parents()
    children = arithmetic(first, second, jax.random.key(5))
    towards, back = (
        (flat(child) - flat(start)) / (flat(end) - flat(start))
        for child, start, end in zip(children, (first, second), (second, first), strict=True)
    )
    np.testing.assert_allclose(towards, np.repeat(towards[:, :1], 21, axis=1), atol=1e-5)
    np.testing.assert_allclose(towards, back, atol=1e-5)
    assert stats.kstest(towards[:, 0], "uniform").pvalue > 1e-3


def exchange(first: Params, second: Params, key: Key) -> tuple[Params, Params]:
    return second, first


def test_recombination_crosses_both_parents_of_a_pair_or_neither() -> None:
    population = {"a": jnp.arange(200.0), "b": jnp.arange(400.0).reshape(200, 2)}
    children = recombine(population, jax.random.key(6), 0.3, exchange)
    np.testing.assert_array_equal(children["b"][:, 0], 2.0 * children["a"])
    is_crossed = np.asarray(children["a"]) != np.arange(200)
    np.testing.assert_array_equal(is_crossed[:100], is_crossed[100:])
    np.testing.assert_array_equal(np.sort(children["a"]), np.arange(200))
    assert 10 < is_crossed[:100].sum() < 50


def test_the_eta_of_simulated_binary_crossover_may_be_traced() -> None:
    first, second = parents()
    key = jax.random.key(7)
    traced = jax.jit(simulated_binary)(first, second, key, jnp.float32(5.0))
    for one, other in zip(traced, simulated_binary(first, second, key, 5.0), strict=True):
        np.testing.assert_allclose(flat(one), flat(other), atol=1e-2)
