"""Selection against the probabilities of the literature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.evolution.selection import elites, rank_proportional, take, tournament, truncation

NUM_DRAWS = 100_000


def shares_of(indexes: jax.Array, num_individuals: int) -> np.ndarray:
    return np.bincount(np.asarray(indexes), minlength=num_individuals) / len(indexes)


def assert_drawn_with(shares: np.ndarray, probabilities: np.ndarray) -> None:
    """Allow five standard errors."""
    np.testing.assert_array_less(
        np.abs(shares - probabilities), 5.0 * np.sqrt(probabilities * (1.0 - probabilities) / NUM_DRAWS) + 1e-9
    )


@pytest.mark.parametrize("tournament_size", [1, 2, 4])
def test_a_tournament_is_won_with_the_probability_that_nobody_better_enters(tournament_size: int) -> None:
    fitness = jnp.asarray([3.0, -1.0, 7.0, 0.5, 2.0])
    places = np.argsort(np.argsort(-np.asarray(fitness)))
    expected = ((5 - places) / 5) ** tournament_size - ((4 - places) / 5) ** tournament_size
    indexes = tournament(fitness, jax.random.key(0), NUM_DRAWS, tournament_size)
    assert_drawn_with(shares_of(indexes, 5), expected)


def test_equals_win_tournaments_equally_often() -> None:
    indexes = tournament(jnp.ones(6), jax.random.key(1), NUM_DRAWS, 3)
    assert_drawn_with(shares_of(indexes, 6), np.full(6, 1 / 6))


def test_the_best_come_first_and_of_equals_the_earlier() -> None:
    fitness = jnp.asarray([1.0, 5.0, 3.0, 5.0, 3.0, 3.0])
    np.testing.assert_array_equal(elites(fitness, 4), [1, 3, 2, 4])


def test_more_elites_than_individuals_are_an_error() -> None:
    with pytest.raises(InvalidInputError, match="only 3 individuals"):
        elites(jnp.zeros(3), 4)


def test_truncation_draws_uniformly_among_the_best() -> None:
    fitness = jnp.asarray([0.0, 4.0, 1.0, 3.0, 2.0])
    indexes = truncation(fitness, jax.random.key(2), NUM_DRAWS, num_parents=3)
    assert_drawn_with(shares_of(indexes, 5), np.asarray([0.0, 1 / 3, 0.0, 1 / 3, 1 / 3]))


@pytest.mark.parametrize(
    ("pressure", "expected"),
    [(1.0, [0.25, 0.25, 0.25, 0.25]), (2.0, [1 / 6, 3 / 6, 0.0, 2 / 6]), (1.5, [5 / 24, 9 / 24, 3 / 24, 7 / 24])],
)
def test_rank_proportional_selection_falls_linearly_with_the_rank(pressure: float, expected: list[float]) -> None:
    fitness = jnp.asarray([-2.0, 100.0, -3.0, 0.0])
    indexes = rank_proportional(fitness, jax.random.key(3), NUM_DRAWS, pressure)
    assert_drawn_with(shares_of(indexes, 4), np.asarray(expected))


def test_rank_proportional_selection_treats_equals_alike() -> None:
    indexes = rank_proportional(jnp.asarray([1.0, 2.0, 1.0]), jax.random.key(4), NUM_DRAWS)
    assert_drawn_with(shares_of(indexes, 3), np.asarray([1 / 6, 4 / 6, 1 / 6]))


@pytest.mark.parametrize("invalid", [np.nan, np.inf, -np.inf])
def test_an_invalid_fitness_is_selected_like_the_worst(invalid: float) -> None:
    key = jax.random.key(5)
    given = jnp.asarray([0.0, invalid, 5.0, invalid, 3.0])
    meant = jnp.asarray([0.0, -9.0, 5.0, -9.0, 3.0])
    np.testing.assert_array_equal(elites(given, 5), [2, 4, 0, 1, 3])
    np.testing.assert_array_equal(tournament(given, key, 100), tournament(meant, key, 100))
    np.testing.assert_array_equal(truncation(given, key, 100, 3), truncation(meant, key, 100, 3))
    np.testing.assert_array_equal(rank_proportional(given, key, 100), rank_proportional(meant, key, 100))


def test_take_fetches_the_same_individuals_of_every_leaf() -> None:
    population = {"a": jnp.arange(4.0), "b": jnp.arange(8.0).reshape(4, 2)}
    taken = take(population, jnp.asarray([2, 2, 0]))
    np.testing.assert_array_equal(taken["a"], [2.0, 2.0, 0.0])
    np.testing.assert_array_equal(taken["b"], [[4.0, 5.0], [4.0, 5.0], [0.0, 1.0]])
