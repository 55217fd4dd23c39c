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
    Box(np.linspace(-2, -1, 100).astype(">f4"), np.linspace(1, 2, 100), dtype=">f4"),
    Box(np.arange(100).reshape(4, 25), np.inf, dtype=np.float64),
    Box(np.arange(100) % 2 == 1, True, dtype=np.bool_),
    MultiDiscrete(np.arange(1, 101).reshape(10, 10)),
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


def test_different_bounds_of_an_image_take_few_entries_and_bytes() -> None:
    low, high = np.random.default_rng(0).uniform(size=(2, 100, 100, 4)).astype(np.float32)
    text = json.dumps(to_json(Box(low - 1, high, (100, 100, 4))))
    assert len(text) < 3 * low.nbytes
    assert text.count(",") < 10


def test_bounds_that_were_written_as_numbers_are_read() -> None:
    low = np.linspace(-2, -1, 100, dtype=np.float32)
    data = {"type": "Box", "shape": [100], "dtype": "float32", "low": low.tolist(), "high": "inf"}
    assert from_json(data) == Box(low, np.inf)


def image_of(*shape: int) -> dict[str, Any]:
    return {"type": "Box", "shape": list(shape), "dtype": "float64", "low": 0, "high": 1}


@pytest.mark.parametrize(
    "spaces",
    [[image_of(2**22)] * 3, [image_of(2)] * 300, [image_of(8, 8, 1)] * 40, [{"type": "Tuple", "spaces": []}] * 300],
    ids=["scalars", "parts", "images", "containers"],
)
def test_the_limits_count_all_parts_of_a_space(spaces: list[Any]) -> None:
    assert isinstance(from_json(spaces[0]), Space)
    with pytest.raises(InvalidInputError, match="too large"):
        from_json({"type": "Dict", "spaces": dict(zip("ab", [{"type": "Tuple", "spaces": spaces}] * 2, strict=True))})


def test_what_cannot_be_read_is_not_written() -> None:
    for space in (Box(0, 1, (2**24,), np.uint8), Tuple([Discrete(2)] * 300), Box(0, 1, (2,), np.longdouble)):
        with pytest.raises(InvalidInputError):
            to_json(space)


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
        {"type": "Box", "shape": [2], "dtype": "longdouble", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "(9,)f4", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": {"base64": "AAAA"}, "high": 3},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": {"base64": "?"}, "high": 3},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": [0, 1, 2], "high": 3},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": 1, "high": 0},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": {}, "high": 0},
        {"type": "Discrete", "n": 0, "start": 0, "dtype": "int32"},
        {"type": "Discrete", "n": 2, "start": 2**70, "dtype": "int64"},
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
