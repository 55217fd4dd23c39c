"""MAP-Elites: the fittest individual for every kind of behavior (Mouret & Clune, 2015).

Departures from the paper: a whole population is varied and evaluated at once, along the lines between elites
(Vassiliades & Mouret, 2018), and the archive may be a centroidal Voronoi tessellation (Vassiliades et al., 2018).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InvalidInputError, unknown_name
from rookery.evolution import ECState, EvoOptimizer
from rookery.evolution.archives import Archive, ArchiveState, CVTArchive, GridArchive
from rookery.evolution.mutation import cloud_around, iso_line
from rookery.hyperparameters import Hyperparameters, Scalar
from rookery.types import Array, Key, Params, as_mappable_key, pytree_field, where_tree
from rookery.workflows.evolution import ECWorkflow
from rookery.workflows.generations import ECConfig

ARCHIVES = ("grid", "cvt")


class MAPElitesHyperparameters(Hyperparameters):
    """The numbers of MAP-Elites."""

    RANGES: ClassVar = {
        "initial_std": (0.0, float("inf")),
        "iso_std": (0.0, float("inf")),
        "line_std": (0.0, float("inf")),
    }

    initial_std: Scalar = 0.5
    iso_std: Scalar = 0.01
    line_std: Scalar = 0.2


class MAPElitesState(ECState):
    """The archive, the individuals `[P, ...]` to be tried next, and the descriptors `[P, K]` of those tried last."""

    archive: ArchiveState
    population: Params
    descriptors: Array


class MAPElites(EvoOptimizer):
    """Varies individuals drawn from the archive, and puts those that are the best of their kind back into it."""

    hyperparameters: MAPElitesHyperparameters = pytree_field(default_factory=MAPElitesHyperparameters)
    descriptors: tuple[str, ...] = pytree_field(static=True)
    archive: str = pytree_field(static=True, default="grid")
    cells: tuple[int, ...] = pytree_field(static=True)
    low: tuple[float, ...] = pytree_field(static=True)
    high: tuple[float, ...] = pytree_field(static=True)
    cell_archive: Archive = pytree_field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
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
        fitness = jnp.where(state.is_valid, fitness, jnp.nan)  # which must not fill a cell
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

    def describe(self, state: MAPElitesState) -> dict[str, Any]:
        is_grid = isinstance(self.cell_archive, GridArchive)
        return {
            "kind": "archive",
            "axes": list(self.descriptors),
            "low": list(self.low),
            "high": list(self.high),
            "cells": list(self.cells) if is_grid else None,
            "centroids": None if is_grid else np.asarray(self.cell_archive.centroids).tolist(),
            "fitness": [float(value) if np.isfinite(value) else None for value in np.asarray(state.archive.fitness)],
        }

    def report(self, state: MAPElitesState) -> dict[str, Array]:
        return {
            "coverage": self.cell_archive.coverage(state.archive),
            "qd_score": self.cell_archive.qd_score(state.archive),
            "num_rejected": state.archive.num_rejected.astype(jnp.float32),
        }


def make_archive(name: str, cells: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...]) -> Archive:
    """Make the archive of this name: `cells` are those along each descriptor of a grid, or the one number of a CVT."""
    if name not in ARCHIVES:
        raise unknown_name("archive", name, ARCHIVES)
    if name == "grid":
        return GridArchive(low=low, high=high, cells=cells)
    if len(cells) != 1:
        raise InvalidInputError(f"cells={list(cells)}: a CVT archive has one number of cells, like [1024].")
    return CVTArchive(low=low, high=high, cells=cells[0])


@dataclass(frozen=True)
class MAPElitesConfig(ECConfig):
    """The shapes of MAP-Elites; the descriptors are measures of an episode, each with its bounds."""

    descriptors: tuple[str, ...] = ("last:obs.0", "last:obs.1")
    archive: str = "grid"
    cells: tuple[int, ...] = (32, 32)
    low: tuple[float, ...] = (-2.4, -3.0)
    high: tuple[float, ...] = (2.4, 3.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.descriptors) != len(self.low):
            raise InvalidInputError(
                f"descriptors={list(self.descriptors)} and low={list(self.low)}: expected a bound for each descriptor."
            )


class MAPElitesWorkflow(ECWorkflow):
    """MAP-Elites, for quality diversity."""

    agent_name = "map_elites"
    config_class = MAPElitesConfig
    hyperparameters_class = MAPElitesHyperparameters
    optimizer_class = MAPElites
