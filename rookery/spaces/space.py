"""Observation and action spaces.

A space is immutable, compared and hashed by value, so it can be part of a compiled program. Its arrays are NumPy
arrays. `dtype` is the declared dtype; samples have the dtype that JAX uses for it (`int64` is sampled as `int32` unless
x64 is enabled).
"""

from __future__ import annotations

import functools
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from rookery.errors import InvalidInputError, ShapeError, check_count
from rookery.types import Array, Key, PyTree, PyTreeDict, as_key

Shape = tuple[int, ...]
Numbers = float | Sequence | np.ndarray
AnyArray = Any
"""A NumPy array or a JAX array, traced or not."""


class Space(ABC):
    """A set of values that can be sampled."""

    @abstractmethod
    def sample(self, key: Key, batch_shape: Shape = ()) -> PyTree:
        """Sample uniformly if the space is bounded; `batch_shape` adds leading axes of independent samples."""

    @abstractmethod
    def contains(self, x: PyTree) -> bool | Array:
        """Tell whether `x` is in the space: a Python bool for concrete values, a traced bool under tracing."""

    @abstractmethod
    def check(self, x: PyTree, what: str, batch_shape: Shape = ()) -> None:
        """Raise `ShapeError` unless `x` has this space's structure, shape and kind of dtype. Works on tracers."""

    @abstractmethod
    def batch_shape_of(self, x: PyTree) -> Shape:
        """Return the leading axes of `x`, before the shape of this space."""

    @property
    @abstractmethod
    def _value(self) -> tuple:
        """The hashable value by which spaces are compared."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._value == other._value

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((type(self), self._value))

    def __getstate__(self) -> dict[str, Any]:
        # Hashes differ between processes.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ or hasattr(type(self), name):
            raise AttributeError(f"{type(self).__name__} is immutable: make a new one instead of setting {name!r}.")
        super().__setattr__(name, value)


class ArraySpace(Space):
    """A space whose elements are arrays of one shape and dtype."""

    shape: Shape
    dtype: np.dtype

    @property
    def size(self) -> int:
        """The number of scalars in one element."""
        return math.prod(self.shape)

    @abstractmethod
    def _within_bounds(self, x: AnyArray) -> AnyArray:
        """Tell for each entry of a NumPy or traced array of the right shape whether it is in the space."""

    def contains(self, x: PyTree) -> bool | Array:
        x = _as_array(x)
        if x is None or x.shape != self.shape or not _same_kind(x.dtype, self.dtype):
            return False
        if isinstance(x, jax.core.Tracer):
            return jnp.all(self._within_bounds(x))
        return bool(np.all(self._within_bounds(np.asarray(x))))

    def check(self, x: PyTree, what: str, batch_shape: Shape = ()) -> None:
        expected = (*batch_shape, *self.shape)
        array = _as_array(x)
        if array is None:
            raise ShapeError(f"{what} is {type(x).__name__}; expected an array {self.dtype}{list(expected)} of {self}.")
        if array.shape != expected:
            raise ShapeError(f"{what} has shape {list(array.shape)}; expected {list(expected)} for {self}.")
        if not _same_kind(array.dtype, self.dtype):
            raise ShapeError(f"{what} has dtype {array.dtype}; expected {self.dtype} for {self}.")

    def check_range(self, x: np.ndarray, what: str) -> None:
        """Raise `InvalidInputError` if an entry of one element, or of a batch of them, is outside of the space."""
        is_inside = np.broadcast_to(self._within_bounds(x), x.shape)
        if not is_inside.all():
            index = np.unravel_index(is_inside.argmin(), x.shape)
            place = f" at {list(map(int, index))}" if index else ""
            raise InvalidInputError(f"{what} is {x[index]}{place}, which is outside of {self}.")

    def batch_shape_of(self, x: PyTree) -> Shape:
        num_batch_axes = x.ndim - len(self.shape)
        if num_batch_axes < 0 or x.shape[num_batch_axes:] != self.shape:
            raise ShapeError(
                f"an array of shape {list(x.shape)} does not end in the shape {list(self.shape)} of {self}."
            )
        return x.shape[:num_batch_axes]

    @property
    def sample_dtype(self) -> np.dtype:
        """The dtype of samples: the one that JAX uses for `dtype`."""
        return jax.dtypes.canonicalize_dtype(self.dtype)


class Box(ArraySpace):
    """An n-dimensional box; each side may be bounded, half bounded or unbounded."""

    def __init__(
        self, low: Numbers, high: Numbers, shape: Sequence[int] | None = None, dtype: DTypeLike | None = np.float32
    ) -> None:
        self.dtype = np.dtype(dtype)
        inferred = np.broadcast_shapes(np.shape(low), np.shape(high))
        self.shape = tuple(shape) if shape is not None else inferred
        try:
            self.low = _frozen(np.broadcast_to(_cast_bound(low, self.dtype), self.shape))
            self.high = _frozen(np.broadcast_to(_cast_bound(high, self.dtype), self.shape))
        except InvalidInputError:
            raise
        except ValueError:
            raise InvalidInputError(
                f"Box: low {list(np.shape(low))} and high {list(np.shape(high))} do not fit shape {list(self.shape)}."
            ) from None
        if not np.all(self.low <= self.high):
            raise InvalidInputError(f"Box: low must not exceed high, got low={low} and high={high}.")

    @property
    def bounded(self) -> bool:
        """Whether every side is finite."""
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))

    def sample(self, key: Key, batch_shape: Shape = ()) -> Array:
        """Sample uniformly between two finite bounds, exponentially from one, normally without bounds."""
        key, shape = as_key(key), (*batch_shape, *self.shape)
        dtype = self.sample_dtype
        if dtype == np.bool_:
            coins = jax.random.bernoulli(key, 0.5, shape)
            return coins & np.broadcast_to(self.high, shape) | np.broadcast_to(self.low, shape)
        if np.issubdtype(dtype, np.integer):
            return _sample_integers(key, shape, self.low, self.high, dtype)
        low, high = (jnp.broadcast_to(_as_dtype(bound, dtype), shape) for bound in (self.low, self.high))
        if self.bounded:
            # In halves: high - low may overflow.
            unit = jax.random.uniform(key, shape, dtype, -1.0, 1.0)
            return jnp.clip((low / 2 + high / 2) + unit * (high / 2 - low / 2), low, high)
        uniform_key, normal_key, tail_key = jax.random.split(key, 3)
        has_low, has_high = jnp.isfinite(low), jnp.isfinite(high)
        finite_low, finite_high = jnp.where(has_low, low, 0), jnp.where(has_high, high, 0)
        uniform = finite_low + jax.random.uniform(uniform_key, shape, dtype) * (finite_high - finite_low)
        tail = jax.random.exponential(tail_key, shape, dtype)
        one_sided = jnp.where(has_low, finite_low + tail, finite_high - tail)
        normal = jax.random.normal(normal_key, shape, dtype)
        return jnp.where(has_low & has_high, uniform, jnp.where(has_low | has_high, one_sided, normal))

    def _within_bounds(self, x: AnyArray) -> AnyArray:
        return _between(x, self.low, self.high)

    @property
    def _value(self) -> tuple:
        return self.shape, self.dtype.str, self.low.tobytes(), self.high.tobytes()

    def __repr__(self) -> str:
        return f"Box({_bound_text(self.low)}, {_bound_text(self.high)}, {self.shape}, {self.dtype})"


class Discrete(ArraySpace):
    """The integers `start, ..., start + n - 1`."""

    shape = ()

    def __init__(self, n: int, start: int = 0, dtype: DTypeLike | None = np.int32) -> None:
        check_count("Discrete: n", n)
        self.n, self.start, self.dtype = int(n), int(start), np.dtype(dtype)

    def sample(self, key: Key, batch_shape: Shape = ()) -> Array:
        low, high = np.asarray(self.start), np.asarray(self.start + self.n - 1)
        return _sample_integers(as_key(key), batch_shape, low, high, self.sample_dtype)

    def _within_bounds(self, x: AnyArray) -> AnyArray:
        return _between(x, np.asarray(self.start), np.asarray(self.start + self.n - 1))

    @property
    def _value(self) -> tuple:
        return self.n, self.start, self.dtype.str

    def __repr__(self) -> str:
        return f"Discrete({self.n}{f', start={self.start}' if self.start else ''})"


class MultiDiscrete(ArraySpace):
    """An array of integers, each with its own number of values `nvec` and its own first value `start`."""

    def __init__(self, nvec: Numbers, start: Numbers | None = None, dtype: DTypeLike | None = np.int32) -> None:
        self.dtype = np.dtype(dtype)
        self.nvec = _frozen(np.array(nvec, self.dtype))
        self.start = _frozen(np.zeros_like(self.nvec) if start is None else np.array(start, self.dtype))
        self.shape = self.nvec.shape
        if self.start.shape != self.shape or not np.all(self.nvec >= 1):
            raise InvalidInputError(
                f"MultiDiscrete: nvec must be at least 1 and start have the same shape, got {nvec} and {start}."
            )

    def sample(self, key: Key, batch_shape: Shape = ()) -> Array:
        shape = (*batch_shape, *self.shape)
        return _sample_integers(as_key(key), shape, self.start, self.start + self.nvec - 1, self.sample_dtype)

    def _within_bounds(self, x: AnyArray) -> AnyArray:
        return _between(x, self.start, self.start + (self.nvec - 1))

    @property
    def _value(self) -> tuple:
        return self.shape, self.dtype.str, self.nvec.tobytes(), self.start.tobytes()

    def __repr__(self) -> str:
        start = f", start={self.start.tolist()}" if self.start.any() else ""
        return f"MultiDiscrete({self.nvec.tolist()}{start})"


class MultiBinary(ArraySpace):
    """An array of zeros and ones; `n` is its length or its shape."""

    dtype = np.dtype(np.int8)

    def __init__(self, n: int | Sequence[int]) -> None:
        self.n = tuple(int(axis) for axis in n) if isinstance(n, (Sequence, np.ndarray)) else int(n)
        self.shape = self.n if isinstance(self.n, tuple) else (self.n,)
        if any(axis < 1 for axis in self.shape):
            raise InvalidInputError(f"MultiBinary: n={n} must be at least 1.")

    def sample(self, key: Key, batch_shape: Shape = ()) -> Array:
        return jax.random.bernoulli(as_key(key), 0.5, (*batch_shape, *self.shape)).astype(self.dtype)

    def _within_bounds(self, x: AnyArray) -> AnyArray:
        return (x == 0) | (x == 1)

    @property
    def _value(self) -> tuple:
        return (self.n,)

    def __repr__(self) -> str:
        return f"MultiBinary({self.n})"


class Dict(Space):
    """Named spaces; elements are dicts with the same names, samples are `PyTreeDict`."""

    def __init__(self, spaces: Mapping[str, Space] | None = None, /, **named_spaces: Space) -> None:
        self._spaces: dict[str, Space] = {**(spaces or {}), **named_spaces}

    @property
    def spaces(self) -> Mapping[str, Space]:
        """The named spaces in the order of declaration."""
        return types.MappingProxyType(self._spaces)

    def sample(self, key: Key, batch_shape: Shape = ()) -> PyTreeDict:
        # Keys follow the sorted names, so the order of declaration does not affect samples.
        keys = dict(zip(sorted(self.spaces), jax.random.split(as_key(key), max(1, len(self.spaces))), strict=False))
        return PyTreeDict({name: space.sample(keys[name], batch_shape) for name, space in self.spaces.items()})

    def contains(self, x: PyTree) -> bool | Array:
        if not isinstance(x, Mapping) or set(x) != set(self.spaces):
            return False
        return _all_true([space.contains(x[name]) for name, space in self.spaces.items()])

    def check(self, x: PyTree, what: str, batch_shape: Shape = ()) -> None:
        if not isinstance(x, Mapping) or set(x) != set(self.spaces):
            given = sorted(map(str, x)) if isinstance(x, Mapping) else type(x).__name__
            raise ShapeError(f"{what} is {given}; expected a dict with the entries {sorted(self.spaces)}.")
        for name, space in self.spaces.items():
            space.check(x[name], f"{what}[{name!r}]", batch_shape)

    def batch_shape_of(self, x: PyTree) -> Shape:
        if not isinstance(x, Mapping) or not set(self.spaces) <= set(x):
            given = sorted(map(str, x)) if isinstance(x, Mapping) else type(x).__name__
            raise ShapeError(f"expected a dict with the entries {sorted(self.spaces)}, got {given}.")
        return _common_batch_shape([space.batch_shape_of(x[name]) for name, space in self.spaces.items()])

    def __getitem__(self, name: str) -> Space:
        return self.spaces[name]

    def __contains__(self, name: object) -> bool:
        return name in self.spaces

    def __iter__(self) -> Iterator[str]:
        return iter(self.spaces)

    def __len__(self) -> int:
        return len(self.spaces)

    @property
    def _value(self) -> tuple:
        return tuple(sorted(self.spaces.items(), key=lambda item: item[0]))

    def __repr__(self) -> str:
        return f"Dict({', '.join(f'{name}={space}' for name, space in self.spaces.items())})"


class Tuple(Space):
    """A fixed sequence of spaces; elements are tuples."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.spaces = tuple(spaces)

    def sample(self, key: Key, batch_shape: Shape = ()) -> tuple:
        keys = jax.random.split(as_key(key), max(1, len(self.spaces)))
        return tuple(space.sample(key, batch_shape) for space, key in zip(self.spaces, keys, strict=False))

    def contains(self, x: PyTree) -> bool | Array:
        if not isinstance(x, (tuple, list)) or len(x) != len(self.spaces):
            return False
        return _all_true([space.contains(item) for space, item in zip(self.spaces, x, strict=True)])

    def check(self, x: PyTree, what: str, batch_shape: Shape = ()) -> None:
        if not isinstance(x, (tuple, list)) or len(x) != len(self.spaces):
            given = f"{len(x)} entries" if isinstance(x, (tuple, list)) else type(x).__name__
            raise ShapeError(f"{what} is {given}; expected a tuple of {len(self.spaces)} entries.")
        for index, (space, item) in enumerate(zip(self.spaces, x, strict=True)):
            space.check(item, f"{what}[{index}]", batch_shape)

    def batch_shape_of(self, x: PyTree) -> Shape:
        return _common_batch_shape([s.batch_shape_of(item) for s, item in zip(self.spaces, x, strict=True)])

    def __getitem__(self, index: int) -> Space:
        return self.spaces[index]

    def __len__(self) -> int:
        return len(self.spaces)

    @property
    def _value(self) -> tuple:
        return self.spaces

    def __repr__(self) -> str:
        return f"Tuple({', '.join(map(str, self.spaces))})"


