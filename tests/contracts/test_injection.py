"""Individuals from outside enter every strategy: they are judged, they win, and the search follows them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.evolution.ga import GA
from rookery.algorithms.evolution.map_elites import MAPElites
from rookery.algorithms.evolution.nsga2 import NSGA2
from rookery.algorithms.evolution.open_es import OpenES
from rookery.errors import InvalidInputError
from rookery.evolution import EvoOptimizer
from rookery.evolution.evosax import EvosaxOptimizer
from tests.contracts.test_evo_optimizers import OPTIMIZERS, PARAMS, numbers_of

MAKERS: dict[str, Callable[..., EvoOptimizer]] = OPTIMIZERS | {
    "map_elites": partial(MAPElites, cells=(4, 4), low=(-1.0, -1.0), high=(1.0, 1.0)),
    "nsga2": NSGA2,
}
POPULATION = [name for name, make in MAKERS.items() if make(population_size=8).has_population]
DISTRIBUTION = [name for name in MAKERS if name not in POPULATION]
PLACE = 5
OUTSIDER = jax.tree.map(lambda leaf: leaf + 0.7, PARAMS)
pytestmark = pytest.mark.third_party


def told(optimizer: EvoOptimizer, state: Any) -> Any:
    """Judge a generation in which the individual that is injected at `PLACE` is the best."""
    _, state = optimizer.ask(state)
    state = optimizer.inject(state, jax.tree.map(lambda leaf: leaf[None], OUTSIDER), jnp.array([PLACE]))
    returns = jnp.where(jnp.arange(8) == PLACE, 1.0, 0.0)[:, None]
    measures = jnp.broadcast_to(returns[:, :, None], (8, 1, 2))
    return optimizer.tell_episodes(state, returns, measures)


def started(name: str) -> tuple[EvoOptimizer, Any]:
    optimizer = MAKERS[name](population_size=8)
    return optimizer, jax.jit(optimizer.init)(PARAMS, jax.random.key(0))


def distance(one: Any, other: Any) -> float:
    return float(sum(jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)))


def holds(population: Any) -> bool:
    same = [
        jnp.all(jnp.isclose(leaf, outsider, atol=1e-5), axis=tuple(range(1, leaf.ndim)))
        for leaf, outsider in zip(jax.tree.leaves(population), jax.tree.leaves(OUTSIDER), strict=True)
    ]
    return bool(jnp.any(jnp.all(jnp.stack(same), axis=0)))


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "nsga2"])
def test_an_injected_individual_that_wins_is_the_best(name: str) -> None:
    optimizer, state = started(name)
    after = jax.jit(partial(told, optimizer))(state)
    jax.tree.map(np.testing.assert_array_equal, after.best_params, OUTSIDER)
    assert float(after.best_fitness) == 1.0


@pytest.mark.parametrize("name", DISTRIBUTION)
def test_a_distribution_moves_towards_an_injected_winner(name: str) -> None:
    optimizer, state = started(name)
    after = jax.jit(partial(told, optimizer))(state)
    assert distance(optimizer.center(after), OUTSIDER) < distance(PARAMS, OUTSIDER) * 0.99


@pytest.mark.parametrize("name", DISTRIBUTION)
def test_a_distribution_has_no_place_before_ask(name: str) -> None:
    optimizer, state = started(name)
    with pytest.raises(InvalidInputError, match="between ask and tell"):
        optimizer.inject(state, jax.tree.map(lambda leaf: leaf[None], OUTSIDER), jnp.array([PLACE]))


@pytest.mark.parametrize("name", POPULATION)
def test_an_individual_that_is_injected_before_ask_is_asked_at_its_place(name: str) -> None:
    optimizer, state = started(name)
    state = optimizer.inject(state, jax.tree.map(lambda leaf: leaf[None], OUTSIDER), jnp.array([PLACE]))
    population, _ = optimizer.ask(state)
    jax.tree.map(
        lambda leaf, outsider: np.testing.assert_allclose(leaf[PLACE], outsider, rtol=1e-6), population, OUTSIDER
    )
    others, _ = optimizer.ask(started(name)[1])
    jax.tree.map(lambda leaf, other: np.testing.assert_array_equal(leaf[:PLACE], other[:PLACE]), population, others)


@pytest.mark.parametrize("name", ["ga", "cso", "nsga2", "map_elites"])
def test_a_population_keeps_an_injected_winner(name: str) -> None:
    optimizer, state = started(name)
    after = jax.jit(partial(told, optimizer))(state)
    assert holds(after.archive.params if name == "map_elites" else after.population)


@pytest.mark.parametrize("name", MAKERS)
def test_an_individual_that_is_not_finite_never_enters(name: str) -> None:
    optimizer, state = started(name)
    _, asked = optimizer.ask(state)
    broken = jax.tree.map(lambda leaf: leaf[None], OUTSIDER) | {"bias": jnp.full((1, *PARAMS["bias"].shape), jnp.nan)}
    for before in (asked, *([state] if optimizer.has_population else [])):
        after = optimizer.inject(before, broken, jnp.array([PLACE]))
        jax.tree.map(np.testing.assert_array_equal, numbers_of(after), numbers_of(before))


def test_every_strategy_injects_in_one_of_the_ways_that_are_tested_on_four_devices() -> None:
    """See `tests/equivalence/test_populations_on_four_devices.py`."""
    tested = [OpenES, GA, NSGA2, MAPElites, EvosaxOptimizer]
    assert {type(make(population_size=8)).put for make in MAKERS.values()} == {strategy.put for strategy in tested}
