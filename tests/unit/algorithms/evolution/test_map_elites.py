"""MAP-Elites on a problem whose best individual is known for every cell."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.evolution.map_elites import MAPElites, MAPElitesState
from rookery.errors import InvalidInputError, UnknownNameError
from rookery.evolution.emitters import Elites, Emitter, IsoLine
from rookery.types import Array, Params, pytree_field

GRID = {"archive": "grid", "cells": (16, 16), "low": (-1.0, -1.0), "high": (1.0, 1.0)}
CVT = GRID | {"archive": "cvt", "cells": (256,)}


def behave(genes: Array) -> tuple[Array, Array]:
    """Describe individuals by their first two genes; the others should follow them, and then the fitness is 0."""
    descriptors = genes[:, :2]
    wanted = jnp.stack([descriptors[:, 0] * descriptors[:, 1], jnp.sin(3.0 * descriptors[:, 0])], axis=1)
    return -jnp.sum((genes[:, 2:] - wanted) ** 2, axis=1), descriptors


@pytest.mark.parametrize("settings", [GRID, CVT], ids=["grid", "cvt"])
def test_every_cell_is_filled_with_an_individual_near_its_optimum(settings: dict) -> None:
    optimizer = MAPElites(population_size=256, **settings)

    def generation(state: MAPElitesState, _: None) -> tuple[MAPElitesState, None]:
        population, state = optimizer.ask(state)
        return optimizer.tell(state, *behave(population)), None

    state = optimizer.init(jnp.full(4, 0.5), jax.random.key(0))
    state, _ = jax.jit(lambda state: jax.lax.scan(generation, state, length=400))(state)
    assert float(optimizer.report(state)["coverage"]) == 1.0
    assert float(jnp.min(state.archive.fitness)) > -0.01
    fitness, descriptors = behave(state.archive.params)
    np.testing.assert_allclose(state.archive.fitness, fitness, atol=1e-6)
    np.testing.assert_array_equal(optimizer.cell_archive.cells_of(descriptors), np.arange(256))
    np.testing.assert_array_equal(optimizer.center(state), state.best_params)
    assert float(optimizer.report(state)["qd_score"]) == pytest.approx(float(jnp.sum(fitness)), abs=1e-4)


def after_tell(optimizer: MAPElites, fitness: Array, descriptors: Array) -> tuple[Array, MAPElitesState]:
    population, state = optimizer.ask(optimizer.init(jnp.full(3, 0.2), jax.random.key(1)))
    return population, optimizer.tell(state, fitness, descriptors)


@pytest.mark.parametrize("invalid", [np.nan, np.inf, -np.inf])
def test_an_invalid_fitness_fills_no_cell_and_is_counted(invalid: float) -> None:
    optimizer = MAPElites(population_size=3, **GRID)
    descriptors = jnp.asarray([[-0.9, -0.9], [0.0, 0.0], [0.9, 0.9]])
    population, state = after_tell(optimizer, jnp.asarray([invalid, -7.0, invalid]), descriptors)
    np.testing.assert_array_equal(np.asarray(state.archive.fitness)[np.asarray(state.archive.is_filled)], [-7.0])
    np.testing.assert_array_equal(optimizer.center(state), population[1])
    assert int(state.num_invalid) == 2


def test_without_a_descriptor_an_individual_is_neither_kept_nor_the_center() -> None:
    optimizer = MAPElites(population_size=3, **GRID)
    descriptors = jnp.asarray([[jnp.nan, 0.0], [0.0, 0.0], [0.5, 0.5]])
    population, state = after_tell(optimizer, jnp.asarray([100.0, 1.0, 2.0]), descriptors)
    np.testing.assert_array_equal(optimizer.center(state), population[2])
    assert float(optimizer.report(state)["num_rejected"]) == 1.0
    assert int(state.num_invalid) == 0


def test_an_empty_archive_lets_the_first_population_vary() -> None:
    optimizer = MAPElites(population_size=50, **GRID)
    population, state = after_tell(optimizer, jnp.zeros(50), jnp.full((50, 2), jnp.nan))
    assert not np.any(state.archive.is_filled)
    np.testing.assert_array_equal(optimizer.center(state), state.best_params)
    distances = np.asarray(state.population - population)
    assert np.all(np.isfinite(distances))
    assert 0.001 < np.abs(distances).mean() < 0.1


def test_children_come_from_the_archive() -> None:
    optimizer = MAPElites(population_size=200, **GRID)
    fitness = jnp.where(jnp.arange(200) == 17, 1.0, 0.0)
    population, state = after_tell(optimizer, fitness, jnp.zeros((200, 2)))
    distances = np.asarray(state.population) - np.asarray(population[17])[None]
    np.testing.assert_allclose(distances.std(axis=0), 0.01, rtol=0.25)


class Marked(Emitter):
    """Emits children whose genes are all `mark`, and counts those that entered the archive."""

    metric = "qd/added_by_mark"
    mark: float = pytree_field(static=True)

    def init(self, params: Params) -> Array:
        return jnp.zeros((), jnp.int32)

    def emit(self, elites: Elites, state: Array, hyperparameters: Any, key: Array, num_children: int) -> Params:
        return jnp.full_like(elites.sample(key, num_children), self.mark)

    def update(self, state: Array, is_added: Array) -> Array:
        return state + jnp.sum(is_added)


def test_every_emitter_has_its_own_places_and_hears_of_its_own_children() -> None:
    emitters = ((Marked(mark=7.0), 2), (IsoLine(), 3), (Marked(mark=9.0), 1))
    optimizer = MAPElites(population_size=6, emitters=emitters, **GRID)
    descriptors = jnp.linspace(-0.9, 0.9, 12).reshape(6, 2)
    _, state = after_tell(optimizer, jnp.zeros(6), descriptors)
    assert np.asarray(state.num_added).tolist() == [0, 0, 0], "the first population is nobody's"
    population, state = optimizer.ask(state)
    np.testing.assert_array_equal(population[:2], np.full((2, 3), 7.0))
    np.testing.assert_array_equal(population[5:], np.full((1, 3), 9.0))
    assert not np.any(np.isin(population[2:5], [7.0, 9.0]))
    state = optimizer.tell(state, jnp.asarray([1.0, -1.0, 1.0, 1.0, np.nan, -1.0]), descriptors)
    assert np.asarray(state.num_added).tolist() == [1, 2, 0]
    assert [int(own) for own in (state.emitter_states[0], state.emitter_states[2])] == [2 + 1, 1 + 0]
    _, state = optimizer.ask(state)
    state = optimizer.tell(state, jnp.full(6, np.nan), descriptors)
    assert np.asarray(state.num_added).tolist() == [0, 0, 0], "of a generation without valid individuals"


def test_emitters_fill_the_population_exactly() -> None:
    with pytest.raises(InvalidInputError, match="3 places; expected population_size=4"):
        MAPElites(population_size=4, emitters=((IsoLine(), 3),), **GRID)


def test_the_first_individuals_are_random_as_long_as_asked_for() -> None:
    optimizer = MAPElites(population_size=200, num_random=500, **GRID)
    state = optimizer.init(jnp.full(3, 0.2), jax.random.key(1))
    spreads = []
    for _ in range(4):
        population, state = optimizer.ask(state)
        spreads.append(float(jnp.mean(jnp.std(population[1:], axis=0))))
        state = optimizer.tell(state, jnp.where(jnp.arange(200) == 17, 1.0, 0.0), jnp.zeros((200, 2)))
    np.testing.assert_allclose(spreads[:3], 0.5, rtol=0.1)
    assert spreads[3] < 0.1


def test_a_generation_leaves_the_structure_of_the_state_as_it_was() -> None:
    optimizer = MAPElites(population_size=3, **GRID)
    before = optimizer.init(jnp.full(3, 0.2), jax.random.key(1))
    _, after = after_tell(optimizer, jnp.zeros(3), jnp.zeros((3, 2)))
    assert jax.tree.structure(before) == jax.tree.structure(after)
    jax.tree.map(lambda one, other: np.testing.assert_equal(one.shape, other.shape), after, before)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"archive": "gird"}, UnknownNameError, "Did you mean 'grid'"),
        ({"archive": "cvt"}, InvalidInputError, "a single number"),
        ({"cells": (16,)}, InvalidInputError, "each of the 2 descriptors"),
    ],
)
def test_impossible_archives_are_errors(changes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MAPElites(population_size=3, **GRID | changes)


def test_every_descriptor_needs_its_bounds() -> None:
    with pytest.raises(InvalidInputError, match="a bound for each descriptor"):
        MAPElites(population_size=3, **GRID, descriptors=("last:obs.0",))


def test_the_qd_score_has_an_offset_and_a_negative_sum_is_warned_about() -> None:
    fitness, descriptors = jnp.array([-3.5, 2.0]), jnp.array([[0.1, 0.1], [0.9, 0.9]])
    for offset, score in [(0.0, -1.5), (3.5, 5.5)]:
        optimizer = MAPElites(population_size=2, qd_offset=offset, **GRID)
        _, state = after_tell(optimizer, fitness, descriptors)
        report = {name: float(value) for name, value in optimizer.report(state).items()}
        assert report["qd_score"] == score
        warning = optimizer.warning(report)
        assert ("set agent.qd_offset to at least 4" in warning.lower()) == (offset == 0.0), warning
        assert optimizer.describe(state)["qd_offset"] == offset
    empty = optimizer.init(jnp.full(3, 0.2), jax.random.key(0))
    assert optimizer.warning({name: float(value) for name, value in optimizer.report(empty).items()}) == ""
