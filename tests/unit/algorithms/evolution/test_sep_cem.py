"""The cross-entropy method, worked by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.algorithms.evolution.sep_cem import SepCEM, SepCEMHyperparameters


def make(**hyperparameters: float) -> SepCEM:
    return SepCEM(population_size=3, hyperparameters=SepCEMHyperparameters(**hyperparameters))


def after_tell(optimizer: SepCEM, fitness: Any) -> Any:
    state = optimizer.init(jnp.array([0.0, 1.0]), jax.random.key(0))
    population = jnp.array([[2.0, 1.0], [4.0, 0.0], [-9.0, 9.0]])
    return optimizer.tell(state.replace(asked=population), jnp.asarray(fitness))


def test_one_elite_gives_the_mean_and_its_squared_deviation_the_variance() -> None:
    state = after_tell(make(elite_fraction=0.3, extra_noise=0.5), [1.0, 2.0, 0.0])
    np.testing.assert_allclose(state.mean, [4.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(state.variance, [16.0 + 0.5, 1.0 + 0.5], rtol=1e-6)


def test_better_elites_weigh_more() -> None:
    weights = np.log(3.0 / np.array([1.0, 2.0]))
    weights /= weights.sum()
    state = after_tell(make(elite_fraction=2 / 3, extra_noise=0.0, extra_noise_end=0.0), [1.0, 2.0, 0.0])
    np.testing.assert_allclose(
        state.mean, weights[0] * np.array([4.0, 0.0]) + weights[1] * np.array([2.0, 1.0]), rtol=1e-5
    )
    np.testing.assert_allclose(
        state.variance, weights[0] * np.array([16.0, 1.0]) + weights[1] * np.array([4.0, 0.0]), rtol=1e-5
    )


def test_the_extra_noise_decays_towards_its_end() -> None:
    optimizer = make(elite_fraction=0.3, extra_noise=1.0, extra_noise_end=0.2, extra_noise_decay=0.5)
    state = optimizer.init(jnp.zeros(2), jax.random.key(0))
    for extra_noise in (1.0, 0.6, 0.4, 0.3):
        population = jnp.broadcast_to(state.mean, (3, 2))
        state = optimizer.tell(state.replace(asked=population), jnp.arange(3.0))
        np.testing.assert_allclose(state.variance, np.full(2, extra_noise), rtol=1e-6)


def test_the_first_individuals_lie_around_the_params_at_the_initial_std() -> None:
    optimizer = SepCEM(population_size=2048, hyperparameters=SepCEMHyperparameters(initial_std=0.3))
    state = optimizer.init(jnp.array([4.0]), jax.random.key(0))
    population, _ = optimizer.ask(state)
    np.testing.assert_allclose([population.mean(), population.std()], [4.0, 0.3], rtol=0.05)
    np.testing.assert_allclose(optimizer.report(state)["step_size"], 0.3, rtol=1e-6)
