"""Quality-diversity archives: the fittest individual of each cell of a behavior space.

A descriptor describes the behavior of an individual by K numbers. An archive divides the space of descriptors into
cells and keeps the best individual of each. Descriptors are clipped to the bounds. Individuals with a NaN or infinite
fitness or descriptor are rejected and counted.
"""

import functools
import math
from abc import ABC, abstractmethod
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from rookery.errors import InvalidInputError, ShapeError, check_count
from rookery.types import Key, Params, PyTreeData, PyTreeNode, index_tree, pytree_field

AnyArray = TypeVar("AnyArray", Array, np.ndarray)


class ArchiveState(PyTreeData):
    """The contents of the cells, `[C, ...]`; empty cells have fitness minus infinity."""

    params: Params
    fitness: Array
    descriptors: Array
    num_rejected: Array

    @property
    def is_filled(self) -> Array:
        return self.fitness > -jnp.inf


class Archive(PyTreeNode, ABC):
    """Cells between the bounds `low` and `high` of the K numbers of a descriptor."""

    low: tuple[float, ...] = pytree_field(static=True)
    high: tuple[float, ...] = pytree_field(static=True)

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise InvalidInputError(
                f"low={list(self.low)} and high={list(self.high)}: expected one bound per descriptor in each."
            )
        for low, high in zip(self.low, self.high, strict=True):
            if not (low < high and math.isfinite(low) and math.isfinite(high)):
                raise InvalidInputError(f"low={low} must be below high={high}, and both finite.")

    @property
    @abstractmethod
    def num_cells(self) -> int:
        """The number of cells."""

    @property
    @abstractmethod
    def centroids(self) -> np.ndarray:
        """The center of each cell `[C, K]`."""

    @abstractmethod
    def cells_of_shares(self, shares: Float[Array, "N K"]) -> Int[Array, " N"]:
        """Return the cells of descriptors scaled to 0 at `low` and 1 at `high`."""

    def cells_of(self, descriptors: Float[Array, "N K"]) -> Int[Array, " N"]:
        """Return the cells of descriptors."""
        low, high = jnp.asarray([self.low], descriptors.dtype), jnp.asarray([self.high], descriptors.dtype)
        return self.cells_of_shares(jnp.clip((descriptors - low) / (high - low), 0.0, 1.0))

    def init(self, params: Params) -> ArchiveState:
        """Make an empty archive for individuals like this one."""
        return ArchiveState(
            params=jax.tree.map(lambda leaf: jnp.zeros((self.num_cells, *leaf.shape), leaf.dtype), params),
            fitness=jnp.full(self.num_cells, -jnp.inf, jnp.float32),
            descriptors=jnp.zeros((self.num_cells, len(self.low)), jnp.float32),
            num_rejected=jnp.zeros((), jnp.int32),
        )

    def add(
        self, state: ArchiveState, params: Params, fitness: Float[Array, " N"], descriptors: Float[Array, "N K"]
    ) -> ArchiveState:
        """Put individuals `[N, ...]` into their cells if they are fitter than the present ones."""
        return self.add_and_tell(state, params, fitness, descriptors)[0]

    def add_and_tell(
        self, state: ArchiveState, params: Params, fitness: Float[Array, " N"], descriptors: Float[Array, "N K"]
    ) -> tuple[ArchiveState, Bool[Array, " N"]]:
        """Put individuals into their cells; also return which of them are now in the archive."""
        if descriptors.shape != (*fitness.shape, len(self.low)):
            raise ShapeError(
                f"descriptors are {list(descriptors.shape)}; expected {[*fitness.shape, len(self.low)]}: "
                "one row per individual, one column per pair of bounds."
            )
        is_valid = jnp.isfinite(fitness) & jnp.all(jnp.isfinite(descriptors), axis=1)
        outside = self.num_cells
        cells = jnp.where(is_valid, self.cells_of(jnp.where(is_valid[:, None], descriptors, 0.0)), outside)
        fitness = jnp.where(is_valid, fitness, -jnp.inf)
        # At most one row per cell is written: the first of the fittest of this batch, if it beats the present one.
        is_fittest = fitness == jax.ops.segment_max(fitness, cells, outside + 1)[cells]
        rows = jnp.where(is_fittest, jnp.arange(len(fitness), dtype=jnp.int32), len(fitness))
        is_first = rows == jax.ops.segment_min(rows, cells, outside + 1)[cells]
        is_better = fitness > jnp.append(state.fitness, jnp.inf)[cells]
        is_added = is_fittest & is_first & is_better
        written = jnp.where(is_added, cells, outside)
        archive = ArchiveState(
            params=jax.tree.map(lambda old, new: old.at[written].set(new, mode="drop"), state.params, params),
            fitness=state.fitness.at[written].set(fitness, mode="drop"),
            descriptors=state.descriptors.at[written].set(descriptors, mode="drop"),
            num_rejected=state.num_rejected + jnp.sum(~is_valid, dtype=jnp.int32),
        )
        return archive, is_added

    def sample(self, state: ArchiveState, key: Key, num_samples: int) -> Params:
        """Sample individuals uniformly from the filled cells; at least one cell must be filled."""
        num_filled_up_to = jnp.cumsum(state.is_filled, dtype=jnp.int32)
        places = jax.random.randint(key, (num_samples,), 0, jnp.maximum(num_filled_up_to[-1], 1))
        cells = jnp.searchsorted(num_filled_up_to, places, side="right")
        return index_tree(state.params, cells)

    def coverage(self, state: ArchiveState) -> Array:
        """Return the fraction of filled cells."""
        return jnp.mean(state.is_filled, dtype=jnp.float32)

    def qd_score(self, state: ArchiveState, offset: float | Array = 0.0) -> Array:
        """Sum `fitness + offset` over the filled cells; choose `offset` so that every new cell adds to the score."""
        return jnp.sum(jnp.where(state.is_filled, state.fitness + offset, 0.0))

    def best(self, state: ArchiveState) -> tuple[Params, Array]:
        """Return the fittest individual and its fitness; minus infinity if the archive is empty."""
        cell = jnp.argmax(state.fitness)
        return index_tree(state.params, cell), state.fitness[cell]


