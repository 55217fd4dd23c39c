"""MAP-Elites: the fittest individual for every kind of behavior (Mouret & Clune, 2015).

Departures from the paper: a whole population is varied and evaluated at once. Variation is along the lines between
elites (Vassiliades & Mouret, 2018). The archive may be a centroidal Voronoi tessellation (Vassiliades et al., 2018).
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.configuration import setting
from rookery.errors import InvalidInputError
from rookery.evolution import ECState
from rookery.evolution.archives import Archive, ArchiveState, CVTArchive, GridArchive
from rookery.evolution.emitters import Elites, Emitter, IsoLine
from rookery.evolution.mutation import cloud_around
from rookery.evolution.populations import PopulationOptimizer
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, PyTree, as_mappable_key, index_tree, pytree_field, where_tree
from rookery.workflows.evolution.workflow import ECWorkflow

ARCHIVES = ("grid", "cvt")


class MAPElitesHyperparameters(Hyperparameters):
    """The hyper-parameters of MAP-Elites."""

    initial_std: Scalar = number(
        0.5, low=0.0, schedule=False, help="standard deviation of the first population around the initial network"
    )
    iso_std: Scalar = number(0.01, low=0.0, help="standard deviation of a variation in all directions")
    line_std: Scalar = number(
        0.2, low=0.0, help="standard deviation along the line to another elite, as a fraction of the distance"
    )


class MAPElitesState(ECState):
    """The archive, the individuals `[P, ...]` to evaluate next, and the descriptors `[P, K]` of the last ones."""

    archive: ArchiveState
    population: Params
    descriptors: Array
    emitter_states: tuple[PyTree, ...]
    num_added: Array
    """Of each emitter: how many of its children entered the archive in the last generation."""
    initial: Params
    """The initial network, if later generations sample around it as well."""


class MAPElites(PopulationOptimizer):
    """Varies individuals sampled from the archive; each cell of the archive keeps its fittest individual."""

    hyperparameters: MAPElitesHyperparameters = pytree_field(default_factory=MAPElitesHyperparameters)
    descriptors: tuple[str, ...] = setting(
        ("last:obs.0", "last:obs.1"), help="measures of an episode that tell behaviors apart: sum, mean or last"
    )
    archive: str = setting("grid", choices=ARCHIVES, help="grid, or cvt: cells of equal size in many dimensions")
    cells: tuple[int, ...] = setting((32, 32), help="grid: along each descriptor; cvt: one number, like [1024]")
    low: tuple[float, ...] = setting((-2.4, -3.0), help="lower bound of each descriptor")
    high: tuple[float, ...] = setting(
        (2.4, 3.0), help="upper bound of each descriptor; values beyond belong to the outermost cells"
    )
    qd_offset: float = setting(0.0, help="added to every fitness in qd_score; choose it so that no sum is negative")
    reevaluate: int = setting(
        0, low=0, help="episodes that every elite plays again at each evaluation, for eval/corrected_qd_score; 0: none"
    )
    emitters: tuple[tuple[Emitter, int], ...] | None = pytree_field(static=True, default=None)
    """The emitters and the number of places of each, in their order; None: `IsoLine` has all."""
    num_random: int = pytree_field(static=True, default=0)
    """The first individuals, at least those of the first generation, are samples around the initial network."""
    cell_archive: Archive = pytree_field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        num_places = sum(places for _, places in self.parts)
        if num_places != self.population_size:
            raise InvalidInputError(
                f"the emitters have {num_places} places; expected population_size={self.population_size}."
            )
        if len(self.descriptors) != len(self.low):
            raise InvalidInputError(
                f"descriptors={list(self.descriptors)} and low={list(self.low)}: expected a bound for each descriptor."
            )
        self.cell_archive = make_archive(self.archive, self.cells, self.low, self.high)  # type: ignore[misc]

    @property
    def parts(self) -> tuple[tuple[Emitter, int], ...]:
        """The emitters and the number of places of each."""
        return self.emitters or ((IsoLine(), self.population_size),)

    def init(self, params: Params, key: Key) -> MAPElitesState:
        state_key, cloud_key = jax.random.split(as_mappable_key(key))
        common = self.common_fields(params, state_key)
        initial_std = common["hyperparameters"].initial_std
        population = cloud_around(params, cloud_key, self.population_size, initial_std)
        return MAPElitesState(
            **common,
            archive=self.cell_archive.init(params),
            population=population,
            descriptors=jnp.full((self.population_size, len(self.low)), jnp.nan, jnp.float32),
            emitter_states=tuple(emitter.init(params) for emitter, _ in self.parts),
            num_added=jnp.zeros(len(self.parts), jnp.int32),
            initial=params if self.num_random > self.population_size else None,
        )

    def is_random(self, generation: Array) -> Array:
        """Tell whether the individuals of a generation are random instead of children."""
        return generation * self.population_size < max(self.num_random, 1)

    def tell(self, state: MAPElitesState, fitness: Array, descriptors: Array) -> MAPElitesState:  # type: ignore[override]
        """Learn from the fitness `[P]` and the descriptors `[P, K]` of the individuals that `ask` returned."""
        none_added = jnp.zeros_like(state.num_added)
        state = state.replace(descriptors=self.gathered(descriptors), num_added=none_added)
        return super().tell(state, fitness)

    def update(self, state: MAPElitesState, fitness: Array, key: Key) -> MAPElitesState:
        fitness = jnp.where(state.is_valid, fitness, jnp.nan)  # NaN fills no cell
        archive, is_added = self.cell_archive.add_and_tell(state.archive, state.population, fitness, state.descriptors)
        is_added_by = jnp.split(is_added, np.cumsum([places for _, places in self.parts])[:-1])
        state = state.replace(
            archive=archive,
            emitter_states=tuple(
                emitter.update(own, added)
                for (emitter, _), own, added in zip(self.parts, state.emitter_states, is_added_by, strict=True)
            ),
            num_added=jnp.where(
                self.is_random(state.generation), 0, jnp.stack([jnp.sum(added) for added in is_added_by])
            ),
        )
        return state.replace(population=self._emit(state, key))

    def _emit(self, state: MAPElitesState, key: Key) -> Params:
        """Make the next population: the children of each emitter in its places, or random individuals."""
        if state.initial is None:
            return self._children(state, key)

        def sampled() -> Params:
            return cloud_around(state.initial, key, self.population_size, state.hyperparameters.initial_std)

        return jax.lax.cond(self.is_random(state.generation + 1), sampled, lambda: self._children(state, key))

    def _children(self, state: MAPElitesState, key: Key) -> Params:
        elites = Elites(archive=self.cell_archive, contents=state.archive, population=state.population)
        keys = [key] if len(self.parts) == 1 else jax.random.split(key, len(self.parts))
        children = [
            emitter.emit(elites, own, state.hyperparameters, emitter_key, places)
            for (emitter, places), own, emitter_key in zip(self.parts, state.emitter_states, keys, strict=True)
        ]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *children)

    def center(self, state: MAPElitesState) -> Params:
        params, fitness = self.cell_archive.best(state.archive)
        return where_tree(jnp.isfinite(fitness), params, state.best_params)

    @property
    def measures(self) -> tuple[str, ...]:
        return self.descriptors

    def tell_episodes(self, state: MAPElitesState, returns: Array, measures: Array) -> MAPElitesState:
        return self.tell(state, self.fitness(returns, measures), jnp.mean(measures, axis=1))

    @property
    def num_replays(self) -> int:
        return self.reevaluate

    def elites(self, state: MAPElitesState) -> tuple[Params, Array]:
        filled_first = jnp.argsort(~state.archive.is_filled)
        return index_tree(state.archive.params, filled_first), jnp.sum(state.archive.is_filled, dtype=jnp.int32)

    def reevaluated(self, state: MAPElitesState, elites: Params, returns: Array, measures: Array) -> MAPElitesState:
        fitness, empty = self.fitness(returns, measures), self.cell_archive.init(state.best_params)
        return state.replace(archive=self.cell_archive.add(empty, elites, fitness, jnp.mean(measures, axis=1)))

    def describe(self, state: MAPElitesState) -> dict[str, Any]:
        is_grid = isinstance(self.cell_archive, GridArchive)
        return {
            "kind": "archive",
            "axes": list(self.descriptors),
            "low": list(self.low),
            "high": list(self.high),
            "cells": list(self.cells) if is_grid else None,
            "centroids": None if is_grid else np.asarray(self.cell_archive.centroids).tolist(),
            "qd_offset": self.qd_offset,
            "fitness": [float(value) if np.isfinite(value) else None for value in np.asarray(state.archive.fitness)],
        }

    def report(self, state: MAPElitesState) -> dict[str, Array]:
        added = {
            emitter.metric: state.num_added[index].astype(jnp.float32) for index, (emitter, _) in enumerate(self.parts)
        }
        return added | {
            "coverage": self.cell_archive.coverage(state.archive),
            "qd_score": self.cell_archive.qd_score(state.archive, self.qd_offset),
            "max_fitness": jnp.max(state.archive.fitness),
            "archive_mean": jnp.mean(state.archive.fitness, where=state.archive.is_filled),
            "lowest_elite": jnp.min(jnp.where(state.archive.is_filled, state.archive.fitness, jnp.inf)),
            "num_rejected": state.archive.num_rejected.astype(jnp.float32),
        }

    def warning(self, report: Mapping[str, float]) -> str:
        lowest = report.get("lowest_elite", 0.0)
        if lowest + self.qd_offset >= 0.0:
            return ""
        return (
            f"agent.qd_offset={self.qd_offset:g}: the archive has a fitness of {lowest:g}, so qd_score may fall while "
            f"the archive improves. Set agent.qd_offset to at least {math.ceil(-lowest)}, the same for all runs that "
            "are compared."
        )


def make_archive(name: str, cells: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...]) -> Archive:
    """Make an archive; `cells` has one number for each descriptor of a grid, or a single number for a CVT."""
    if name == "grid":
        return GridArchive(low=low, high=high, cells=cells)
    if len(cells) != 1:
        raise InvalidInputError(f"cells={list(cells)}: a CVT archive takes a single number, like [1024].")
    return CVTArchive(low=low, high=high, cells=cells[0])


class MAPElitesWorkflow(ECWorkflow):
    """MAP-Elites, for quality diversity."""

    agent_name = "map_elites"
    is_same_on_devices = True
    optimizer_class = MAPElites
