"""Archives against a Python dict, and cells against their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError, ShapeError
from rookery.evolution.archives import Archive, ArchiveState, CVTArchive, GridArchive

GRID = GridArchive(low=(-1.0, 0.0), high=(1.0, 10.0), cells=(4, 3))
CVT = CVTArchive(low=(-1.0, 0.0), high=(1.0, 10.0), cells=12)
ARCHIVES = pytest.mark.parametrize("archive", [GRID, CVT], ids=["grid", "cvt"])
EXAMPLE = {"name": jnp.zeros(()), "pair": jnp.zeros(2)}


def individuals(names: np.ndarray) -> dict[str, jax.Array]:
    """Make individuals that can be told apart by their genes."""
    names = jnp.asarray(names, jnp.float32)
    return {"name": names, "pair": jnp.stack([names, -names], axis=1)}


def filled_cells(state: ArchiveState) -> dict[int, tuple[float, float]]:
    """Return fitness and name of what lies in the filled cells."""
    cells = np.flatnonzero(np.asarray(state.is_filled))
    np.testing.assert_array_equal(state.params["pair"], np.stack([state.params["name"], -state.params["name"]], axis=1))
    return {int(cell): (float(state.fitness[cell]), float(state.params["name"][cell])) for cell in cells}


@ARCHIVES
def test_an_archive_keeps_what_a_dict_would_keep(archive: Archive) -> None:
    random = np.random.default_rng(0)
    add = jax.jit(archive.add_and_tell)
    state, kept, best_descriptors, num_rejected = archive.init(EXAMPLE), {}, {}, 0
    for batch in range(6):
        names = 100.0 * batch + np.arange(50) + 1.0
        fitness = np.round(random.normal(size=50)).astype(np.float32)
        descriptors = random.normal([0.0, 5.0], [1.0, 5.0], (50, 2)).astype(np.float32)
        fitness[random.random(50) < 0.05] = np.nan
        descriptors[random.random(50) < 0.05, 0] = np.inf
        state, is_added = add(state, individuals(names), jnp.asarray(fitness), jnp.asarray(descriptors))
        present = [name for _, name in filled_cells(state).values()]
        np.testing.assert_array_equal(is_added, np.isin(names, present))
        for name, value, descriptor in zip(names, fitness, descriptors, strict=True):
            if not (np.isfinite(value) and np.all(np.isfinite(descriptor))):
                num_rejected += 1
                continue
            cell = int(archive.cells_of(jnp.asarray(descriptor)[None])[0])
            if cell not in kept or value > kept[cell][0]:
                kept[cell], best_descriptors[cell] = (float(value), float(name)), descriptor
    assert filled_cells(state) == kept
    assert int(state.num_rejected) == num_rejected > 0
    for cell, descriptor in best_descriptors.items():
        np.testing.assert_array_equal(state.descriptors[cell], descriptor)


@ARCHIVES
def test_batches_one_after_the_other_equal_one_batch(archive: Archive) -> None:
    random = np.random.default_rng(1)
    fitness = jnp.asarray(np.round(random.normal(size=60)), jnp.float32)
    descriptors = jnp.asarray(random.uniform([-1.0, 0.0], [1.0, 10.0], (60, 2)), jnp.float32)
    population = individuals(np.arange(60))
    whole = archive.add(archive.init(EXAMPLE), population, fitness, descriptors)
    parts = archive.init(EXAMPLE)
    for start in range(0, 60, 20):
        rows = slice(start, start + 20)
        part = jax.tree.map(lambda leaf, rows=rows: leaf[rows], population)
        parts = archive.add(parts, part, fitness[rows], descriptors[rows])
    jax.tree.map(np.testing.assert_array_equal, whole, parts)


def test_of_equals_the_earlier_stays() -> None:
    descriptors = jnp.full((3, 2), 0.5)
    state = GRID.add(GRID.init(EXAMPLE), individuals(np.asarray([1, 2, 3])), jnp.asarray([4.0, 5.0, 5.0]), descriptors)
    state = GRID.add(state, individuals(np.asarray([7, 8, 9])), jnp.asarray([5.0, 5.0, 4.0]), descriptors)
    assert list(filled_cells(state).values()) == [(5.0, 2.0)]


def test_grid_cells_are_numbered_with_the_last_descriptor_running_fastest_and_borders_belong_to_them() -> None:
    descriptors = jnp.asarray([[-1.0, 0.0], [-0.9, 9.9], [-0.4, 5.0], [1.0, 10.0], [99.0, -99.0], [0.01, 3.0]])
    np.testing.assert_array_equal(GRID.cells_of(descriptors), [0, 2, 4, 11, 9, 6])


def test_cvt_cells_are_those_of_the_nearest_centroid() -> None:
    descriptors = np.random.default_rng(2).uniform([-1.0, 0.0], [1.0, 10.0], (500, 2))
    scale = np.asarray([2.0, 10.0])
    distances = np.linalg.norm((descriptors[:, None] - CVT.centroids[None]) / scale, axis=2)
    np.testing.assert_array_equal(CVT.cells_of(jnp.asarray(descriptors, jnp.float32)), distances.argmin(axis=1))


@ARCHIVES
def test_a_centroid_lies_in_its_cell(archive: Archive) -> None:
    assert archive.centroids.shape == (archive.num_cells, 2)
    np.testing.assert_array_equal(archive.cells_of(jnp.asarray(archive.centroids)), np.arange(archive.num_cells))


def test_cvt_cells_are_of_about_equal_size_in_many_dimensions() -> None:
    archive = CVTArchive(low=(0.0,) * 4, high=(1.0, 2.0, 3.0, 4.0), cells=64)
    descriptors = np.random.default_rng(3).uniform(0.0, [1.0, 2.0, 3.0, 4.0], (20_000, 4))
    cells = archive.cells_of(jnp.asarray(descriptors, jnp.float32))
    sizes = np.bincount(np.asarray(cells), minlength=64) / 20_000 * 64
    # Cells around centroids that are merely drawn at random differ by 0.55, and by factors of 20.
    assert sizes.std() < 0.3
    assert sizes.min() > 0.4


def test_equal_settings_give_equal_centroids() -> None:
    other = CVTArchive(low=(-1.0, 0.0), high=(1.0, 10.0), cells=12)
    np.testing.assert_array_equal(CVT.centroids, other.centroids)


@ARCHIVES
def test_samples_come_uniformly_from_the_filled_cells_and_never_from_an_empty_one(archive: Archive) -> None:
    descriptors = jnp.asarray(archive.centroids)[jnp.asarray([1, 5, 11])]
    state = archive.add(archive.init(EXAMPLE), individuals(np.asarray([1, 2, 3])), jnp.arange(3.0), descriptors)
    drawn = archive.sample(state, jax.random.key(0), 30_000)
    names, counts = np.unique(drawn["name"], return_counts=True)
    np.testing.assert_array_equal(names, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(counts / 30_000, 1 / 3, atol=0.015)
    np.testing.assert_array_equal(drawn["pair"][:, 1], -drawn["name"])


def test_the_only_filled_cell_is_the_only_one_drawn_wherever_it_is() -> None:
    for cell in range(GRID.num_cells):
        descriptor = jnp.asarray(GRID.centroids[cell])[None]
        state = GRID.add(GRID.init(EXAMPLE), individuals(np.asarray([cell + 1])), jnp.zeros(1), descriptor)
        np.testing.assert_array_equal(GRID.sample(state, jax.random.key(cell), 20)["name"], np.full(20, cell + 1))


def test_coverage_score_and_best_of_a_case_worked_by_hand() -> None:
    descriptors = jnp.asarray(GRID.centroids)[jnp.asarray([0, 3, 4])]
    state = GRID.add(GRID.init(EXAMPLE), individuals(np.asarray([7, 8, 9])), jnp.asarray([-5.0, 2.0, 1.0]), descriptors)
    assert float(GRID.coverage(state)) == 0.25
    assert float(GRID.qd_score(state)) == -2.0
    assert float(GRID.qd_score(state, offset=10.0)) == 28.0
    params, fitness = GRID.best(state)
    assert (float(params["name"]), float(fitness)) == (8.0, 2.0)


def test_an_empty_archive_covers_nothing_and_its_best_is_minus_infinity() -> None:
    state = GRID.init(EXAMPLE)
    assert float(GRID.coverage(state)) == 0.0
    assert float(GRID.qd_score(state, offset=10.0)) == 0.0
    assert float(GRID.best(state)[1]) == -np.inf


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": (0.0,), "high": (1.0, 1.0), "cells": (2,)}, "one bound per descriptor"),
        ({"low": (), "high": (), "cells": ()}, "one bound per descriptor"),
        ({"low": (1.0,), "high": (1.0,), "cells": (2,)}, "must be below"),
        ({"low": (0.0,), "high": (np.inf,), "cells": (2,)}, "finite"),
        ({"low": (0.0,), "high": (1.0,), "cells": (2, 2)}, "each of the 1 descriptors"),
        ({"low": (0.0,), "high": (1.0,), "cells": (0,)}, "cells=0"),
    ],
)
def test_impossible_grids_are_errors(settings: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        GridArchive(**settings)


def test_descriptors_of_another_size_are_an_error() -> None:
    with pytest.raises(ShapeError, match=r"descriptors are \[3, 1\]; expected \[3, 2\]"):
        GRID.add(GRID.init(EXAMPLE), individuals(np.arange(3)), jnp.zeros(3), jnp.zeros((3, 1)))