def alike(one: Space, other: Space) -> bool:
    """Return whether two spaces are the same for a policy: equal, but for dtypes that JAX does not have."""
    match one, other:
        case Dict(), Dict():
            names = one.spaces.keys()
            return names == other.spaces.keys() and all(alike(one.spaces[name], other.spaces[name]) for name in names)
        case Tuple(), Tuple():
            return len(one.spaces) == len(other.spaces) and all(map(alike, one.spaces, other.spaces))
        case Box(), Box():
            dtype, bounds = one.sample_dtype, ((one.low, other.low), (one.high, other.high))
            with np.errstate(over="ignore"):
                are_equal = [np.array_equal(bound.astype(dtype), others.astype(dtype)) for bound, others in bounds]
            return dtype == other.sample_dtype and all(are_equal)
        case Discrete(), Discrete():
            return (one.n, one.start) == (other.n, other.start)
        case MultiDiscrete(), MultiDiscrete():
            return np.array_equal(one.nvec, other.nvec) and np.array_equal(one.start, other.start)
    return one == other


def check_discrete_range(space: Space, x: PyTree, what: str) -> None:
    """Raise if a discrete value or a batch of them is out of range; traced values are not checked."""
    match space:
        case Dict():
            for name, part in space.spaces.items():
                check_discrete_range(part, x[name], f"{what}[{name!r}]")
        case Tuple():
            for index, part in enumerate(space.spaces):
                check_discrete_range(part, x[index], f"{what}[{index}]")
        case Discrete() | MultiDiscrete() if not isinstance(x, jax.core.Tracer):
            space.check_range(np.asarray(x), what)