class GridArchive(Archive):
    """A regular grid of cells (Mouret & Clune, 2015), numbered in row-major order."""

    cells: tuple[int, ...] = pytree_field(static=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.cells) != len(self.low):
            raise InvalidInputError(
                f"cells={list(self.cells)}: expected one number for each of the {len(self.low)} descriptors."
            )
        for number in self.cells:
            check_count("cells", number)

    @property
    def num_cells(self) -> int:
        return math.prod(self.cells)

    @property
    def centroids(self) -> np.ndarray:
        axes = [
            low + (np.arange(number) + 0.5) / number * (high - low)
            for low, high, number in zip(self.low, self.high, self.cells, strict=True)
        ]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes)).astype(np.float32)

    def cells_of_shares(self, shares: Float[Array, "N K"]) -> Int[Array, " N"]:
        numbers = jnp.asarray([self.cells], jnp.int32)
        places = jnp.clip((shares * numbers.astype(shares.dtype)).astype(jnp.int32), 0, numbers - 1)
        return jnp.ravel_multi_index(tuple(places.T), self.cells, mode="clip").astype(jnp.int32)


class CVTArchive(Archive):
    """A given number of cells of similar size in any number of dimensions (Vassiliades et al., 2018).

    A cell contains the descriptors whose nearest centroid is its own, measured relative to the bounds. The centroids
    are found by k-means on uniform samples and depend only on the settings.
    """

    cells: int = pytree_field(static=True)
    samples_per_cell: int = pytree_field(static=True, default=16)
    num_iterations: int = pytree_field(static=True, default=24)
    unit_centroids: np.ndarray = pytree_field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cells", "samples_per_cell", "num_iterations"):
            check_count(name, getattr(self, name))
        self.unit_centroids = _unit_centroids(  # type: ignore[misc]
            self.cells, len(self.low), self.samples_per_cell, self.num_iterations
        )

    @property
    def num_cells(self) -> int:
        return self.cells

    @property
    def centroids(self) -> np.ndarray:
        low, high = np.asarray([self.low], np.float32), np.asarray([self.high], np.float32)
        return low + np.asarray(self.unit_centroids) * (high - low)

    def cells_of_shares(self, shares: Float[Array, "N K"]) -> Int[Array, " N"]:
        return _nearest(shares, jnp.asarray(self.unit_centroids)).astype(jnp.int32)


@functools.cache
def _unit_centroids(num_cells: int, num_dimensions: int, samples_per_cell: int, num_iterations: int) -> np.ndarray:
    """Spread centroids evenly over the unit cube by Lloyd's algorithm, on the host."""
    samples = np.random.default_rng(0).random((num_cells * samples_per_cell, num_dimensions), np.float32)
    chunks = np.array_split(samples, max(len(samples) // 128, 1))
    centroids = samples[:num_cells]
    for _ in range(num_iterations):
        nearest = np.concatenate([_nearest(chunk, centroids) for chunk in chunks])
        sizes = np.bincount(nearest, minlength=num_cells)[:, None]
        sums = np.stack([np.bincount(nearest, column, num_cells) for column in samples.T], axis=1)
        centroids = np.where(sizes > 0, sums / np.maximum(sizes, 1), centroids).astype(np.float32)
    return centroids


def _nearest(points: AnyArray, centroids: AnyArray) -> AnyArray:
    """Return the index of the nearest centroid of each point."""
    num_dimensions = points.shape[1]
    distances = [(points[:, index, None] - centroids[None, :, index]) ** 2 for index in range(num_dimensions)]
    return sum(distances[1:], start=distances[0]).argmin(axis=1)
