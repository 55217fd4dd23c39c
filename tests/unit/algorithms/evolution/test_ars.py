"""Augmented random search, worked by hand and against evosax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from evosax import algorithms as evosax

from rookery.algorithms.evolution.ars import ARS, ARSHyperparameters
from rookery.errors import InvalidInputError

# Directions 1 and 2, each tried both ways at a noise_std of 0.5, around 10.
POPULATION = np.array([[10.5], [9.5], [11.0], [9.0]], np.float32)


def mean_after(fitness: Any, elite_fraction: float) -> Any:
    hyperparameters = ARSHyperparameters(learning_rate=0.1, noise_std=0.5, elite_fraction=elite_fraction)
    optimizer = ARS(population_size=4, hyperparameters=hyperparameters)
    state = optimizer.init(jnp.array([10.0]), jax.random.key(0)).replace(asked=jnp.asarray(POPULATION))
    return optimizer.tell(state, jnp.asarray(fitness)).mean


def test_the_step_is_scaled_by_the_std_of_the_returns() -> None:
    expected = 10.0 + 0.1 / (2 * np.std([3.0, 1.0, 10.0, 4.0])) * ((3.0 - 1.0) * 1.0 + (10.0 - 4.0) * 2.0)
    np.testing.assert_allclose(mean_after([3.0, 1.0, 10.0, 4.0], 1.0), [expected], rtol=1e-6)


def test_the_best_directions_are_those_whose_better_return_is_highest() -> None:
    # The second direction alone: a difference of 6, a standard deviation of 3, a direction of 2.
    np.testing.assert_allclose(mean_after([3.0, 1.0, 4.0, 10.0], 0.5), [10.0 - 0.1 / 3.0 * 6.0 * 2.0], rtol=1e-6)


def test_equal_returns_move_nothing() -> None:
    np.testing.assert_array_equal(mean_after([5.0, 5.0, 5.0, 5.0], 0.5), [10.0])


def test_equally_good_directions_share_the_last_place() -> None:
    fitness = [3.0, 1.0, 3.0, 0.0]
    variance = np.mean([(3.0 - 1.75) ** 2, (1.0 - 1.75) ** 2, (3.0 - 1.75) ** 2, (0.0 - 1.75) ** 2])
    expected = 10.0 + 0.1 / np.sqrt(variance) * (0.5 * 2.0 * 1.0 + 0.5 * 3.0 * 2.0)
    np.testing.assert_allclose(mean_after(fitness, 0.5), [expected], rtol=1e-6)


@pytest.mark.third_party
def test_a_generation_moves_the_mean_to_where_evosax_moves_it() -> None:
    algorithm = evosax.ARS(8, jnp.zeros(3), optimizer=optax.sgd(0.2), std_schedule=optax.constant_schedule(0.5))
    params = algorithm.default_params
    directions = jax.random.normal(jax.random.key(1), (4, 3))
    fitness = jax.random.normal(jax.random.key(2), (4, 2))
    start = jnp.ones(3)
    theirs = jnp.concatenate([start + 0.5 * directions, start - 0.5 * directions])
    reference = algorithm.init(jax.random.key(0), start, params)
    reference, _ = algorithm.tell(jax.random.key(0), theirs, -fitness.T.ravel(), reference, params)

    hyperparameters = ARSHyperparameters(learning_rate=0.2, noise_std=0.5, elite_fraction=0.5)
    optimizer = ARS(population_size=8, hyperparameters=hyperparameters)
    pairs = jnp.stack([theirs[:4], theirs[4:]], axis=1).reshape(8, 3)
    state = optimizer.init(start, jax.random.key(0)).replace(asked=pairs)
    np.testing.assert_allclose(optimizer.tell(state, fitness.ravel()).mean, reference.mean, rtol=1e-5)


def test_every_direction_is_tried_both_ways() -> None:
    with pytest.raises(InvalidInputError, match="population_size=5 must be even"):
        ARS(population_size=5)
    optimizer = ARS(population_size=4)
    population, _ = optimizer.ask(optimizer.init(jnp.zeros(3), jax.random.key(0)))
    np.testing.assert_allclose(population[0::2], -population[1::2], rtol=1e-6)