def _sample_integers(key: Key, shape: Shape, low: np.ndarray, high: np.ndarray, dtype: np.dtype) -> Array:
    """Sample integers between `low` and `high`, both included, clipped to the range of `dtype`."""
    limits = np.iinfo(dtype)
    low, high = (np.broadcast_to(np.clip(bound, limits.min, limits.max).astype(dtype), shape) for bound in (low, high))
    spans = high.astype(np.float64) - low.astype(np.float64)
    span = int(spans.flat[0]) if spans.size else 0
    if np.all(spans == span) and span < 2**32 and span & (span + 1) == 0:
        # 2^k values are exactly the lowest bits of one random number; the general case needs two and a division.
        bits = jax.random.bits(key, shape, jnp.uint32) & jnp.uint32(span)
        return jnp.asarray(low) + bits.astype(dtype)
    wide = np.promote_types(dtype, np.int32) if dtype.itemsize < 4 else dtype
    low, high, limits = low.astype(wide), high.astype(wide), np.iinfo(wide)
    if np.all(high < limits.max):
        return jax.random.randint(key, shape, jnp.asarray(low), jnp.asarray(high + 1), wide).astype(dtype)
    # randint excludes its upper bound, which overflows here: sample from the range shifted down by one.
    shifted = np.maximum(low, limits.min + 1) - 1
    return jax.random.randint(key, shape, jnp.asarray(shifted), jnp.asarray(high), wide) + 1


