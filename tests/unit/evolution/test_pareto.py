"""Fronts, crowding and hypervolume against definitions written out in NumPy."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import ShapeError
from rookery.evolution.pareto import crowding_distance, dominates, hypervolume, non_dominated_ranks, pareto_front


def ranks_by_definition(fitness: np.ndarray) -> np.ndarray:
    """Take away one front after the other."""
    ranks, rank = np.full(len(fitness), -1), 0
    while np.any(ranks < 0):
        left = np.flatnonzero(ranks < 0)
        is_dominated = [
            any(np.all(fitness[j] >= fitness[i]) and np.any(fitness[j] > fitness[i]) for j in left) for i in left
        ]
        ranks[left[~np.asarray(is_dominated)]] = rank
        rank += 1
    return ranks


def crowding_by_definition(fitness: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Follow the pseudo-code of Deb et al. (2002), front by front."""
    distances = np.zeros(len(fitness))
    for rank in np.unique(ranks):
        front = np.flatnonzero(ranks == rank)
        for values in fitness.T:
            order = front[np.argsort(values[front], kind="stable")]
            distances[order[[0, -1]]] = np.inf
            span = values[order[-1]] - values[order[0]]
            for before, middle, after in zip(order, order[1:], order[2:], strict=False):
                distances[middle] += (values[after] - values[before]) / (span or 1.0)
    return distances


def volume_by_inclusion_and_exclusion(fitness: np.ndarray, reference: np.ndarray) -> float:
    """Add the boxes, subtract what two have in common, add what three have in common, and so on."""
    total = 0.0
    for size in range(1, len(fitness) + 1):
        for chosen in combinations(fitness, size):
            total += (-1) ** (size + 1) * np.prod(np.maximum(np.min(chosen, axis=0) - reference, 0.0))
    return total


def random_fitness(seed: int, num_individuals: int, num_objectives: int) -> np.ndarray:
    """Draw whole numbers for odd seeds, so that many are equal."""
    fitness = np.random.default_rng(seed).normal(size=(num_individuals, num_objectives)) * 2.0
    return (np.round(fitness) if seed % 2 else fitness).astype(np.float32)


def test_to_dominate_is_to_be_nowhere_worse_and_somewhere_better() -> None:
    first = jnp.asarray([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [3.0, 0.0]])
    second = jnp.asarray([[1.0, 1.0], [1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    np.testing.assert_array_equal(dominates(first, second), [True, False, False, False])


def test_ranks_of_a_case_worked_by_hand() -> None:
    fitness = jnp.asarray([[0.0, 4.0], [1.0, 1.0], [2.0, 3.0], [1.0, 2.0], [4.0, 0.0], [0.0, 0.0], [2.0, 3.0]])
    np.testing.assert_array_equal(non_dominated_ranks(fitness), [0, 2, 0, 1, 0, 3, 0])
    np.testing.assert_array_equal(pareto_front(fitness), [True, False, True, False, True, False, True])


@pytest.mark.parametrize("num_objectives", [1, 2, 4])
def test_ranks_are_those_of_taking_front_after_front_away(num_objectives: int) -> None:
    batch = np.stack([random_fitness(seed, 40, num_objectives) for seed in range(6)])
    ranks = jax.jit(jax.vmap(non_dominated_ranks))(batch)
    fronts = jax.vmap(pareto_front)(jnp.asarray(batch))
    for fitness, given, is_front in zip(batch, ranks, fronts, strict=True):
        expected = ranks_by_definition(fitness)
        np.testing.assert_array_equal(given, expected)
        np.testing.assert_array_equal(is_front, expected == 0)


def test_a_chain_has_as_many_fronts_as_individuals() -> None:
    fitness = jnp.repeat(jnp.arange(50.0)[:, None], 2, axis=1)
    np.testing.assert_array_equal(non_dominated_ranks(fitness), np.arange(49, -1, -1))


@pytest.mark.parametrize("invalid", [np.nan, np.inf, -np.inf])
def test_an_invalid_objective_ranks_last_and_is_on_no_front(invalid: float) -> None:
    fitness = jnp.asarray([[invalid, 100.0], [1.0, 2.0], [2.0, 1.0], [0.0, 0.0], [5.0, invalid]])
    np.testing.assert_array_equal(non_dominated_ranks(fitness), [2, 0, 0, 1, 2])
    np.testing.assert_array_equal(pareto_front(fitness), [False, True, True, False, False])
    assert not np.any(np.isnan(crowding_distance(fitness, non_dominated_ranks(fitness))))
    assert not np.any(pareto_front(jnp.full((3, 2), invalid)))


def test_crowding_of_a_case_worked_by_hand() -> None:
    fitness = jnp.asarray([[0.0, 8.0], [1.0, 6.0], [3.0, 2.0], [4.0, 0.0], [0.0, 0.0]])
    ranks = jnp.asarray([0, 0, 0, 0, 1])
    # (3 - 0) / 4 + (8 - 2) / 8 and (4 - 1) / 4 + (6 - 0) / 8
    np.testing.assert_allclose(crowding_distance(fitness, ranks), [np.inf, 1.5, 1.5, np.inf, np.inf])


@pytest.mark.parametrize("num_objectives", [2, 3])
def test_crowding_is_that_of_the_papers_pseudo_code(num_objectives: int) -> None:
    batch = np.stack([random_fitness(seed, 30, num_objectives) for seed in range(6)])
    ranks = jax.vmap(non_dominated_ranks)(jnp.asarray(batch))
    distances = jax.jit(jax.vmap(crowding_distance))(batch, ranks)
    for fitness, rank, given in zip(batch, ranks, distances, strict=True):
        expected = crowding_by_definition(fitness, np.asarray(rank))
        assert np.isfinite(expected).any()
        np.testing.assert_allclose(given, expected, rtol=1e-4)


def test_hypervolume_of_stairs_worked_by_hand() -> None:
    fitness = np.asarray([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0], [1.0, 1.0]])
    assert hypervolume(fitness, np.zeros(2)) == 6.0
    assert hypervolume(fitness, np.asarray([1.0, 0.0])) == 3.0


@pytest.mark.parametrize("num_objectives", [1, 2, 3, 4])
def test_hypervolume_is_that_of_inclusion_and_exclusion(num_objectives: int) -> None:
    for seed in range(8):
        fitness = random_fitness(seed, 8, num_objectives).astype(np.float64)
        reference = np.full(num_objectives, -1.5)
        expected = volume_by_inclusion_and_exclusion(fitness, reference)
        assert hypervolume(fitness, reference) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_what_is_not_better_than_the_reference_or_not_finite_adds_no_volume() -> None:
    fitness = np.asarray([[2.0, 2.0], [0.0, 9.0], [-1.0, 9.0], [np.nan, 9.0], [np.inf, 1.0]])
    assert hypervolume(fitness, np.zeros(2)) == 4.0
    assert hypervolume(fitness[1:], np.zeros(2)) == 0.0


def test_hypervolume_names_shapes_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"fitness is \[3, 2\] and reference \[3\]"):
        hypervolume(np.zeros((3, 2)), np.zeros(3))
