"""The competitive swarm: losers learn, winners stay."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.evolution.cso import CSO, CSOHyperparameters
from rookery.errors import InvalidInputError


def after_tell(population: Any, fitness: Any, velocity: Any = None, social_factor: float = 0.0) -> Any:
    population = jnp.asarray(population)
    optimizer = CSO(population_size=len(population), hyperparameters=CSOHyperparameters(social_factor=social_factor))
    state = optimizer.init(jnp.zeros(population.shape[1]), jax.random.key(0)).replace(population=population)
    state = state.replace(velocity=jnp.zeros_like(population) if velocity is None else jnp.asarray(velocity))
    _, state = optimizer.ask(state)
    return optimizer.tell(state, jnp.asarray(fitness))


def test_the_loser_of_two_moves_towards_the_winner_who_stays() -> None:
    state = after_tell([[0.0, 10.0], [4.0, -6.0]], [1.0, 0.0])
    winner, loser = np.asarray(state.population)
    np.testing.assert_array_equal(winner, [0.0, 10.0])
    assert 0.0 < loser[0] < 4.0
    assert -6.0 < loser[1] < 10.0
    shares = (loser - [4.0, -6.0]) / ([-4.0, 16.0])
    assert shares[0] != shares[1], "every coordinate has a random number of its own"
    np.testing.assert_array_equal(state.velocity[0], [0.0, 0.0])
    np.testing.assert_allclose(state.velocity[1], loser - [4.0, -6.0], rtol=1e-6)


def test_the_loser_keeps_a_part_of_its_velocity() -> None:
    state = after_tell([[1.0], [1.0]], [1.0, 0.0], velocity=[[5.0], [8.0]])
    assert 0.0 < float(state.velocity[1, 0]) < 8.0
    np.testing.assert_allclose(state.population[1], 1.0 + state.velocity[1], rtol=1e-6)
    np.testing.assert_array_equal(state.velocity[0], [5.0])


def test_losers_are_drawn_to_the_mean_of_the_swarm_by_the_social_factor() -> None:
    # Two particles at 0 and two at 20, whose mean is 10: the same meet whatever the factor is.
    def moved(social_factor: float) -> np.ndarray:
        state = after_tell([[0.0], [0.0], [20.0], [20.0]], [3.0, 3.0, 3.0, 3.0], social_factor=social_factor)
        return np.asarray(state.population)[:, 0] - [0.0, 0.0, 20.0, 20.0]

    without, drawn = moved(0.0), moved(0.5)
    assert ((drawn - without)[:2] >= 0.0).all()
    assert ((drawn - without)[:2] <= 5.0).all()
    assert ((drawn - without)[2:] <= 0.0).all()
    assert (drawn != without).sum() == 2


def test_half_of_the_swarm_moves_and_the_best_does_not() -> None:
    population = jax.random.normal(jax.random.key(1), (10, 3))
    fitness = jax.random.normal(jax.random.key(2), (10,))
    state = after_tell(population, fitness)
    has_moved = (np.asarray(state.population) != np.asarray(population)).any(axis=1)
    assert has_moved.sum() == 5
    assert not has_moved[int(jnp.argmax(fitness))]
    assert has_moved[int(jnp.argmin(fitness))]


def test_all_leaves_of_a_particle_lose_together() -> None:
    optimizer = CSO(population_size=6)
    _, before = optimizer.ask(optimizer.init({"a": jnp.zeros((2, 2)), "b": jnp.zeros(3)}, jax.random.key(0)))
    after = optimizer.tell(before, jax.random.normal(jax.random.key(1), (6,)))
    moved = [
        (np.asarray(before.population[name]) != np.asarray(after.population[name])).reshape(6, -1).any(axis=1)
        for name in ("a", "b")
    ]
    np.testing.assert_array_equal(moved[0], moved[1])


def test_a_swarm_of_pairs_is_even() -> None:
    with pytest.raises(InvalidInputError, match="population_size=5 must be even"):
        CSO(population_size=5)