def _between(x: AnyArray, low: np.ndarray, high: np.ndarray) -> AnyArray:
    """Tell whether `low <= x <= high`; `x` has the kind of the bounds but may have another width."""
    if np.issubdtype(low.dtype, np.floating):
        # Compare in the dtype of `x`: a float32 value equal to a rounded float64 bound is inside.
        x = x.astype(np.float32) if jnp.issubdtype(x.dtype, np.integer) else x
        return (x >= low.astype(x.dtype)) & (x <= high.astype(x.dtype))
    if np.issubdtype(low.dtype, np.integer) and isinstance(x, jax.core.Tracer):
        limits = np.iinfo(x.dtype)
        reachable = (low <= limits.max) & (high >= limits.min)
        low, high = (np.clip(bound, limits.min, limits.max).astype(x.dtype) for bound in (low, high))
        return reachable & (x >= low) & (x <= high)
    return (x >= low) & (x <= high)


def _as_array(x: PyTree) -> Any:
    if isinstance(x, (jax.Array, np.ndarray, np.generic)):
        return x
    if isinstance(x, (bool, int, float)):
        return np.asarray(x)
    return None


def _same_kind(dtype: np.dtype, expected: np.dtype) -> bool:
    """Tell whether `dtype` is of the expected kind, whatever its width; integers are accepted as floats."""
    if np.issubdtype(expected, np.inexact):
        return jnp.issubdtype(dtype, np.floating) or jnp.issubdtype(dtype, np.integer)
    if np.issubdtype(expected, np.integer):
        return jnp.issubdtype(dtype, np.integer)
    return jnp.issubdtype(dtype, np.bool_)


