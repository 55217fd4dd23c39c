"""JSON values: what each space accepts, exactly, and what it refuses where NumPy would convert."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from rookery.json_values import JsonValueError, as_json, json_reader
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

FLOATS = Box(-1.0, 1.0, (3,))
WIDE = Box(-np.inf, np.inf, (2,), np.float64)
HALF = Box(-np.inf, np.inf, (1,), np.float16)
BYTES = Box(0, 255, (2, 2), np.uint8)
LONGS = Box(-10, 10, (1,), np.int64)
FLAGS = Box(False, True, (2,), np.bool_)
MASKED = Dict(obs=FLOATS, action_mask=MultiBinary(3))


def binary(array: np.ndarray, **changes: Any) -> dict[str, Any]:
    text = base64.b64encode(array.tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "base64": text} | changes


ACCEPTED: list[tuple[Space, Any, Any]] = [
    (FLOATS, [0, -0.5, 1], np.array([0.0, -0.5, 1.0], np.float32)),
    (FLOATS, [2, 0, 0], np.array([2.0, 0.0, 0.0], np.float32)),
    (FLOATS, binary(np.array([1, 2, 3], np.float32)), np.array([1, 2, 3], np.float32)),
    (WIDE, binary(np.array([0.5, 2], np.float64)), np.array([0.5, 2], np.float32)),
    (HALF, [65504], np.array([65504], np.float16)),
    (BYTES, [[0, 255], [1, 2]], np.array([[0, 255], [1, 2]], np.uint8)),
    (BYTES, binary(np.array([[9, 8], [7, 6]], np.uint8)), np.array([[9, 8], [7, 6]], np.uint8)),
    (LONGS, [11], np.array([11], np.int32)),
    (FLAGS, [0, True], np.array([False, True])),
    (FLAGS, binary(np.array([True, False])), np.array([True, False])),
    (Discrete(3, start=-1), -1, np.array(-1, np.int32)),
    (MultiDiscrete([2, 3]), [1, 2], np.array([1, 2], np.int32)),
    (MultiBinary(3), [0, 1, True], np.array([0, 1, 1], np.int8)),
    (MultiBinary(2), binary(np.array([1, 0], np.int8)), np.array([1, 0], np.int8)),
    (Box(0.0, 1.0, ()), 0.25, np.array(0.25, np.float32)),
    (Box(0.0, 1.0, (0,)), [], np.zeros(0, np.float32)),
]
REFUSED: dict[str, list[tuple[Space, Any]]] = {
    "type": [
        *((FLOATS, [0, 0, wrong]) for wrong in ("1", True, None, {})),
        *((Discrete(3), wrong) for wrong in (True, 1.0, 1.5, "1", None)),
        *((LONGS, [wrong]) for wrong in (True, 1.0, 1.5, "1", None)),
        *((BYTES, [[0, 1], [2, wrong]]) for wrong in (1.0, 1.5, False, "1", None)),
        *((MultiDiscrete([2, 3]), [0, wrong]) for wrong in (1.0, True, None)),
        *((MultiBinary(2), [0, wrong]) for wrong in (1.0, "1", None)),
        (Dict(a=FLOATS), [1, 2, 3]),
    ],
    "shape": [
        *((FLOATS, wrong) for wrong in ([0, 0], [0, 0, 0, 0], [[0], [0], [0]], [[0, 0, 0]], 5, "abc", None, [])),
        *((BYTES, wrong) for wrong in ([[0, 1], [2]], [[0, 1], 2], [0, 1, 2, 3])),
        (Discrete(3), [1]),
        (FLOATS, binary(np.zeros(3, np.float32), shape=[1, 3])),
        (FLOATS, binary(np.zeros(3, np.float32), shape=[2**62, 2**62])),
        (FLOATS, binary(np.zeros(3, np.float32), shape=[True, 3])),
        (FLOATS, binary(np.zeros(3, np.float32), shape="3")),
        (Tuple([FLOATS, Discrete(2)]), [[0, 0, 0]]),
        (Tuple([FLOATS, Discrete(2)]), {"0": [0, 0, 0], "1": 1}),
    ],
    "range": [
        *((FLOATS, [0, 0, wrong]) for wrong in (1e39, -1e39, 2**200, 10**400, float("inf"), float("nan"))),
        (HALF, [65520.0]),
        (WIDE, [1e300, 0.0]),
        (FLOATS, binary(np.array([0, np.nan, 0], np.float32))),
        (FLOATS, binary(np.array([0, np.inf, 0], np.float32))),
        (WIDE, binary(np.array([1e300, 0], np.float64))),
        *((BYTES, [[0, 1], [2, wrong]]) for wrong in (-1, 256, 2**70)),
        (LONGS, [2**31]),
        (LONGS, binary(np.array([2**31], np.int64))),
        *((Discrete(3), wrong) for wrong in (-1, 3, 2**40)),
        (MultiDiscrete([2, 3]), [2, 0]),
        (MultiDiscrete([2, 3]), binary(np.array([0, 3], np.int32))),
        *((MultiBinary(2), [0, wrong]) for wrong in (2, -1)),
        (MultiBinary(2), binary(np.array([0, 2], np.int8))),
        (FLAGS, binary(np.array([0, 2], np.uint8), dtype="bool")),
        (MASKED, {"obs": [0, 0, 0], "action_mask": [0, 2, 1]}),
    ],
    "dtype": [
        (FLOATS, binary(np.zeros(3, np.float64))),
        (FLOATS, binary(np.zeros(3, np.int32))),
        (BYTES, binary(np.zeros((2, 2), np.int8))),
        (FLOATS, binary(np.zeros(3, np.float32), dtype="O")),
        (FLOATS, binary(np.zeros(3, np.float32), dtype=["float32"])),
    ],
    "base64": [
        (FLOATS, binary(np.zeros(3, np.float32), base64="AAAA")),
        (FLOATS, binary(np.zeros(3, np.float32), base64="A" * 10**6)),
        (FLOATS, binary(np.zeros(3, np.float32), base64="!" * 16)),
        (FLOATS, binary(np.zeros(3, np.float32), base64="A" * 15 + "\u00e9")),
        (FLOATS, binary(np.zeros(3, np.float32), base64="A" * 14 + "==")),
        (FLOATS, binary(np.zeros(3, np.float32), base64=None)),
    ],
    "array": [
        (FLOATS, {"dtype": "float32"}),
        (FLOATS, binary(np.zeros(3, np.float32)) | {"module": "os"}),
    ],
    "names": [
        (Dict(a=FLOATS), {}),
        (Dict(a=FLOATS), {"a": [0, 0, 0], "b": 1}),
    ],
    "mask": [
        (MASKED, {"obs": [0, 0, 0], "action_mask": [0, False, 0]}),
        (MASKED, {"obs": [0, 0, 0], "action_mask": binary(np.zeros(3, np.int8))}),
    ],
}
CASES = [(code, space, value) for code, cases in REFUSED.items() for space, value in cases]


@pytest.mark.parametrize(("space", "value", "expected"), ACCEPTED, ids=str)
def test_a_value_is_read_as_an_array_of_the_dtype_of_samples(space: Space, value: Any, expected: np.ndarray) -> None:
    array = json_reader(space).read(value, "obs")
    np.testing.assert_array_equal(array, expected, strict=True)


@pytest.mark.parametrize(("code", "space", "value"), CASES, ids=lambda part: f"{part!s:.60}")
def test_what_is_not_exactly_in_the_space_is_refused(code: str, space: Space, value: Any) -> None:
    with pytest.raises(JsonValueError) as caught:
        json_reader(space, Discrete(3)).read(value, "obs")
    assert caught.value.code == code
    assert caught.value.where.startswith("obs")


def test_of_many_rows_the_wrong_one_is_named() -> None:
    rows = [[0, 0, 0], [0, 0, 0], [0, "1", 0]]
    with pytest.raises(JsonValueError) as caught:
        json_reader(FLOATS).read_rows(rows, lambda row: f"steps[{row}].obs")
    assert caught.value.where == "steps[2].obs"
    with pytest.raises(JsonValueError) as caught:
        json_reader(Dict(a=FLOATS)).read_array({"a": rows}, "obs")
    assert caught.value.where == "obs.a[2]"


def test_rows_may_mix_lists_and_bytes() -> None:
    rows = [[1, 2, 3], binary(np.array([4, 5, 6], np.float32))]
    np.testing.assert_array_equal(json_reader(FLOATS).read_rows(rows, str), [[1, 2, 3], [4, 5, 6]])


def test_an_array_of_rows_may_be_lists_or_bytes() -> None:
    array, num_rows = json_reader(FLOATS).read_array(binary(np.ones((2, 3), np.float32)), "obs")
    assert num_rows == 2
    assert array.shape == (2, 3)
    array, num_rows = json_reader(Tuple([FLOATS, Discrete(2)])).read_array([[[1, 2, 3]], [1]], "obs")
    assert num_rows == 1
    assert array[0].shape == (1, 3)
    assert array[1].tolist() == [1]
    with pytest.raises(JsonValueError, match="number"):
        json_reader(Tuple([FLOATS, Discrete(2)])).read_array([[[1, 2, 3]], [1, 0]], "obs")


def test_values_outside_of_a_box_are_counted_and_kept() -> None:
    reader = json_reader(Dict(a=FLOATS, b=BYTES, c=LONGS))
    reader.read({"a": [5, -5, 0], "b": [[0, 0], [0, 0]], "c": [11]}, "obs")
    assert reader.num_outside == 3


def test_numbers_beyond_max_abs_are_refused() -> None:
    assert json_reader(WIDE, max_abs=10.0).read([10, -10], "obs").tolist() == [10.0, -10.0]
    with pytest.raises(JsonValueError, match="at most 10"):
        json_reader(WIDE, max_abs=10.0).read([10.5, 0], "obs")


def test_every_part_of_a_mask_of_multi_discrete_actions_allows_something() -> None:
    reader = json_reader(Dict(action_mask=MultiBinary(5)), MultiDiscrete([2, 3]))
    reader.read({"action_mask": [0, 1, 1, 0, 0]}, "obs")
    with pytest.raises(JsonValueError, match="allows no action"):
        reader.read({"action_mask": [1, 1, 0, 0, 0]}, "obs")


@pytest.mark.parametrize(
    "array", [np.arange(6, dtype=np.int16).reshape(2, 3), np.linspace(0, 1, 100), np.zeros((70, 1), ">f4"), np.bool_(1)]
)
def test_arrays_are_written_such_that_they_are_read_again(array: np.ndarray) -> None:
    space = Box(-np.inf, np.inf, array.shape, array.dtype.newbyteorder("=")) if array.dtype.kind == "f" else None
    space = space or (MultiBinary(1) if array.dtype.kind == "b" else Box(-9, 9, array.shape, array.dtype))
    value = json.loads(json.dumps(as_json(array if array.shape else array[None])))
    np.testing.assert_allclose(json_reader(space).read(value, "obs"), np.atleast_1d(array), rtol=1e-6)


def test_a_batch_of_numbers_has_an_axis() -> None:
    with pytest.raises(JsonValueError, match="has shape"):
        json_reader(Discrete(3)).read_array({"dtype": "int32", "shape": [], "base64": "AAAAAA=="}, "obs")
