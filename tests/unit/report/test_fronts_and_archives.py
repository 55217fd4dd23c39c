"""What evolution ends with: read as it was written, and named where it is damaged."""

from typing import Any

import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.report.fronts_and_archives import Archive, Front, parse_populations
from tests.unit.report.evolved_runs import cvt_archive, front, grid_archive


def test_individuals_without_finite_objectives_are_left_out_of_a_front() -> None:
    entry = {
        "kind": "front",
        "axes": ["a", "b"],
        "points": [[1, 2], [float("nan"), 0], [0, float("-inf")], [None, 1], [2, 1]],
        "is_front": [True, False, True, False, True],
    }
    (read,) = parse_populations([entry])
    assert isinstance(read, Front)
    np.testing.assert_array_equal(read.points, [[1, 2], [2, 1]])
    np.testing.assert_array_equal(read.is_front, [True, True])


def test_cells_that_are_null_or_not_finite_are_empty() -> None:
    entry = {**grid_archive((2, 2)), "fitness": [1.5, None, float("-inf"), 2.0]}
    (read,) = parse_populations([entry])
    assert isinstance(read, Archive)
    assert read.num_filled == 2
    assert read.qd_score == 3.5


def test_a_run_may_have_no_population() -> None:
    assert parse_populations([]) == ()


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (7, "expected an object"),
        ({}, "'kind' is missing"),
        ({"kind": "swarm"}, "expected 'front', 'archive' or 'members'"),
        ({**front(), "axes": ["only"]}, "expected a list of at least 2"),
        ({**front(), "points": [[1, 2, 3]]}, "expected 2 numbers in each row"),
        ({**front(), "points": [[1, 2], [3]]}, "inhomogeneous"),
        ({**front(), "points": "text"}, "could not convert"),
        ({**front(), "is_front": [True]}, r"is_front has the shape \[1\], expected \[60\]"),
        ({**grid_archive(), "fitness": [1.0]}, r"fitness has the shape \[1\], expected \[1024\]"),
        ({**grid_archive(), "corrected_fitness": [1.0]}, r"corrected_fitness has the shape \[1\], expected \[1024\]"),
        ({**grid_archive(), "fitness": [{}] * 1024}, "float"),
        ({**grid_archive(), "fitness": [10**400] * 1024}, "int too large"),
        ({**grid_archive(), "cells": [32]}, "expected a number for each of 2 axes"),
        ({**grid_archive(), "cells": [-32, -32]}, "expected a number for each of 2 axes"),
        ({**grid_archive(), "low": [0.0, 0.0], "high": [1.0, 0.0]}, "is not below"),
        ({**grid_archive(), "low": [None, 0.0]}, "is not below"),
        ({**grid_archive(), "high": None}, "high has the shape"),
        ({**cvt_archive(), "centroids": None}, "centroids has the shape|expected 2 numbers"),
        ({**cvt_archive(2), "centroids": [[0.0, 0.0], [None, 0.0]]}, "centroids are not all numbers"),
        ({**cvt_archive(), "centroids": [], "fitness": []}, "there are no cells"),
    ],
)
def test_a_damaged_entry_is_named_with_what_is_wrong(entry: Any, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=f"(?s)entry 0 of population.json is damaged: .*({problem})"):
        parse_populations([entry])


def test_seeds_must_have_ended_with_the_same_kind() -> None:
    with pytest.raises(InvalidInputError, match=r"entry 1 of population\.json is of a different kind"):
        parse_populations([front(), grid_archive()])
    with pytest.raises(InvalidInputError, match=r"entry 1 of population\.json is of a different kind"):
        parse_populations([front(), {**front(), "axes": ["x", "y"]}])
