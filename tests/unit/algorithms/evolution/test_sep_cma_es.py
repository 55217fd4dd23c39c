"""Sep-CMA-ES, against published constants and against evosax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evosax.algorithms import Sep_CMA_ES

from rookery.algorithms.evolution.sep_cma_es import Rates, SepCMAES, SepCMAESHyperparameters
from rookery.errors import InvalidInputError


def make(population_size: int = 12, initial_std: float = 1.0) -> SepCMAES:
    return SepCMAES(population_size=population_size, hyperparameters=SepCMAESHyperparameters(initial_std=initial_std))


def test_the_constants_of_ten_dimensions_are_those_that_pycma_prints() -> None:
    # "(5_w,10)-aCMA-ES (mu_w=3.2,w_1=45%) in dimension 10"
    rates = Rates.derived(10, 10)
    assert round(rates.effective_size, 1) == 3.2
    assert int(100 * rates.weights[0]) == 45
    np.testing.assert_array_equal(rates.weights[5:], np.zeros(5))
    np.testing.assert_allclose(rates.weights.sum(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(rates.expected_length, 3.0847, atol=1e-3)


@pytest.mark.parametrize(("num_dims", "population_size"), [(1, 2), (1, 512), (2, 512), (100, 8), (10_000, 64)])
def test_the_learning_rates_of_the_covariance_never_exceed_one(num_dims: int, population_size: int) -> None:
    rates = Rates.derived(num_dims, population_size)
    assert 0.0 < rates.rank_one <= 1.0
    assert 0.0 <= rates.rank_mu <= 1.0 - rates.rank_one


def test_the_covariance_learns_as_many_times_faster_as_the_paper_says() -> None:
    rates, mu_eff = Rates.derived(100, 20), Rates.derived(100, 20).effective_size
    np.testing.assert_allclose(rates.rank_one, 102 / 3 * 2 / (101.3**2 + mu_eff), rtol=1e-6)


@pytest.mark.third_party
def test_generations_change_the_distribution_as_those_of_evosax_with_these_rates_do() -> None:
    optimizer, algorithm = make(), Sep_CMA_ES(12, jnp.zeros(6))
    rates = Rates.derived(6, 12)
    params = algorithm.default_params.replace(c_1=rates.rank_one, c_mu=rates.rank_mu)
    start = jnp.ones(6)
    state = optimizer.init({"a": start[:2], "b": start[2:]}, jax.random.key(0))
    reference = algorithm.init(jax.random.key(0), start, params)
    for seed in range(4):
        population, reference = algorithm.ask(jax.random.key(seed), reference, params)
        fitness = jax.random.normal(jax.random.key(10 + seed), (12,))
        state = optimizer.tell(state.replace(asked={"a": population[:, :2], "b": population[:, 2:]}), fitness)
        reference, _ = algorithm.tell(jax.random.key(0), population, -fitness, reference, params)

    def flat(tree: Any) -> Any:
        return np.concatenate([tree["a"], tree["b"]])

    np.testing.assert_allclose(flat(state.mean), reference.mean, rtol=1e-4)
    np.testing.assert_allclose(flat(state.variance), reference.C, rtol=1e-4)
    np.testing.assert_allclose(flat(state.variance_path), reference.p_c, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(state.step_size, reference.std, rtol=1e-4)


def test_the_variances_learn_the_scales_of_a_separable_function() -> None:
    optimizer = make(population_size=16)
    scales = jnp.array([1.0, 10.0, 100.0])

    def generation(state: Any, _: None) -> tuple[Any, None]:
        population, state = optimizer.ask(state)
        return optimizer.tell(state, -jnp.sum((population * scales[None]) ** 2, axis=1)), None

    state = optimizer.init(jnp.ones(3), jax.random.key(0))
    state, _ = jax.jit(lambda state: jax.lax.scan(generation, state, None, length=60))(state)
    ratios = np.sqrt(np.asarray(state.variance)) * np.asarray(scales)
    np.testing.assert_allclose(ratios / ratios[0], np.ones(3), rtol=1.0)


def test_a_search_that_has_collapsed_stays_finite() -> None:
    optimizer = make(population_size=4, initial_std=1e-30)
    state = optimizer.init(jnp.array([1.0, 0.0]), jax.random.key(0))

    def generation(state: Any, _: None) -> tuple[Any, None]:
        population, state = optimizer.ask(state)
        return optimizer.tell(state, -jnp.abs(population[:, 1])), None

    state, _ = jax.jit(lambda state: jax.lax.scan(generation, state, None, length=300))(state)
    assert all(np.isfinite(leaf).all() for leaf in (state.mean, state.variance, state.step_size, state.step_path))


def test_one_individual_is_too_few() -> None:
    with pytest.raises(InvalidInputError, match="population_size=1 must be at least 2"):
        make(population_size=1)
