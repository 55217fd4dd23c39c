"""The rules of ERL that other implementations break, and the three ways in which the actor enters the search."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.dqn import DQN
from rookery.algorithms.evolution.ga import GA, GAHyperparameters
from rookery.algorithms.evolution.open_es import OpenES
from rookery.algorithms.evolution.vanilla_es import VanillaES
from rookery.algorithms.hybrid.erl import ERLConfig, ERLHyperparameters, ERLWorkflow, Joining, Migration, Pulling
from rookery.algorithms.sac import SAC
from rookery.algorithms.td3 import TD3, TD3Config, TD3Hyperparameters
from rookery.configs import compose
from rookery.errors import InvalidInputError
from rookery.hyperparameters import values_at
from rookery.learning.counter import Counter
from rookery.networks.critic import ActorCriticsConfig
from rookery.registry import build_workflow
from rookery.spaces import Box
from rookery.types import PyTreeDict
from rookery.workflows.evolution.exchange import Generation

POPULATION_SIZE = 6
LEARNER = TD3.of(TD3Config(network=ActorCriticsConfig(hidden_sizes=(4,)), buffer_capacity=1000))
STATE = LEARNER.init(Box(-1.0, 1.0, (2,)), Box(-1.0, 1.0, (1,)), TD3Hyperparameters(), jax.random.key(0))
STATE = STATE.replace(num_updates=Counter.of(1))
ACTOR = jax.tree.map(lambda leaf: leaf + 3.0, STATE.agent_state.params.policy)
STATE = STATE.replace(agent_state=STATE.agent_state.replace(params=STATE.agent_state.params.replace(policy=ACTOR)))
START = jax.tree.map(lambda leaf: leaf - 3.0, ACTOR)
FITNESS = jnp.array([-9.0, 5.0, 1.0, 3.0, 2.0, 4.0])
"""The least fit individual is at place 0, where the fittest of the next population will be."""


def generation(fitness: Any = FITNESS, actor_fitness: float = 2.6, **numbers: float) -> Generation:
    hyperparameters = PyTreeDict({"injection_rate": jnp.float32(ERLHyperparameters().injection_rate)} | numbers)
    return Generation(
        key=jax.random.key(1),
        hyperparameters=hyperparameters,
        num_updates=jnp.int32(1),
        actor=ACTOR,
        fitness=fitness,
        actor_fitness=jnp.float32(actor_fitness),
    )


def asked(optimizer: Any) -> Any:
    optimizer = optimizer.replace(hyperparameters=values_at(optimizer.hyperparameters, 0.0))
    return optimizer.ask(optimizer.init(START, jax.random.key(2)))[1]


def exchange(kind: Any, optimizer: Any, **config: Any) -> Any:
    return kind(optimizer=optimizer, learner=LEARNER, config=ERLConfig(population_size=POPULATION_SIZE, **config))


def holds(population: Any, individual: Any) -> np.ndarray:
    """Tell which individuals of a population are this one."""
    pairs = zip(jax.tree.leaves(population), jax.tree.leaves(individual), strict=True)
    equal = [np.all(np.asarray(leaf) == np.asarray(one), axis=tuple(range(1, leaf.ndim))) for leaf, one in pairs]
    return np.all(equal, axis=0)


def test_the_actor_never_overwrites_an_elite() -> None:
    optimizer = GA(population_size=POPULATION_SIZE, num_elites=2)
    state = asked(optimizer)
    fittest, second = (jax.tree.map(lambda leaf, i=i: leaf[i], state.asked) for i in (1, 5))
    told = optimizer.tell(state, FITNESS)
    metrics, after = exchange(Migration, optimizer).migrate(told, STATE, generation())
    # Picked before evolution rearranges places, the weakest would be place 0: the fittest would be lost.
    assert np.flatnonzero(holds(after.population, fittest)).tolist() == [0]
    assert np.flatnonzero(holds(after.population, second)).tolist() == [1]
    assert np.flatnonzero(holds(after.population, ACTOR)).tolist() == [POPULATION_SIZE - 1]
    assert float(metrics["hybrid/injections"].value) == 1.0


def test_descendants_of_the_actor_among_the_elites_are_counted() -> None:
    optimizer = GA(
        population_size=POPULATION_SIZE, num_elites=2, hyperparameters=GAHyperparameters(mutated_fraction=0.0)
    )
    told = optimizer.tell(asked(optimizer), FITNESS)
    shares = []
    for _ in range(3):
        metrics, state = exchange(Migration, optimizer, sync_interval=1).migrate(told, STATE, generation())
        shares.append(float(metrics["hybrid/elites_from_gradient"].value))
        _, state = optimizer.ask(state)
        told = optimizer.tell(state, state.from_outside.astype(jnp.float32))
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_the_sync_period_counts_generations() -> None:
    optimizer = GA(population_size=POPULATION_SIZE, num_elites=2)
    state, injections = asked(optimizer), []
    for _ in range(4):
        metrics, state = exchange(Migration, optimizer, sync_interval=2).migrate(
            optimizer.tell(state, FITNESS), STATE, generation()
        )
        injections.append(int(metrics["hybrid/injections"].value))
        _, state = optimizer.ask(state)
    assert injections == [0, 1, 0, 1]


def test_an_actor_that_has_not_learned_stays_out() -> None:
    optimizer = GA(population_size=POPULATION_SIZE, num_elites=2)
    told = optimizer.tell(asked(optimizer), FITNESS)
    untrained = STATE.replace(num_updates=Counter.zero())
    _, after = exchange(Migration, optimizer).migrate(told, untrained, generation())
    assert not holds(after.population, ACTOR).any()


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        (Migration, GA(population_size=POPULATION_SIZE, num_elites=2)),
        (Joining, VanillaES(population_size=POPULATION_SIZE)),
        (Pulling, OpenES(population_size=POPULATION_SIZE)),
    ],
)
def test_an_actor_that_is_not_finite_never_enters(kind: Any, optimizer: Any) -> None:
    broken = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), ACTOR)
    learner = STATE.replace(agent_state=STATE.agent_state.replace(params=PyTreeDict(policy=broken)))
    of_actor, own = generation(actor_fitness=7.0).replace(actor=broken), exchange(kind, optimizer)
    _, joined, returns, _ = own.join(asked(optimizer), FITNESS[:, None], learner, of_actor)
    told = optimizer.tell(joined, returns[:, 0]).replace(generation=jnp.int32(10))
    np.testing.assert_array_equal(returns[:, 0], FITNESS)
    _, after = own.migrate(told, learner, of_actor)
    population, _ = optimizer.ask(after)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((joined.asked, population)))


def test_an_actor_that_joins_has_the_fitness_of_the_parameters_that_join() -> None:
    optimizer = VanillaES(population_size=POPULATION_SIZE)
    state, returns = asked(optimizer), jnp.stack([FITNESS, FITNESS], axis=1)
    later = STATE.replace(agent_state=STATE.agent_state.replace(params=PyTreeDict(policy=START)))
    _, joined, after, _ = exchange(Joining, optimizer).join(state, returns, later, generation(actor_fitness=7.0))
    assert np.flatnonzero(holds(joined.asked, ACTOR)).tolist() == [0]
    np.testing.assert_array_equal(after, returns.at[0].set(7.0))
    told = optimizer.tell_episodes(joined, after, jnp.zeros((POPULATION_SIZE, 2, 0)))
    assert float(told.best_fitness) == 7.0
    jax.tree.map(np.testing.assert_array_equal, told.best_params, ACTOR)


def test_an_actor_whose_greedy_episodes_were_given_up_stays_out() -> None:
    optimizer, of_actor = VanillaES(population_size=POPULATION_SIZE), generation(actor_fitness=float("nan"))
    metrics, joined, returns, _ = exchange(Joining, optimizer).join(asked(optimizer), FITNESS[:, None], STATE, of_actor)
    assert not holds(joined.asked, ACTOR).any()
    np.testing.assert_array_equal(returns[:, 0], FITNESS)
    assert float(metrics["hybrid/injections"].value) == 0.0


def test_an_invalid_individual_is_the_least_fit() -> None:
    optimizer = VanillaES(population_size=POPULATION_SIZE)
    fitness = FITNESS.at[3].set(jnp.nan)
    _, joined, _, _ = exchange(Joining, optimizer).join(asked(optimizer), fitness[:, None], STATE, generation(fitness))
    assert np.flatnonzero(holds(joined.asked, ACTOR)).tolist() == [3]


def test_a_pull_leaves_evolution_an_effect() -> None:
    """With the default rate. A rate of 1 would put the actor in place of the mean."""
    rate = ERLHyperparameters().injection_rate
    assert 0.0 < rate <= 0.2
    optimizer = OpenES(population_size=POPULATION_SIZE)
    told = optimizer.tell(asked(optimizer), FITNESS).replace(generation=jnp.int32(10))
    metrics, after = exchange(Pulling, optimizer).migrate(told, STATE, generation())
    expected = jax.tree.map(lambda mean, actor: mean + rate * (actor - mean), told.mean, ACTOR)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), after.mean, expected)
    assert float(metrics["hybrid/injections"].value) == 1.0


@pytest.mark.parametrize(("generations", "actor_fitness"), [(9, 100.0), (10, 2.4)])
def test_the_mean_stays_between_periods_and_before_an_actor_below_the_median(
    generations: int, actor_fitness: float
) -> None:
    optimizer = OpenES(population_size=POPULATION_SIZE)
    told = optimizer.tell(asked(optimizer), FITNESS).replace(generation=jnp.int32(generations))
    _, after = exchange(Pulling, optimizer).migrate(told, STATE, generation(actor_fitness=actor_fitness))
    jax.tree.map(np.testing.assert_array_equal, after.mean, told.mean)


def make_workflow(**agent: Any) -> ERLWorkflow:
    return ERLWorkflow.build_from_config({"agent": agent, "env": {"name": "classic/pendulum"}})


@pytest.mark.parametrize(("overrides", "learner"), [((), DQN), (("agent.gradient=sac",), SAC)])
def test_on_cartpole_it_learns_with_dqn_unless_another_learner_is_named(overrides: tuple, learner: type) -> None:
    workflow = build_workflow(compose(["agent=erl", "env=classic/cartpole", *overrides]))
    assert type(workflow.training.learner) is learner  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("evolution", "kind"),
    [("ga", Migration), ("pso", Migration), ("vanilla_es", Joining), ("cmaes", Joining), ("openes", Pulling)],
)
def test_the_exchange_follows_from_the_kind_of_strategy(evolution: str, kind: type) -> None:
    assert type(make_workflow(evolution=evolution).training.exchange) is kind  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evolution": "openes", "exchange": "migrate"}, "migrate needs a strategy that keeps a population.*openes"),
        ({"evolution": "ga", "exchange": "pull"}, "pull moves a mean.*ga does not have"),
        ({"evolution": "map_elites", "exchange": "join"}, "map_elites needs measures"),
    ],
)
def test_an_exchange_that_does_not_fit_the_strategy_is_refused(options: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_workflow(**options)
