"""The (mu, lambda) strategy, worked by hand and against evosax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evosax.algorithms import SimpleES

from rookery.algorithms.evolution.vanilla_es import VanillaES, VanillaESHyperparameters

POPULATION = np.array([[1.0, 0.0], [3.0, 2.0], [-5.0, 0.0], [7.0, 7.0]], np.float32)


def mean_after(fitness: Any, elite_fraction: float, population: Any = POPULATION) -> Any:
    hyperparameters = VanillaESHyperparameters(elite_fraction=elite_fraction)
    optimizer = VanillaES(population_size=len(population), hyperparameters=hyperparameters)
    state = optimizer.init(jnp.array([0.5, -0.5]), jax.random.key(0)).replace(asked=jnp.asarray(population))
    return optimizer.tell(state, jnp.asarray(fitness)).mean


def test_the_next_mean_is_that_of_the_elites() -> None:
    np.testing.assert_allclose(mean_after([3.0, 2.0, 1.0, 0.0], 0.5), [2.0, 1.0], rtol=1e-6)


def test_equals_at_the_border_share_the_last_place() -> None:
    # Half a place each for the second and the third of two elites.
    np.testing.assert_allclose(mean_after([3.0, 1.0, 1.0, 0.0], 0.5), [0.0, 0.5], atol=1e-6)


def test_there_is_always_one_elite() -> None:
    np.testing.assert_allclose(mean_after([0.0, 1.0, 9.0, 2.0], 0.0), [-5.0, 0.0], rtol=1e-6)


@pytest.mark.third_party
def test_a_generation_moves_the_mean_to_where_evosax_moves_it() -> None:
    algorithm = SimpleES(10, jnp.zeros(2))
    params = algorithm.default_params
    population = jax.random.normal(jax.random.key(1), (10, 2))
    fitness = jax.random.normal(jax.random.key(2), (10,))
    reference = algorithm.init(jax.random.key(0), jnp.array([0.5, -0.5]), params)
    reference, _ = algorithm.tell(jax.random.key(0), population, -fitness, reference, params)
    np.testing.assert_allclose(mean_after(fitness, 0.5, population), reference.mean, rtol=1e-5, atol=1e-6)


def test_individuals_lie_around_the_mean_at_the_noise_std() -> None:
    optimizer = VanillaES(population_size=2048, hyperparameters=VanillaESHyperparameters(noise_std=0.3))
    state = optimizer.init(jnp.array([4.0]), jax.random.key(0))
    population, _ = optimizer.ask(state)
    np.testing.assert_allclose([population.mean(), population.std()], [4.0, 0.3], rtol=0.05)
    np.testing.assert_allclose(optimizer.report(state)["step_size"], 0.3)
