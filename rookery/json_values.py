"""JSON values to arrays of a space, exactly, and arrays to JSON.

Nothing is converted: `"1"`, `true`, `null`, `1.0` for an integer and numbers that the dtype cannot hold are refused,
which NumPy would all accept. Rows are checked as one array; only if that fails, one by one, to name the wrong one.
"""

import base64
import binascii
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rookery.agent import ACTION_MASK
from rookery.errors import InvalidInputError, nearest_names, shortened
from rookery.spaces import ArraySpace, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from rookery.spaces.json_spaces import MAX_LIST
from rookery.types import PyTreeDict

BINARY_KEYS = {"dtype", "shape", "base64"}


class JsonValueError(InvalidInputError):
    """A JSON value that is not in its space; `where` is its place in the document."""

    def __init__(self, code: str, message: str, where: str) -> None:
        super().__init__(f"{where}: {message}")
        self.code, self.message, self.where = code, message, where


class JsonReader(ABC):
    """Reads JSON values as arrays of a space. Make it with `json_reader`."""

    def read(self, value: Any, where: str) -> Any:
        """Return one value as arrays; raise `JsonValueError` if it is not in the space."""
        return _first_row(self._rows([value], where))

    def read_rows(self, values: Sequence[Any], where_of: Callable[[int], str]) -> Any:
        """Return values as arrays `[N, ...]`; `where_of` gives the place of each."""
        try:
            return self._rows(values, "")
        except JsonValueError:
            for index, value in enumerate(values):
                self._rows([value], where_of(index))
            raise

    @property
    @abstractmethod
    def num_outside(self) -> int:
        """The number of values read so far that are outside of the bounds of a box."""

    @abstractmethod
    def read_array(self, value: Any, where: str) -> tuple[Any, int]:
        """Return one value of shape `[N, ...]` as arrays, and N."""

    @abstractmethod
    def _rows(self, values: Sequence[Any], where: str) -> Any:
        """Return values as arrays `[N, ...]`; an error is at `where`."""


def json_reader(space: Space, action_space: Space | None = None, max_abs: float | None = None) -> JsonReader:
    """Return the reader of a space.

    An observation with an action mask needs the action space, of which a mask must allow something. Numbers in boxes
    must not exceed `max_abs`.
    """
    match space:
        case Dict():
            parts = {name: json_reader(part, None, max_abs) for name, part in space.spaces.items()}
            mask = space.spaces.get(ACTION_MASK)
            if action_space is not None and isinstance(mask, ArraySpace):
                parts[ACTION_MASK] = _MaskReader(mask, action_space)
            return _DictReader(parts)
        case Tuple():
            return _TupleReader([json_reader(part, None, max_abs) for part in space.spaces])
        case Box() if space.dtype.kind == "f":
            return _FloatReader(space, max_abs)
        case Box() if space.dtype.kind in "iu":
            return _IntegerReader(space)
        case Discrete() | MultiDiscrete():
            return _DiscreteReader(space)
        case MultiBinary() | Box():
            return _BinaryReader(space)
    raise InvalidInputError(f"expected a space of rookery.spaces, got {space!r}.")


