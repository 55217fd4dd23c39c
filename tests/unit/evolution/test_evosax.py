"""The bridge to evosax. All but the tests of evosax itself run under strict promotion, as its users do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evosax.algorithms import CMA_ES, PSO

from rookery.errors import InvalidInputError, UnknownNameError
from rookery.evolution.evosax import STRATEGIES, EvosaxHyperparameters, EvosaxOptimizer
from rookery.types import Array

PARAMS = {"kernel": jnp.full((2, 2), 3.0), "bias": jnp.array([-1.0])}


def make(strategy: str, population_size: int = 8, initial_std: float = 0.5, **kwargs: Any) -> EvosaxOptimizer:
    hyperparameters = EvosaxHyperparameters(initial_std=initial_std)
    return EvosaxOptimizer(
        strategy=strategy, population_size=population_size, hyperparameters=hyperparameters, **kwargs
    )


def asked(optimizer: EvosaxOptimizer, seed: int = 0) -> Any:
    return optimizer.ask(optimizer.init(PARAMS, jax.random.key(seed)))[1]


def generation(optimizer: EvosaxOptimizer, state: Any, fitness: Array) -> Any:
    return optimizer.ask(optimizer.tell(state, fitness))[1]


@pytest.mark.third_party
def test_cma_es_learns_what_evosax_learns_from_the_same_costs() -> None:
    optimizer, algorithm = make("CMA_ES"), CMA_ES(8, jnp.zeros(5))
    state = asked(optimizer)
    for fitness in jax.random.normal(jax.random.key(7), (3, 8)):
        expected, _ = algorithm.tell(
            jax.random.key(0), state.z, -fitness, state.strategy_state, algorithm.default_params
        )
        state = generation(optimizer, state, fitness)
        for name in ("mean", "std", "p_std", "p_c", "generation_counter"):
            np.testing.assert_allclose(
                getattr(state.strategy_state, name), getattr(expected, name), rtol=1e-5, atol=1e-6, err_msg=name
            )


@pytest.mark.third_party
def test_a_swarm_starts_with_the_fitness_of_its_first_population() -> None:
    optimizer, algorithm = make("PSO"), PSO(8, jnp.zeros(5))
    state = asked(optimizer)
    fitness = jnp.arange(8.0)
    expected = algorithm.init(jax.random.key(0), state.z, -fitness, algorithm.default_params)
    told = optimizer.tell(state, fitness).strategy_state
    np.testing.assert_array_equal(told.population_best, expected.population_best)
    np.testing.assert_array_equal(told.fitness_best, expected.fitness_best)
    assert int(told.generation_counter) == 0


@pytest.mark.parametrize("strategy", ["CMA_ES", "Open_ES", "PSO", "SimpleGA"])
def test_the_first_population_surrounds_the_params_at_the_initial_std(strategy: str) -> None:
    population = asked(make(strategy, population_size=512, initial_std=0.01)).asked
    np.testing.assert_allclose(population["kernel"].mean(axis=0), PARAMS["kernel"], atol=0.002)
    np.testing.assert_allclose(population["bias"].mean(axis=0), PARAMS["bias"], atol=0.002)
    np.testing.assert_allclose(population["kernel"].std(axis=0), np.full((2, 2), 0.01), rtol=0.15)


@pytest.mark.parametrize("strategy", ["CMA_ES", "DifferentialEvolution"])
def test_fitness_is_maximized(strategy: str) -> None:
    optimizer = make(strategy, population_size=16)

    def one(state: Any, _: None) -> tuple[Any, None]:
        population, state = optimizer.ask(state)
        distance = jnp.sum(population["kernel"] ** 2, axis=(1, 2)) + jnp.sum((population["bias"] - 2.0) ** 2, axis=1)
        return optimizer.tell(state, -distance), None

    state, _ = jax.jit(lambda state: jax.lax.scan(one, state, None, length=80))(
        optimizer.init(PARAMS, jax.random.key(0))
    )
    np.testing.assert_allclose(optimizer.center(state)["kernel"], np.zeros((2, 2)), atol=0.05)
    np.testing.assert_allclose(optimizer.center(state)["bias"], [2.0], atol=0.05)


def test_the_center_is_the_mean_of_a_distribution_and_the_best_of_a_population() -> None:
    optimizer = make("CMA_ES")
    state = optimizer.init(PARAMS, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, optimizer.center(state), PARAMS)
    swarm = make("PSO")
    state = asked(swarm)
    best = jax.tree.map(lambda leaf: leaf[5], state.asked)
    told = swarm.tell(state, jnp.zeros(8).at[5].set(1.0))
    jax.tree.map(np.testing.assert_array_equal, swarm.center(told), best)


def test_an_invalid_individual_does_not_replace_a_worse_one_that_was_valid() -> None:
    swarm = make("PSO")
    state = generation(swarm, asked(swarm), jnp.full(8, -500.0))
    before = state.strategy_state.population_best
    state = generation(swarm, state, jnp.full(8, -100.0).at[0].set(jnp.nan))
    after = state.strategy_state
    np.testing.assert_array_equal(after.population_best[0], before[0])
    assert float(after.fitness_best[0]) == 500.0
    assert (np.asarray(after.population_best[1:]) != np.asarray(before[1:])).all()


@pytest.mark.parametrize("strategy", ["CMA_ES", "ARS", "PSO", "DifferentialEvolution", "SimpleGA"])
def test_nothing_is_learned_from_a_population_without_a_valid_fitness(strategy: str) -> None:
    optimizer = make(strategy)
    nobody = jnp.full(8, jnp.nan)
    state = generation(optimizer, asked(optimizer), nobody)
    assert int(state.num_invalid) == 8
    jax.tree.map(np.testing.assert_array_equal, optimizer.center(state), PARAMS)
    state = generation(optimizer, state, -jnp.arange(100.0, 108.0))
    told = optimizer.tell(state, nobody)
    jax.tree.map(np.testing.assert_array_equal, optimizer.center(told), optimizer.center(state))
    _, state = optimizer.ask(told)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.asked))
    if hasattr(state.strategy_state, "fitness"):
        assert (np.asarray(state.strategy_state.fitness) >= 100.0).all()


def test_parameters_of_the_strategy_are_overridden_by_name() -> None:
    slow, default = (
        make("PSO", params=(("inertia_coeff", 0.0), ("social_coeff", 0.0), ("cognitive_coeff", 0.0))),
        make("PSO"),
    )
    fitness = jnp.arange(8.0)
    resting, moving = generation(slow, asked(slow), fitness), generation(default, asked(default), fitness)
    np.testing.assert_array_equal(resting.z, asked(slow).z)
    assert (np.asarray(moving.z) != np.asarray(asked(default).z)).any()


def test_an_unknown_strategy_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown strategy 'CMAES'\. Did you mean 'CMA_ES'"):
        make("CMAES")


def test_a_strategy_that_needs_more_than_sizes_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="strategy='SV_CMA_ES' needs arguments"):
        make("SV_CMA_ES")


@pytest.mark.parametrize("name", ["inertia", "weights"])
def test_an_unknown_parameter_or_one_that_is_no_number_is_refused(name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown parameter of CMA_ES '{name}'"):
        make("CMA_ES", params=((name, 1.0),))


def test_a_population_that_does_not_fit_the_strategy_is_refused_in_its_words() -> None:
    with pytest.raises(InvalidInputError, match=r"population_size=3 does not fit DifferentialEvolution: .*>= 4"):
        make("DifferentialEvolution", population_size=3)


def test_a_matrix_over_too_many_parameters_is_refused_before_it_is_made() -> None:
    with pytest.raises(
        InvalidInputError, match=r"CMA_ES has a full .*matrix: 300000 parameters are too many, .* 2000\."
    ):
        make("CMA_ES").init(jnp.zeros(300_000), jax.random.key(0))
    make("Sep_CMA_ES").init(jnp.zeros(3_000), jax.random.key(0))


def test_the_strategies_are_those_of_evosax() -> None:
    assert {"CMA_ES", "xNES", "PSO", "SimpleGA", "LM_MA_ES"} <= set(STRATEGIES)
