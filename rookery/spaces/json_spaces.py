"""Spaces as JSON data: `from_json(to_json(space)) == space`, to the last bit of every bound."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError
from rookery.spaces.space import ArraySpace, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Shape, Space, Tuple

MAX_SIZE = 2**23
"""The maximum number of scalars in a space, all its parts together: a short text may describe a huge space."""
MAX_PARTS = 256
"""The maximum number of parts of a space; an image, which needs a network of its own, counts as `IMAGE_PARTS`."""
IMAGE_PARTS = 8
MAX_DEPTH = 32
MAX_LIST = 64
"""Arrays of more numbers are written as bytes in base64, not as lists."""
BASE64 = "base64"
DTYPES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
)


@dataclass
class _Budget:
    """What remains of the limits of one space."""

    num_scalars: int = MAX_SIZE
    num_parts: int = MAX_PARTS

    def spend(self, shape: Sequence[int] = ()) -> None:
        """Count one part of this shape."""
        self.num_scalars -= math.prod(shape)
        self.num_parts -= IMAGE_PARTS if len(shape) == 3 else 1
        if self.num_scalars < 0 or self.num_parts < 0:
            limits = f"at most {MAX_SIZE:,} scalars in {MAX_PARTS} parts (an image counts as {IMAGE_PARTS} of them)"
            raise InvalidInputError(f"a space is too large with the shape {list(shape)!r:.80}: expected {limits}.")


def to_json(space: Space) -> dict[str, Any]:
    """Describe a space by dicts, lists, numbers and strings."""
    return _to_json(space, _Budget())


def _to_json(space: Space, budget: _Budget) -> dict[str, Any]:
    budget.spend(space.shape if isinstance(space, ArraySpace) else ())
    match space:
        case Box():
            bounds = {"low": _entries(space.low), "high": _entries(space.high)}
            return {"type": "Box", "shape": list(space.shape), "dtype": _dtype_name(space.dtype), **bounds}
        case Discrete():
            return {"type": "Discrete", "n": space.n, "start": space.start, "dtype": _dtype_name(space.dtype)}
        case MultiDiscrete():
            entries = {"nvec": _entries(space.nvec), "start": _entries(space.start)}
            return {"type": "MultiDiscrete", "shape": list(space.shape), "dtype": _dtype_name(space.dtype), **entries}
        case MultiBinary():
            return {"type": "MultiBinary", "n": list(space.n) if isinstance(space.n, tuple) else space.n}
        case Dict():
            return {"type": "Dict", "spaces": {name: _to_json(part, budget) for name, part in space.spaces.items()}}
        case Tuple():
            return {"type": "Tuple", "spaces": [_to_json(part, budget) for part in space.spaces]}
    raise InvalidInputError(f"expected a space of rookery.spaces, got {space!r}.")


def from_json(data: Any) -> Space:
    """Make the space that `to_json` described; anything else raises `InvalidInputError`."""
    try:
        return _from_json(data, MAX_DEPTH, _Budget())
    except InvalidInputError:
        raise
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InvalidInputError(f"the data does not describe a space: {error!r:.120}.") from None


def _from_json(data: Mapping[str, Any], depth: int, budget: _Budget) -> Space:
    if depth == 0:
        raise InvalidInputError(f"a space is nested more than {MAX_DEPTH} deep.")
    match data["type"]:
        case "Box":
            shape, dtype = _checked_shape(data["shape"], budget), _dtype(data["dtype"])
            low, high = (_array(data[name], shape, dtype) for name in ("low", "high"))
            return Box(low, high, shape, dtype)
        case "Discrete":
            budget.spend()
            n, start = data["n"], data["start"]
            if not (type(n) is type(start) is int and -(2**63) <= start <= start + n <= 2**64):
                raise InvalidInputError(f"Discrete({n!r:.80}, start={start!r:.80}): expected integers of 64 bits.")
            return Discrete(n, start, _dtype(data["dtype"]))
        case "MultiDiscrete":
            shape, dtype = _checked_shape(data["shape"], budget), _dtype(data["dtype"])
            nvec, start = (np.broadcast_to(_array(data[name], shape, dtype), shape) for name in ("nvec", "start"))
            return MultiDiscrete(nvec, start, dtype)
        case "MultiBinary":
            n = data["n"]
            _checked_shape(n if isinstance(n, list) else [n], budget)
            return MultiBinary(n)
        case "Dict":
            budget.spend()
            return Dict({str(name): _from_json(part, depth - 1, budget) for name, part in data["spaces"].items()})
        case "Tuple":
            budget.spend()
            return Tuple([_from_json(part, depth - 1, budget) for part in data["spaces"]])
    raise InvalidInputError(
        f"a space has the type {data['type']!r:.80}: expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
    )


def _entries(array: np.ndarray) -> Any:
    """Return the entries of an array in order, or one if all are the same; infinities as strings."""
    first = array.reshape(-1)[:1]
    if array.size > 0 and array.tobytes() == first.tobytes() * array.size:
        return _entry(first.item())
    if array.size > MAX_LIST:
        return {BASE64: base64.b64encode(array.tobytes()).decode()}
    return [_entry(value) for value in array.reshape(-1).tolist()]


def _entry(value: Any) -> Any:
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _array(entries: Any, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Return the array that `_entries` described; without axes if all entries are the same."""
    if isinstance(entries, dict):
        return np.frombuffer(base64.b64decode(entries[BASE64], validate=True), dtype).reshape(shape)
    if isinstance(entries, list):
        return np.array([_number(entry) for entry in entries], dtype).reshape(shape)
    return np.array(_number(entries), dtype)


def _number(entry: Any) -> Any:
    if entry in ("inf", "-inf"):
        return float(entry)
    if not isinstance(entry, (bool, int, float)):
        raise InvalidInputError(f"a space has the bound {entry!r:.80}: expected a number.")
    return entry


def _checked_shape(lengths: Any, budget: _Budget) -> Shape:
    if not all(type(length) is int and length >= 0 for length in lengths):
        raise InvalidInputError(f"a space has the shape {lengths!r:.80}: expected a list of lengths.")
    budget.spend(lengths)
    return tuple(lengths)


def _dtype_name(dtype: np.dtype) -> str:
    return _checked_dtype(dtype).name if dtype.isnative else _checked_dtype(dtype).str


def _dtype(name: Any) -> np.dtype:
    return _checked_dtype(np.dtype(str(name)))


def _checked_dtype(dtype: np.dtype) -> np.dtype:
    if dtype.newbyteorder("=").name not in DTYPES:
        raise InvalidInputError(f"a space has the dtype {dtype!s:.80}: expected one of {', '.join(DTYPES)}.")
    return dtype
