"""Spaces as JSON."""

import json
from typing import Any

import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, from_json, to_json

SPACES = [
    Box(-1.0, 1.0, (3,)),
    Box(np.array([0.1, -np.inf]), np.array([np.inf, 1e300]), dtype=np.float64),
    Box(np.float32(0.1), np.float32(0.3), ()),
    Box(-0.0, 0.0, (2,)),
    Box(-1, 1, (0,)),
    Box(0, 255, (4, 4, 3), np.uint8),
    Box(0, 2**64 - 1, (1,), np.uint64),
    Box(False, True, (2,), np.bool_),
    Box(-1.0, 1.0, (2,), ">f4"),
    Discrete(5),
    Discrete(5, -2, np.int64),
    MultiDiscrete([[2, 3], [4, 5]]),
    MultiDiscrete([2, 2], [1, -1], np.int64),
    MultiBinary(3),
    MultiBinary((2, 3)),
    Dict(b=Box(-1.0, 1.0, (2,)), a=Tuple([Discrete(2), Dict()])),
    Tuple([]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_read_back_from_json_equals_itself(space: Space) -> None:
    text = json.dumps(to_json(space), allow_nan=False)
    read = from_json(json.loads(text))
    assert read == space
    assert hash(read) == hash(space)


def test_entries_of_a_dict_keep_their_order() -> None:
    space = Dict(z=Discrete(2), a=Discrete(3))
    assert list(from_json(json.loads(json.dumps(to_json(space)))).spaces) == ["z", "a"]


def test_equal_bounds_of_an_image_are_written_once() -> None:
    assert len(json.dumps(to_json(Box(0, 255, (84, 84, 4), np.uint8)))) < 120


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"type": "Sequence"},
        {"type": "Box", "shape": [2_000_000_000], "dtype": "float32", "low": 0, "high": 1},
        {"type": "Box", "shape": [-1], "dtype": "float32", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "object", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "U9", "low": "a", "high": "b"},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": [0, 1, 2], "high": 3},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": 1, "high": 0},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": {}, "high": 0},
        {"type": "Discrete", "n": 0, "start": 0, "dtype": "int32"},
        {"type": "Discrete", "n": "many", "start": 0, "dtype": "int32"},
        {"type": "MultiBinary", "n": 10**12},
        {"type": "Dict", "spaces": [1]},
        {"type": "Tuple", "spaces": 3},
    ],
    ids=str,
)
def test_data_that_describes_no_space_is_one_error(data: Any) -> None:
    with pytest.raises(InvalidInputError):
        from_json(data)


def test_a_deeply_nested_space_is_refused() -> None:
    data: dict[str, Any] = to_json(Discrete(2))
    for _ in range(5000):
        data = {"type": "Tuple", "spaces": [data]}
    with pytest.raises(InvalidInputError, match="nested"):
        from_json(data)
