"""Fitness made fit for use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import rankdata

from rookery.evolution.fitness import (
    FITNESS_SHAPINGS,
    centered_ranks,
    standardized,
    weights_by_rank,
    without_invalid,
)


def test_an_invalid_fitness_becomes_worse_than_all_valid_ones() -> None:
    fitness, is_valid = without_invalid(jnp.array([2.0, jnp.nan, -3.0, jnp.inf, -jnp.inf]))
    np.testing.assert_array_equal(is_valid, [True, False, True, False, False])
    np.testing.assert_array_equal(fitness[np.array([0, 2])], [2.0, -3.0])
    assert (np.asarray(fitness)[[1, 3, 4]] < -3.0).all()
    np.testing.assert_allclose(np.asarray(fitness)[[1, 3, 4]], -3.0, rtol=1e-6)


def test_below_the_lowest_float_there_is_still_a_finite_fitness() -> None:
    fitness, _ = without_invalid(jnp.array([np.finfo(np.float32).min, jnp.nan]))
    assert np.isfinite(fitness).all()


def test_a_population_without_any_valid_fitness_is_one_of_equals() -> None:
    fitness, is_valid = without_invalid(jnp.array([jnp.nan, jnp.inf, -jnp.inf]))
    np.testing.assert_array_equal(fitness, [0.0, 0.0, 0.0])
    assert not is_valid.any()


def test_one_invalid_objective_makes_the_individual_invalid() -> None:
    fitness, is_valid = without_invalid(jnp.array([[1.0, 5.0], [jnp.nan, 9.0], [2.0, 4.0]]))
    np.testing.assert_array_equal(is_valid, [True, False, True])
    np.testing.assert_array_equal(fitness[np.array([0, 2])], [[1.0, 5.0], [2.0, 4.0]])
    assert fitness[1, 0] < 1.0
    assert fitness[1, 1] < 4.0


def test_centered_ranks_are_the_average_ranks_of_scipy() -> None:
    fitness = np.array([3.0, -1.0, 3.0, 7.0, 0.0, 3.0], np.float32)
    np.testing.assert_allclose(centered_ranks(jnp.asarray(fitness)), (rankdata(fitness) - 1.0) / 5.0 - 0.5, atol=1e-7)


def test_the_rank_of_a_single_individual_is_zero() -> None:
    np.testing.assert_array_equal(centered_ranks(jnp.array([5.0])), [0.0])


def test_standardized_fitness_has_mean_0_and_std_1_and_a_constant_one_is_zero() -> None:
    shaped = np.asarray(standardized(jnp.array([1.0, 2.0, 6.0])))
    np.testing.assert_allclose([shaped.mean(), shaped.std()], [0.0, 1.0], atol=1e-6)
    for equal in (3.0, 0.1, 499.7):  # the mean of equals may be rounded
        np.testing.assert_array_equal(standardized(jnp.full(100, equal)), np.zeros(100))


def test_the_best_gets_the_first_weight_and_equals_share_theirs() -> None:
    weights = jnp.array([0.6, 0.3, 0.1, 0.0])
    np.testing.assert_allclose(weights_by_rank(jnp.array([1.0, 4.0, 2.0, 3.0]), weights), [0.0, 0.6, 0.1, 0.3])
    np.testing.assert_allclose(
        weights_by_rank(jnp.array([1.0, 4.0, 2.0, 2.0]), weights), [0.0, 0.6, 0.2, 0.2], atol=1e-7
    )
    np.testing.assert_allclose(weights_by_rank(jnp.full(4, 2.0), weights), np.full(4, 0.25), atol=1e-7)


@pytest.mark.parametrize("name", ["centered_ranks", "standardized", "raw"])
def test_a_shaping_keeps_the_order_and_does_not_depend_on_the_places(name: str) -> None:
    fitness = jax.random.normal(jax.random.key(0), (9,))
    shaped = FITNESS_SHAPINGS[name](fitness)
    np.testing.assert_array_equal(np.argsort(shaped), np.argsort(fitness))
    order = jax.random.permutation(jax.random.key(1), 9)
    np.testing.assert_allclose(FITNESS_SHAPINGS[name](fitness[order]), shaped[order], rtol=1e-5, atol=1e-6)