def _cast_bound(bound: Numbers, dtype: np.dtype) -> np.ndarray:
    """Cast a bound to the dtype of the box; infinity becomes the limit of an integer dtype."""
    bound = np.asarray(bound)
    if not np.issubdtype(dtype, np.integer):
        return bound.astype(dtype)
    limits = np.iinfo(dtype)
    finite = np.where(np.isfinite(bound), bound, 0)
    if np.any(finite < limits.min) or np.any(finite > limits.max) or np.any(finite != np.floor(finite)):
        raise InvalidInputError(f"Box: the bound {bound} is not a whole number in the range of {dtype}.")
    cast = finite.astype(dtype)
    return np.where(np.isposinf(bound), limits.max, np.where(np.isneginf(bound), limits.min, cast)).astype(dtype)


def _as_dtype(bound: np.ndarray, dtype: np.dtype) -> Array:
    """Cast a bound to the dtype of samples; a finite bound that overflows becomes the largest finite number."""
    limit = np.finfo(dtype).max
    return jnp.asarray(np.where(np.isfinite(bound), np.clip(bound, -limit, limit), bound).astype(dtype))


def _frozen(array: np.ndarray) -> np.ndarray:
    array = np.array(array)
    array.setflags(write=False)
    return array


def _bound_text(bound: np.ndarray) -> str:
    if bound.size and np.all(bound == bound.flat[0]):
        return str(bound.flat[0])
    shown = [f"{value:g}" for value in bound.flat[:8]]
    return f"[{', '.join(shown)}{', ...' if bound.size > 8 else ''}]"


def _all_true(results: list[bool | Array]) -> bool | Array:
    if all(isinstance(result, bool) for result in results):
        return all(results)
    return jnp.all(jnp.stack([jnp.asarray(result) for result in results]))


def _common_batch_shape(shapes: list[Shape]) -> Shape:
    if len(set(shapes)) != 1:
        raise ShapeError(f"the entries have different leading axes: {shapes}.")
    return shapes[0]