class _ArrayReader(JsonReader):
    """Reads arrays of one shape and dtype."""

    kinds: frozenset[type]
    """The types of the numbers in lists."""
    numbers: str
    """What the numbers are, for messages."""

    def __init__(self, space: ArraySpace) -> None:
        self._space, self._shape, self._dtype = space, space.shape, space.sample_dtype
        self._num_outside = 0

    @property
    def num_outside(self) -> int:
        return self._num_outside

    def _rows(self, values: Sequence[Any], where: str) -> Any:
        if any(type(value) is dict for value in values):
            return np.stack([self._one(value, where) for value in values])
        return self._checked(self._of_lists(values, where), where)

    def _one(self, value: Any, where: str) -> np.ndarray:
        if type(value) is dict:
            return self._checked(self._of_bytes(value, where, None), where)
        return self._checked(self._of_lists([value], where), where)[0]

    def read_array(self, value: Any, where: str) -> tuple[Any, int]:
        if type(value) is dict:
            array = self._checked(self._of_bytes(value, where, "N"), where)
            return array, len(array)
        if type(value) is list:
            return self.read_rows(value, lambda row: f"{where}[{row}]"), len(value)
        raise JsonValueError("shape", f"is {_shown(value)}; expected {self._expected('N')}", where)

    def _of_lists(self, values: Sequence[Any], where: str) -> np.ndarray:
        """Return values that are numbers or nested lists of them as an array."""
        items: Sequence[Any] = values
        for length in self._shape:
            for item in items:
                if type(item) is not list or len(item) != length:
                    raise self._wrong_shape(values[0], where)
            items = list(chain.from_iterable(items))
        if not self.kinds.issuperset(map(type, items)):
            wrong = next(item for item in items if type(item) not in self.kinds)
            if type(wrong) is list:
                raise self._wrong_shape(values[0], where)
            raise JsonValueError("type", f"contains {_shown(wrong)}; expected {self.numbers}.", where)
        return self._cast(items, where).reshape(len(values), *self._shape)

    def _of_bytes(self, value: dict[str, Any], where: str, num_rows: str | None) -> np.ndarray:
        """Return a binary array; its size is compared before anything is decoded."""
        if value.keys() != BINARY_KEYS:
            raise JsonValueError("array", f"has the entries {_names(value)}; expected dtype, shape and base64.", where)
        dtype, shape, text = value["dtype"], value["shape"], value["base64"]
        if dtype != self._space.dtype.name:
            raise JsonValueError("dtype", f"has dtype {_shown(dtype)}; expected {self._space.dtype.name}.", where)
        is_shape = type(shape) is list and all(type(length) is int and 0 <= length < 2**31 for length in shape)
        num_axes = 1 if num_rows else 0
        if not is_shape or len(shape) != num_axes + len(self._shape) or shape[num_axes:] != list(self._shape):
            raise JsonValueError("shape", f"has shape {_shown(shape)}; expected {self._expected(num_rows)}", where)
        num_bytes = math.prod(shape) * self._space.dtype.itemsize
        if type(text) is not str or len(text) != -(-num_bytes // 3) * 4:
            given = f"{len(text)} characters" if type(text) is str else _shown(text)
            expected = f"{-(-num_bytes // 3) * 4} characters for {num_bytes} bytes"
            raise JsonValueError("base64", f"has a base64 of {given}; expected {expected}.", where)
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise JsonValueError("base64", "is not valid base64.", where) from None
        if len(content) != num_bytes:
            raise JsonValueError("base64", f"has {len(content)} bytes; expected {num_bytes}.", where)
        array = np.frombuffer(content, self._space.dtype.newbyteorder("<")).reshape(shape)
        return self._from_declared(array, where)

    def _from_declared(self, array: np.ndarray, where: str) -> np.ndarray:
        """Return an array of the declared dtype in the dtype of samples, without loss of range."""
        cast = array.astype(self._dtype)
        if self._dtype.kind in "iu" and not np.array_equal(cast, array):
            raise JsonValueError("range", f"has numbers beyond {self._dtype}.", where)
        return cast

    @abstractmethod
    def _cast(self, items: Sequence[Any], where: str) -> np.ndarray:
        """Return numbers of the right types as an array."""

    @abstractmethod
    def _checked(self, array: np.ndarray, where: str) -> np.ndarray:
        """Return an array whose values are checked."""

    def _expected(self, num_rows: str | None) -> str:
        axes = [*([num_rows] if num_rows else []), *map(str, self._shape)]
        return f"[{', '.join(axes)}] of {self._space}."

    def _wrong_shape(self, value: Any, where: str) -> JsonValueError:
        given = f"has shape {_shape_text(value)}" if type(value) is list else f"is {_shown(value)}"
        return JsonValueError("shape", f"{given}; expected {self._expected(None)}", where)


class _FloatReader(_ArrayReader):
    kinds = frozenset({int, float})
    numbers = "numbers"

    def __init__(self, space: Box, max_abs: float | None) -> None:
        super().__init__(space)
        largest = float(np.finfo(self._dtype).max)
        self._max_abs = largest if max_abs is None else min(max_abs, largest)
        self._low, self._high = space.low.astype(self._dtype), space.high.astype(self._dtype)
        self._is_bounded = bool(np.isfinite(self._low).any() or np.isfinite(self._high).any())

    def _cast(self, items: Sequence[Any], where: str) -> np.ndarray:
        try:
            return np.array(items, np.float64)
        except OverflowError:
            raise JsonValueError("range", "contains a number of hundreds of digits.", where) from None

    def _from_declared(self, array: np.ndarray, where: str) -> np.ndarray:
        return array

    def _checked(self, array: np.ndarray, where: str) -> np.ndarray:
        if array.size and not max(array.max(), -array.min()) <= self._max_abs:
            wrong = array[~(np.abs(array) <= self._max_abs)].flat[0]
            raise JsonValueError(
                "range", f"contains {wrong:g}; expected finite numbers of at most {self._max_abs:g}.", where
            )
        array = array.astype(self._dtype)
        if self._is_bounded:
            self._num_outside += int(np.count_nonzero((array < self._low) | (array > self._high)))
        return array


class _IntegerReader(_ArrayReader):
    """Reads boxes of integers, in the range of their dtype."""

    kinds = frozenset({int})
    numbers = "whole numbers"

    def __init__(self, space: ArraySpace) -> None:
        super().__init__(space)
        limits = np.iinfo(self._dtype)
        self._limits = int(limits.min), int(limits.max)

    def _cast(self, items: Sequence[Any], where: str) -> np.ndarray:
        low, high = self._limits
        if items and not (low <= min(items) and max(items) <= high):
            wrong = next(item for item in items if not low <= item <= high)
            raise JsonValueError("range", f"contains {wrong}; expected numbers from {low} to {high}.", where)
        return np.array(items, self._dtype)

    def _checked(self, array: np.ndarray, where: str) -> np.ndarray:
        space = self._space
        assert isinstance(space, Box)
        self._num_outside += int(np.count_nonzero((array < space.low) | (array > space.high)))
        return array


class _DiscreteReader(_IntegerReader):
    """Reads integers in the range of their space."""

    def _checked(self, array: np.ndarray, where: str) -> np.ndarray:
        try:
            self._space.check_range(array, "a number")
        except InvalidInputError as error:
            raise JsonValueError("range", str(error), where) from None
        return array


class _BinaryReader(_ArrayReader):
    """Reads arrays of 0, 1, true and false."""

    kinds = frozenset({int, bool})
    numbers = "0, 1, true or false"

    def _cast(self, items: Sequence[Any], where: str) -> np.ndarray:
        if not {0, 1}.issuperset(items):
            wrong = next(item for item in items if item not in (0, 1))
            raise JsonValueError("range", f"contains {wrong}; expected {self.numbers}.", where)
        return np.array(items, self._dtype)

    def _from_declared(self, array: np.ndarray, where: str) -> np.ndarray:
        if array.size and int(array.view(np.uint8).max()) > 1:
            raise JsonValueError("range", f"contains other bytes; expected {self.numbers}.", where)
        return array.astype(self._dtype)

    def _checked(self, array: np.ndarray, where: str) -> np.ndarray:
        return array


class _MaskReader(_BinaryReader):
    """Reads action masks: each allows something."""

    def __init__(self, space: ArraySpace, action_space: Space) -> None:
        super().__init__(space)
        lengths = (
            action_space.nvec.ravel() if isinstance(action_space, MultiDiscrete) else [math.prod(space.shape[-1:])]
        )
        self._starts = np.cumsum([0, *lengths[:-1]])

    def _from_declared(self, array: np.ndarray, where: str) -> np.ndarray:
        if not np.isin(array, (0, 1)).all():
            raise JsonValueError("range", f"contains other numbers; expected {self.numbers}.", where)
        return array.astype(self._dtype)

    def _checked(self, array: np.ndarray, where: str) -> np.ndarray:
        if array.size and not np.logical_or.reduceat(array != 0, self._starts, axis=-1).all():
            raise JsonValueError("mask", "allows no action.", where)
        return array


class _DictReader(JsonReader):
    def __init__(self, parts: Mapping[str, JsonReader]) -> None:
        self._parts = parts

    @property
    def num_outside(self) -> int:
        return sum(part.num_outside for part in self._parts.values())

    def _rows(self, values: Sequence[Any], where: str) -> Any:
        for value in values:
            self._check_names(value, where)
        return PyTreeDict(
            {
                name: part._rows([value[name] for value in values], f"{where}.{name}")
                for name, part in self._parts.items()
            }
        )

    def read_array(self, value: Any, where: str) -> tuple[Any, int]:
        self._check_names(value, where)
        arrays = {name: part.read_array(value[name], f"{where}.{name}") for name, part in self._parts.items()}
        return PyTreeDict({name: array for name, (array, _) in arrays.items()}), _same_length(
            [length for _, length in arrays.values()], where
        )

    def _check_names(self, value: Any, where: str) -> None:
        if type(value) is not dict:
            raise JsonValueError("type", f"is {_shown(value)}; expected an object with {_names(self._parts)}.", where)
        if value.keys() == self._parts.keys():
            return
        for name in value.keys() - self._parts.keys():
            near = nearest_names(name, self._parts)
            hint = f" Did you mean {near[0]!r}?" if near else f" Its entries are {_names(self._parts)}."
            raise JsonValueError("names", f"has an unknown entry {shortened(name)!r}.{hint}", where)
        raise JsonValueError("names", f"lacks {_names(self._parts.keys() - value.keys())}.", where)


class _TupleReader(JsonReader):
    def __init__(self, parts: Sequence[JsonReader]) -> None:
        self._parts = parts

    @property
    def num_outside(self) -> int:
        return sum(part.num_outside for part in self._parts)

    def _rows(self, values: Sequence[Any], where: str) -> Any:
        for value in values:
            self._check_length(value, where)
        return tuple(
            part._rows([value[index] for value in values], f"{where}[{index}]")
            for index, part in enumerate(self._parts)
        )

    def read_array(self, value: Any, where: str) -> tuple[Any, int]:
        self._check_length(value, where)
        arrays = [part.read_array(value[index], f"{where}[{index}]") for index, part in enumerate(self._parts)]
        return tuple(array for array, _ in arrays), _same_length([length for _, length in arrays], where)

    def _check_length(self, value: Any, where: str) -> None:
        if type(value) is not list or len(value) != len(self._parts):
            given = f"has {len(value)} entries" if type(value) is list else f"is {_shown(value)}"
            raise JsonValueError("shape", f"{given}; expected a list of {len(self._parts)}.", where)


def as_json(value: Any) -> Any:
    """Return arrays as JSON data: short ones as lists, others as bytes in base64."""
    if isinstance(value, Mapping):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [as_json(part) for part in value]
    array = np.asarray(value)
    if array.size <= MAX_LIST:
        return array.tolist()
    content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "base64": base64.b64encode(content).decode()}


def _first_row(tree: Any) -> Any:
    """Return the first row of arrays `[N, ...]`."""
    if isinstance(tree, np.ndarray):
        return tree[0]
    if isinstance(tree, tuple):
        return tuple(map(_first_row, tree))
    return PyTreeDict({name: _first_row(part) for name, part in tree.items()})


def _same_length(lengths: Sequence[int], where: str) -> int:
    if len(set(lengths)) != 1:
        raise JsonValueError("shape", f"has parts of {lengths} rows; expected the same number.", where)
    return lengths[0]


def _shape_text(value: Any) -> str:
    """Return the shape of nested lists, as far as their first entries show it."""
    shape = []
    while type(value) is list:
        shape.append(len(value))
        value = value[0] if value else None
    return shortened(str(shape))


def _shown(value: Any) -> str:
    """Return a JSON value for a message."""
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case dict():
            return "an object"
        case list():
            return f"a list of shape {_shape_text(value)}"
    return shortened(repr(value))


def _names(names: Any) -> str:
    return shortened(", ".join(sorted(map(str, names))), 200) or "nothing"
