"""Spaces as JSON data: `from_json(to_json(space)) == space`, to the last bit of every bound."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError
from rookery.spaces.space import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Shape, Space, Tuple

MAX_SIZE = 2**26
"""The maximum number of scalars in an array space that is read: a short text may describe a huge space."""
MAX_DEPTH = 32


def to_json(space: Space) -> dict[str, Any]:
    """Describe a space by dicts, lists, numbers and strings."""
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
            return {"type": "Dict", "spaces": {name: to_json(part) for name, part in space.spaces.items()}}
        case Tuple():
            return {"type": "Tuple", "spaces": [to_json(part) for part in space.spaces]}
    raise InvalidInputError(f"expected a space of rookery.spaces, got {space!r}.")


def from_json(data: Any) -> Space:
    """Make the space that `to_json` described; anything else raises `InvalidInputError`."""
    try:
        return _from_json(data, MAX_DEPTH)
    except InvalidInputError:
        raise
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InvalidInputError(f"the data does not describe a space: {error!r:.120}.") from None


def _from_json(data: Mapping[str, Any], depth: int) -> Space:
    if depth == 0:
        raise InvalidInputError(f"a space is nested more than {MAX_DEPTH} deep.")
    match data["type"]:
        case "Box":
            shape, dtype = _checked_shape(data["shape"]), _dtype(data["dtype"])
            low, high = (_array(data[name], shape, dtype) for name in ("low", "high"))
            return Box(low, high, shape, dtype)
        case "Discrete":
            return Discrete(data["n"], data["start"], _dtype(data["dtype"]))
        case "MultiDiscrete":
            shape, dtype = _checked_shape(data["shape"]), _dtype(data["dtype"])
            nvec, start = (_array(data[name], shape, dtype) for name in ("nvec", "start"))
            return MultiDiscrete(nvec, start, dtype)
        case "MultiBinary":
            n = data["n"]
            _checked_shape(n if isinstance(n, list) else [n])
            return MultiBinary(n)
        case "Dict":
            return Dict({str(name): _from_json(part, depth - 1) for name, part in data["spaces"].items()})
        case "Tuple":
            return Tuple([_from_json(part, depth - 1) for part in data["spaces"]])
    raise InvalidInputError(
        f"a space has the type {data['type']!r:.80}: expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
    )


def _entries(array: np.ndarray) -> Any:
    """Return the entries of an array in order, or one if all are the same; infinities as strings."""
    first = array.reshape(-1)[:1]
    is_constant = array.size > 0 and array.tobytes() == first.tobytes() * array.size
    entries = [_entry(value) for value in (first if is_constant else array.reshape(-1)).tolist()]
    return entries[0] if is_constant else entries


def _entry(value: Any) -> Any:
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _array(entries: Any, shape: Shape, dtype: np.dtype) -> np.ndarray:
    values = [_number(entry) for entry in (entries if isinstance(entries, list) else [entries])]
    array = np.array(values, dtype)
    return array.reshape(shape) if isinstance(entries, list) else np.broadcast_to(array[0], shape)


def _number(entry: Any) -> Any:
    if entry in ("inf", "-inf"):
        return float(entry)
    if not isinstance(entry, (bool, int, float)):
        raise InvalidInputError(f"a space has the bound {entry!r:.80}: expected a number.")
    return entry


def _checked_shape(lengths: Any) -> Shape:
    if not all(type(length) is int and length >= 0 for length in lengths) or math.prod(lengths) > MAX_SIZE:
        raise InvalidInputError(f"a space has the shape {lengths!r:.80}: expected at most {MAX_SIZE:,} scalars.")
    return tuple(lengths)


def _dtype_name(dtype: np.dtype) -> str:
    return dtype.name if dtype.isnative else dtype.str


def _dtype(name: Any) -> np.dtype:
    dtype = np.dtype(str(name))
    if dtype.kind not in "biuf" and dtype.name != "bfloat16":
        raise InvalidInputError(f"a space has the dtype {name!r:.80}: expected numbers.")
    return dtype
