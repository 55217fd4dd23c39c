"""SNES, worked by hand and against evosax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evosax import algorithms as evosax

from rookery.algorithms.evolution.snes import SNES, SNESHyperparameters, default_std_learning_rate, utilities


def test_utilities_add_up_to_zero_and_the_worse_half_has_the_same() -> None:
    # For four: log(3) - log(i), cut off at 0, is log(3), log(3/2), 0, 0.
    raw = np.array([np.log(3.0), np.log(1.5), 0.0, 0.0])
    np.testing.assert_allclose(utilities(4), raw / raw.sum() - 0.25, rtol=1e-6)


def test_a_generation_of_two_worked_by_hand() -> None:
    # Utilities are +-1/2. From 1 with a standard deviation of 2 the two lie 1 and 1/2 of these away.
    optimizer = SNES(
        population_size=2,
        hyperparameters=SNESHyperparameters(initial_std=2.0, learning_rate=0.1, std_learning_rate=0.4),
    )
    state = optimizer.init(jnp.array([1.0]), jax.random.key(0)).replace(asked=jnp.array([[3.0], [2.0]]))
    state = optimizer.tell(state, jnp.array([5.0, 4.0]))
    np.testing.assert_allclose(state.mean, [1.0 + 0.1 * 2.0 * (0.5 * 1.0 - 0.5 * 0.5)], rtol=1e-6)
    np.testing.assert_allclose(state.std, [2.0 * np.exp(0.4 / 2.0 * (0.5 * 0.0 - 0.5 * (0.25 - 1.0)))], rtol=1e-6)


@pytest.mark.third_party
def test_generations_change_the_distribution_as_those_of_evosax_do() -> None:
    optimizer = SNES(population_size=8, hyperparameters=SNESHyperparameters(initial_std=1.0))
    algorithm = evosax.SNES(8, jnp.zeros(6))
    params = algorithm.default_params
    np.testing.assert_allclose(default_std_learning_rate(6), params.lr_std_init, rtol=1e-6)
    start = jnp.ones(6)
    state = optimizer.init({"a": start[:2], "b": start[2:]}, jax.random.key(0))
    reference = algorithm.init(jax.random.key(0), start, params)
    for seed in range(3):
        population = jax.random.normal(jax.random.key(seed), (8, 6))
        fitness = jax.random.normal(jax.random.key(10 + seed), (8,))
        state = optimizer.tell(state.replace(asked={"a": population[:, :2], "b": population[:, 2:]}), fitness)
        reference, _ = algorithm.tell(jax.random.key(0), population, -fitness, reference, params)
    np.testing.assert_allclose(np.concatenate([state.mean["a"], state.mean["b"]]), reference.mean, rtol=1e-4)
    np.testing.assert_allclose(np.concatenate([state.std["a"], state.std["b"]]), reference.std, rtol=1e-4)


def test_a_coordinate_whose_noise_is_lost_in_rounding_stays_finite() -> None:
    optimizer = SNES(population_size=4, hyperparameters=SNESHyperparameters(initial_std=1e-9, std_learning_rate=50.0))
    state = optimizer.init(jnp.array([1.0, 0.0]), jax.random.key(0))

    def generation(state: object, _: None) -> tuple[object, None]:
        population, state = optimizer.ask(state)
        return optimizer.tell(state, -jnp.abs(population[:, 1])), None

    state, _ = jax.jit(lambda state: jax.lax.scan(generation, state, None, length=50))(state)
    assert np.isfinite(state.mean).all()
    assert np.isfinite(state.std).all()
