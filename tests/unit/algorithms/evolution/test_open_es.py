"""OpenES, worked by hand and against evosax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from evosax.algorithms import Open_ES

from rookery.algorithms.evolution.open_es import OpenES, OpenESHyperparameters
from rookery.errors import InvalidInputError, UnknownNameError


def after_tell(optimizer: OpenES, population: Any, fitness: Any, params: Any) -> Any:
    state = optimizer.init(jnp.asarray(params), jax.random.key(0))
    return optimizer.tell(state.replace(asked=jnp.asarray(population)), jnp.asarray(fitness))


def test_the_step_of_one_pair_is_half_the_inverse_of_the_noise() -> None:
    hyperparameters = OpenESHyperparameters(learning_rate=0.1, noise_std=0.5)
    optimizer = OpenES(population_size=2, hyperparameters=hyperparameters, optimizer="sgd")
    # Ranks +-1/2 of deviations +-1/2, over P = 2 and a variance of 1/4: (1/4 + 1/4) / 2 / (1/4) = 1.
    state = after_tell(optimizer, [[2.5], [1.5]], [10.0, 3.0], [2.0])
    np.testing.assert_allclose(state.mean, [2.0 + 0.1 * 1.0], rtol=1e-6)


def test_weight_decay_pulls_the_mean_to_zero() -> None:
    hyperparameters = OpenESHyperparameters(learning_rate=0.1, noise_std=0.5, weight_decay=0.25)
    optimizer = OpenES(population_size=2, hyperparameters=hyperparameters, optimizer="sgd")
    np.testing.assert_allclose(
        after_tell(optimizer, [[2.5], [1.5]], [1.0, 1.0], [2.0]).mean, [2.0 - 0.1 * 0.5], rtol=1e-6
    )


@pytest.mark.third_party
def test_the_first_step_of_adam_has_the_length_of_the_learning_rate() -> None:
    optimizer = OpenES(population_size=2, hyperparameters=OpenESHyperparameters(learning_rate=0.1, noise_std=0.5))
    np.testing.assert_allclose(after_tell(optimizer, [[2.5], [1.5]], [3.0, 10.0], [2.0]).mean, [1.9], rtol=1e-5)


@pytest.mark.third_party
def test_a_generation_moves_the_mean_to_where_evosax_moves_it() -> None:
    hyperparameters = OpenESHyperparameters(learning_rate=0.3, noise_std=0.2)
    optimizer = OpenES(population_size=8, hyperparameters=hyperparameters, optimizer="sgd")
    algorithm = Open_ES(8, jnp.zeros(5), optimizer=optax.sgd(0.3), std_schedule=optax.constant_schedule(0.2))
    params = algorithm.default_params
    population = jax.random.normal(jax.random.key(1), (8, 5))
    fitness = jax.random.normal(jax.random.key(2), (8,))
    reference = algorithm.init(jax.random.key(0), jnp.ones(5), params)
    reference, _ = algorithm.tell(jax.random.key(0), population, -fitness, reference, params)
    np.testing.assert_allclose(after_tell(optimizer, population, fitness, np.ones(5)).mean, reference.mean, rtol=1e-5)


def test_a_mirrored_population_is_even_and_lies_opposite_around_the_mean() -> None:
    with pytest.raises(InvalidInputError, match="population_size=3 must be even"):
        OpenES(population_size=3)
    OpenES(population_size=3, mirrored=False)
    optimizer = OpenES(population_size=4)
    population, _ = optimizer.ask(optimizer.init(jnp.full(3, 7.0), jax.random.key(0)))
    np.testing.assert_allclose(population[0::2] + population[1::2], np.full((2, 3), 14.0), rtol=1e-6)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown optimizer 'adamm'"):
        OpenES(population_size=2, optimizer="adamm")
    with pytest.raises(UnknownNameError, match="unknown fitness_shaping 'rank'"):
        OpenES(population_size=2, fitness_shaping="rank")
