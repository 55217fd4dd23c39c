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
from rookery.evolution import ECState, EvoOptimizer
from rookery.evolution.archives import Archive, ArchiveState, CVTArchive, GridArchive
from rookery.evolution.mutation import cloud_around, iso_line
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, as_mappable_key, index_tree, pytree_field, where_tree
from rookery.workflows.evolution import ECWorkflow

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


class MAPElites(EvoOptimizer):
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
    cell_archive: Archive = pytree_field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.descriptors) != len(self.low):
            raise InvalidInputError(
                f"descriptors={list(self.descriptors)} and low={list(self.low)}: expected a bound for each descriptor."
            )
        self.cell_archive = make_archive(self.archive, self.cells, self.low, self.high)  # type: ignore[misc]

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
        )

    def sample(self, state: MAPElitesState, key: Key) -> Params:
        return self.share(state.population)

    def tell(self, state: MAPElitesState, fitness: Array, descriptors: Array) -> MAPElitesState:  # type: ignore[override]
        """Learn from the fitness `[P]` and the descriptors `[P, K]` of the individuals that `ask` returned."""
        return super().tell(state.replace(descriptors=self.gathered(descriptors)), fitness)

    def update(self, state: MAPElitesState, fitness: Array, key: Key) -> MAPElitesState:
        first_key, second_key, variation_key = jax.random.split(key, 3)
        fitness = jnp.where(state.is_valid, fitness, jnp.nan)  # NaN fills no cell
        archive = self.cell_archive.add(state.archive, state.population, fitness, state.descriptors)
        is_empty = ~jnp.any(archive.is_filled)

        def draw(key: Key) -> Params:
            elites = self.cell_archive.sample(archive, key, self.population_size)
            return where_tree(is_empty, state.population, elites)

        population = iso_line(
            draw(first_key),
            draw(second_key),
            variation_key,
            state.hyperparameters.iso_std,
            state.hyperparameters.line_std,
        )
        return state.replace(archive=archive, population=population)

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
        return {
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
