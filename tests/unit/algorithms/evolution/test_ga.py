"""The genetic algorithm on functions with a known optimum, and one generation taken apart."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.evolution.ga import GA, GAHyperparameters, GAState
from rookery.errors import InvalidInputError
from rookery.types import Array, Key


def sphere(x: Array) -> Array:
    return -jnp.sum(x**2, axis=1)


def rastrigin(x: Array) -> Array:
    return -jnp.sum(10.0 + x**2 - 10.0 * jnp.cos(2.0 * jnp.pi * x), axis=1)


@pytest.mark.parametrize(
    ("problem", "noise_std", "worst_allowed"),
    # The optimum of Rastrigin's function is at 0, and its next best local optimum is at -1.
    [(sphere, 0.2, -0.01), (rastrigin, 0.5, -0.5)],
)
def test_the_center_comes_to_the_optimum(
    problem: Callable[[Array], Array], noise_std: float, worst_allowed: float
) -> None:
    hyperparameters = GAHyperparameters(initial_std=1.0, noise_std=noise_std, mutation_probability=0.1)
    optimizer = GA(population_size=100, hyperparameters=hyperparameters)

    def run(key: Key) -> Array:
        def generation(state: GAState, _: None) -> tuple[GAState, None]:
            population, state = optimizer.ask(state)
            return optimizer.tell(state, problem(population)), None

        state, _ = jax.lax.scan(generation, optimizer.init(jnp.full(10, 2.2), key), length=300)
        return problem(optimizer.center(state)[None])[0]

    fitness = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 4))
    assert np.all(np.asarray(fitness) > worst_allowed), fitness


def after_tell(optimizer: GA, fitness: Array) -> tuple[Array, GAState]:
    population, state = optimizer.ask(optimizer.init(jnp.zeros(3), jax.random.key(1)))
    return population, optimizer.tell(state, fitness)


def test_elites_survive_best_first_and_the_best_is_the_center() -> None:
    optimizer = GA(population_size=7, num_elites=3)
    population, state = after_tell(optimizer, jnp.asarray([0.0, 3.0, 1.0, 9.0, 2.0, -1.0, 4.0]))
    np.testing.assert_array_equal(state.population[:3], population[jnp.asarray([3, 6, 1])])
    np.testing.assert_array_equal(optimizer.center(state), population[3])
    assert state.population.shape == (7, 3)


def test_without_mutation_children_have_the_genes_of_tournament_winners() -> None:
    hyperparameters = GAHyperparameters(noise_std=0.0, crossover_probability=1.0)
    optimizer = GA(population_size=40, tournament_size=40, hyperparameters=hyperparameters)
    fitness = jnp.where(jnp.arange(40) < 30, 0.0, 1.0)
    population, state = after_tell(optimizer, fitness)
    for gene in range(3):
        assert set(np.asarray(state.population[:, gene])) <= set(np.asarray(population[30:, gene]))
    is_a_copy = np.any(np.all(np.asarray(state.population)[:, None] == np.asarray(population)[None], axis=2), axis=1)
    assert not np.all(is_a_copy)


def test_without_variation_children_are_copies() -> None:
    hyperparameters = GAHyperparameters(mutation_probability=0.0, crossover_probability=0.0)
    population, state = after_tell(GA(population_size=8, hyperparameters=hyperparameters), jnp.arange(8.0))
    assert np.all(np.any(np.all(np.asarray(state.population)[:, None] == np.asarray(population)[None], axis=2), axis=1))


@pytest.mark.parametrize("invalid", [np.nan, np.inf, -np.inf])
def test_an_invalid_fitness_has_no_offspring_and_is_counted(invalid: float) -> None:
    hyperparameters = GAHyperparameters(mutation_probability=0.0)
    optimizer = GA(population_size=8, tournament_size=30, num_elites=2, hyperparameters=hyperparameters)
    population, state = after_tell(optimizer, jnp.asarray([invalid, 1.0, 3.0, invalid, 2.0, 1.5, invalid, 0.5]))
    invalid_genes = set(np.asarray(population)[[0, 3, 6]].ravel()) - set(
        np.asarray(population)[[1, 2, 4, 5, 7]].ravel()
    )
    assert invalid_genes
    assert not invalid_genes & set(np.asarray(state.population).ravel())
    assert int(state.num_invalid) == 3
    assert float(state.best_fitness) == 3.0


def test_an_invalid_population_has_finite_children() -> None:
    _, state = after_tell(GA(population_size=8), jnp.full(8, jnp.nan))
    assert np.all(np.isfinite(state.population))
    assert int(state.num_invalid) == 8


def test_elites_that_leave_no_room_for_children_are_an_error() -> None:
    with pytest.raises(InvalidInputError, match="num_elites=8 leaves no room"):
        GA(population_size=8, num_elites=8)
