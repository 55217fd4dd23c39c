"""Checks of the values that environments return: one value, or those of many environments at once.

The functions for many check all values together and go through them one by one only after an error. They return the
arrays and the errors by position; the rows of invalid values hold zeros.
"""

import functools
import math
import numbers
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rookery.errors import EnvironmentCheckError
from rookery.runners.faults import MAX_ERROR_LENGTH, Failed, FaultKind, Phase, error_text, shortened
from rookery.spaces import ArraySpace, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from rookery.types import PyTreeDict

Errors = dict[int, EnvironmentCheckError]
"""Errors by the position of the value."""

INTEGERS = {int, *(np.dtype(code).type for code in np.typecodes["AllInteger"])}
NUMBERS = {float, *INTEGERS, *(np.dtype(code).type for code in np.typecodes["Float"])}
FLAGS = {bool, np.bool_}
CALLS_PER_CHECK = 16
"""One of this many batches has the bounds of one row checked."""
TOLERANCE = 1e-6
"""How far a value may lie outside of its bounds, as a part of the bound or of the range: rounding does that."""
FLOAT32_MAX = float(np.finfo(np.float32).max)
"""Larger numbers would be infinite on the device."""
FEW = 64
"""Numbers up to which a function of Python is faster than one of NumPy."""
REMEDY = ": correct the observation or its space."


class InvalidReplyError(EnvironmentCheckError):
    """The result of `reset` or `step` is not a tuple of the right length."""


class InvalidRewardError(EnvironmentCheckError):
    """A reward is not a finite real number."""


class InvalidFlagError(EnvironmentCheckError):
    """`terminated` or `truncated` is not true or false."""


class InvalidInfoError(EnvironmentCheckError):
    """An info is not a dict."""


class InvalidObservationError(EnvironmentCheckError):
    """An observation is not in its space."""


def as_failed(error: EnvironmentCheckError, phase: Phase) -> Failed:
    """Convert an invalid value into a failure."""
    return Failed(FaultKind.INVALID, phase, shortened(f"{type(error).__name__}: {error}", MAX_ERROR_LENGTH))


def check_reply(reply: Any, phase: Phase) -> None:
    """Raise unless `reply` is a tuple of the right length for `reset` or `step`."""
    parts = "(obs, info)" if phase is Phase.RESET else "(obs, reward, terminated, truncated, info)"
    if not isinstance(reply, tuple):
        raise InvalidReplyError(f"{phase} returned {type(reply).__name__}; expected the tuple {parts}.")
    if len(reply) != (2 if phase is Phase.RESET else 5):
        raise InvalidReplyError(f"{phase} returned a tuple of {len(reply)}; expected {parts}.")


def check_reward(reward: Any) -> float:
    """Return a reward as a float; raise unless it is a finite real number, alone or in an array of shape `(1,)`."""
    try:
        number = _as_number(reward)
    except InvalidRewardError:
        raise
    except Exception as error:
        raise InvalidRewardError(
            f"reward of type {type(reward).__name__} cannot be read: {error_text(error)}; expected a real number."
        ) from error
    if not abs(number) <= FLOAT32_MAX:
        limit = f" of at most {FLOAT32_MAX:.3g}, as float32 holds" if math.isfinite(number) else ""
        raise InvalidRewardError(f"reward is {number}; expected a finite number{limit}.")
    return number


def _as_number(reward: Any) -> float:
    value = reward
    if hasattr(reward, "__array__") and not isinstance(reward, np.generic):
        array = np.asarray(reward)
        if array.shape not in ((), (1,)):
            raise InvalidRewardError(f"reward has shape {list(array.shape)}; expected one number.")
        value = array.reshape(())[()]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise InvalidRewardError(f"reward is {reward!r} ({type(reward).__name__}); expected a real number.")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_flag(name: str, flag: Any) -> bool:
    """Return `terminated` or `truncated` as a bool; 0 and 1 count, alone or in an array of shape `(1,)`."""
    value = as_numpy(flag)
    if isinstance(value, (np.ndarray, np.generic)) and value.shape in ((), (1,)):
        value = value.item()
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise InvalidFlagError(f"{name} is {flag!r} ({type(flag).__name__}); expected True or False.")


def as_numpy(value: Any) -> Any:
    """Convert an array of another library, such as JAX; return anything else as it is."""
    if isinstance(value, (np.ndarray, np.generic)) or not hasattr(value, "__array__"):
        return value
    try:
        return np.asarray(value)
    except Exception:  # its check refuses it
        return value


def check_info(info: Any) -> None:
    """Raise unless an info is a dict or another mapping."""
    if type(info) is not dict and not isinstance(info, Mapping):
        raise InvalidInfoError(f"info is {info!r} ({type(info).__name__}); expected a dict.")


def stack_rewards(rewards: Sequence[Any]) -> tuple[np.ndarray, Errors]:
    """Put rewards into one float64 array."""
    if set(map(type, rewards)) <= NUMBERS:
        try:
            # The norm is no smaller than any of them, and NaN if one of them is.
            if math.hypot(*rewards) <= FLOAT32_MAX:
                return np.array(rewards, np.float64), {}
        except OverflowError:
            pass
    return _one_by_one(check_reward, rewards, np.zeros(len(rewards)))


def stack_flags(terminated: Sequence[Any], truncated: Sequence[Any]) -> tuple[np.ndarray, Errors]:
    """Put the values of `terminated` and of `truncated` into one bool array `[2, N]`."""
    flags = (*terminated, *truncated)
    try:
        zeros_and_ones = bytearray(flags)
    except (TypeError, ValueError):  # also for NumPy bools, which are no integers
        if set(map(type, flags)) <= FLAGS:
            return np.array(flags, np.bool_).reshape(2, -1), {}
    else:
        if not zeros_and_ones.translate(None, b"\0\1"):
            return np.frombuffer(zeros_and_ones, np.bool_).reshape(2, -1), {}
    stacked = np.zeros((2, len(terminated)), np.bool_)
    errors: Errors = {}
    for name, row, values in (("terminated", 0, terminated), ("truncated", 1, truncated)):
        errors |= _one_by_one(functools.partial(check_flag, name), values, stacked[row])[1]
    return stacked, errors


def wrong_infos(infos: Sequence[Any]) -> Errors:
    """Return the errors of infos that are no dicts."""
    if set(map(type, infos)) <= {dict}:
        return {}
    return _errors_of(check_info, infos)


class ObsStacker:
    """Copies observations into new arrays `[N, ...]`, so that an env cannot overwrite them.

    Structure, shapes, dtypes and finiteness are always checked. Bounds are checked for one observation now and then, in
    turn, and never without `sample_bounds`. What is outside of them by no more than rounding is clipped and counted.
    """

    def __init__(self, space: Space, sample_bounds: bool = True) -> None:
        self._space = space
        self._stack = _stack_fn(space)
        self._limits = _Limits(space, sample_bounds)

    @property
    def num_clipped(self) -> int:
        """Observations that were clipped."""
        return self._limits.num_clipped

    def stack(self, rows: Sequence[Any]) -> tuple[Any, Errors]:
        """Copy the observations into one tree of arrays in the dtypes of their space."""
        try:
            stacked = self._stack(rows)
        except Exception:  # of an object that only looks like an array or a dict
            stacked = None
        if stacked is not None:
            return stacked, self._limits.check(stacked, len(rows), clips=True)
        errors = _errors_of(self._check_one, rows)
        blank = zeros_of(self._space)
        stacked = self._stack([blank if k in errors else obs for k, obs in enumerate(rows)])
        return stacked, self._limits.check(stacked, len(rows), clips=True) | errors

    def _check_one(self, obs: Any) -> None:
        _check_obs(self._space, obs, "observation")
        if self._stack([obs]) is None:
            raise InvalidObservationError(f"observation is {_kind(obs)}, which cannot be stacked{REMEDY}")


class StepChecker:
    """Checks the steps of environments that return arrays."""

    def __init__(self, space: Space, sample_bounds: bool = True) -> None:
        self._space = space
        self._limits = _Limits(space, sample_bounds)

    @property
    def num_clipped(self) -> int:
        """Observations that were outside of their bounds by rounding; they belong to the env and stay as they are."""
        return self._limits.num_clipped

    def check_obs(self, obs: Any, num_rows: int) -> Any:
        """Return observations as a tree; raise unless they are arrays `[N, ...]` of their space."""
        _check_obs(self._space, obs, "the batch of observations", (num_rows,))
        return _as_tree(self._space, obs)

    def check_values(self, obs: Any, num_rows: int) -> Errors:
        """Check that all rows are finite, and the bounds of one row, in turn."""
        return self._limits.check(obs, num_rows, clips=False)

    def check_rewards(self, rewards: Any, num_rows: int) -> tuple[np.ndarray, Errors]:
        """Return rewards as a float64 array `[N]` and the rows that are not finite; raise if they are not numbers."""
        rewards = np.asarray(rewards)
        if rewards.shape != (num_rows,) or rewards.dtype.kind not in "fiu":
            raise InvalidRewardError(
                f"rewards are {rewards.dtype}{list(rewards.shape)}; expected real numbers [{num_rows}]."
            )
        rewards = rewards.astype(np.float64, copy=False)
        if np.all(np.abs(rewards) <= FLOAT32_MAX):
            return rewards, {}
        return _one_by_one(check_reward, rewards, np.zeros(num_rows))

    def check_infos(self, infos: Any, envs: Sequence[int]) -> Errors:
        """Return the errors of infos by env; raise unless they are a dict of infos of these envs."""
        check_info(infos)
        if not infos:
            return {}
        if strangers := infos.keys() - set(envs):
            raise InvalidInfoError(f"infos are of {sorted(strangers, key=str)}; expected only envs that were stepped.")
        envs = list(infos)
        return {envs[position]: error for position, error in wrong_infos(list(infos.values())).items()}

    def check_flags(self, name: str, flags: Any, num_rows: int) -> np.ndarray:
        """Return `terminated` or `truncated` as an array `[N]`; raise unless its entries are bools."""
        flags = np.asarray(flags)
        if flags.shape != (num_rows,) or flags.dtype != np.bool_:
            raise InvalidFlagError(f"{name} is {flags.dtype}{list(flags.shape)}; expected bool[{num_rows}].")
        return flags


def zeros_of(space: Space, *batch_shape: int) -> Any:
    """Return observations of zeros, in the structure of stacked ones."""
    match space:
        case Dict():
            return PyTreeDict({name: zeros_of(part, *batch_shape) for name, part in space.spaces.items()})
        case Tuple():
            return tuple(zeros_of(part, *batch_shape) for part in space.spaces)
        case ArraySpace():
            return np.zeros((*batch_shape, *space.shape), space.dtype)
    raise AssertionError(f"{space} is not a space of rookery.spaces")


def row_of(tree: Any, row: int) -> Any:
    """Return one row of a tree of arrays."""
    return tree[row] if type(tree) is np.ndarray else jax.tree.map(lambda leaf: leaf[row], tree)


def _one_by_one(check: Callable[[Any], Any], values: Sequence[Any], into: np.ndarray) -> tuple[np.ndarray, Errors]:
    def check_and_keep(position: int) -> None:
        into[position] = check(values[position])

    return into, _errors_of(check_and_keep, range(len(values)))


def _errors_of(check: Callable[[Any], Any], values: Sequence[Any]) -> Errors:
    errors: Errors = {}
    for position, value in enumerate(values):
        try:
            check(value)
        except EnvironmentCheckError as error:
            errors[position] = error
        except Exception as error:  # of an object that only looks like a number, an array or a dict
            errors[position] = EnvironmentCheckError(f"reading what it returned raised {error_text(error)}.")
    return errors


def _check_obs(space: Space, obs: Any, what: str, batch_shape: tuple[int, ...] = ()) -> None:
    match space:
        case Dict():
            if not isinstance(obs, Mapping) or obs.keys() != space.spaces.keys():
                given = f"a dict with {sorted(map(str, obs))}" if isinstance(obs, Mapping) else _kind(obs)
                raise InvalidObservationError(f"{what} is {given}; expected a dict with {sorted(space.spaces)}{REMEDY}")
            for name, part in space.spaces.items():
                _check_obs(part, obs[name], f"{what}[{name!r}]", batch_shape)
        case Tuple():
            if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
                given = f"of {len(obs)} entries" if isinstance(obs, (tuple, list)) else _kind(obs)
                raise InvalidObservationError(f"{what} is {given}; expected a tuple of {len(space.spaces)}{REMEDY}")
            for index, (part, item) in enumerate(zip(space.spaces, obs, strict=True)):
                _check_obs(part, item, f"{what}[{index}]", batch_shape)
        case ArraySpace():
            _check_array(space, obs, what, (*batch_shape, *space.shape))


def _check_array(space: ArraySpace, obs: Any, what: str, shape: tuple[int, ...]) -> None:
    obs = as_numpy(obs)
    is_integer = isinstance(space, Discrete) and _is_integer(obs)
    problem = None
    if not isinstance(obs, (np.ndarray, np.generic)) and not is_integer:
        problem = f"is {_kind(obs)}; expected an array"
    elif np.shape(obs) != shape:
        problem = f"has shape {list(np.shape(obs))}; expected"
    elif not is_integer and obs.dtype != space.dtype:
        problem = f"has dtype {obs.dtype}; expected"
    if problem is not None:
        raise InvalidObservationError(f"{what} {problem} {space.dtype}{list(shape)} of {space}{REMEDY}")
    # An integer that its dtype cannot hold could not be stacked.
    if isinstance(space, Discrete) and shape == () and not space.start <= obs < space.start + space.n:
        raise InvalidObservationError(f"{what} is {obs}, which is outside of {space}.")


def _is_integer(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "iu"
    return isinstance(value, int) and not isinstance(value, bool)


def _as_tree(space: Space, obs: Any) -> Any:
    match space:
        case Dict():
            return PyTreeDict({name: _as_tree(part, obs[name]) for name, part in space.spaces.items()})
        case Tuple():
            return tuple(_as_tree(part, item) for part, item in zip(space.spaces, obs, strict=True))
    return as_numpy(obs)


class _Limits:
    """The limits of the values of an observation: they are finite and lie in the bounds of their space."""

    def __init__(self, space: Space, sample_bounds: bool) -> None:
        self.num_clipped = 0
        leaves = list(_leaves(space))
        self._float_leaves = [(path, leaf) for path, leaf in leaves if leaf.dtype.kind == "f"]
        self._bounded_leaves = [(path, leaf, *_low_and_high(leaf)) for path, leaf in leaves] if sample_bounds else []
        self._num_calls = -1

    def check(self, obs: Any, num_rows: int, clips: bool) -> Errors:
        """Check that all rows are finite and, in every few calls, the bounds of one row; maybe clip that row."""
        errors: Errors = {}
        for path, space in self._float_leaves:
            values = _at(obs, path) if path else obs
            flat = values.ravel()
            # One fast call: no value exceeds the result, which is NaN if one of them is.
            if not (math.hypot(*flat.tolist()) if len(flat) <= FEW else flat.dot(flat)) <= FLOAT32_MAX:
                errors |= _not_finite(values, path, space)
        if num_rows:
            self._num_calls += 1
            if self._num_calls % CALLS_PER_CHECK == 0 and self._bounded_leaves:
                row = self._num_calls // CALLS_PER_CHECK % num_rows
                try:
                    self._check_bounds(obs, row, clips)
                except InvalidObservationError as error:
                    errors.setdefault(row, error)
        return errors

    def _check_bounds(self, obs: Any, row: int, clips: bool) -> None:
        was_clipped = False
        for path, space, low, high in self._bounded_leaves:
            values = _at(obs, path)
            value = values[row]
            if _is_between(low, value, high):
                continue
            is_outside = ~((value >= low - _rounding(low, high)) & (value <= high + _rounding(high, low)))
            if is_outside.any():
                raise _outside(value, is_outside, path, f", which is outside of {space}")
            was_clipped = True
            if clips:
                values[row] = np.clip(value, low, high)
        self.num_clipped += was_clipped


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _is_between(low: np.ndarray, value: Any, high: np.ndarray) -> bool:
    if low.size <= FEW:
        numbers = value.ravel().tolist()
        return all(map(operator.le, low.ravel().tolist(), numbers)) and all(
            map(operator.le, numbers, high.ravel().tolist())
        )
    return bool(np.all((value >= low) & (value <= high)))


def _not_finite(values: np.ndarray, path: tuple[Any, ...], space: Space) -> Errors:
    """Return the errors of rows with values that float32 cannot hold."""
    is_wrong = ~(np.abs(values) <= FLOAT32_MAX)
    rows = np.flatnonzero(is_wrong.reshape(len(values), -1).any(axis=1)).tolist()
    return {row: _outside(values[row], is_wrong[row], path, f"; expected finite values of {space}") for row in rows}


def _outside(value: Any, is_outside: Any, path: tuple[Any, ...], why: str) -> InvalidObservationError:
    """Return the error for the first wrong entry of an array."""
    first = tuple(np.argwhere(is_outside)[0].tolist())
    what = "observation" + "".join(f"[{key!r}]" for key in path)
    where = f" at {list(first)}" if first else ""
    return InvalidObservationError(f"{what} is {value[first]}{where}{why}.")


def _rounding(bound: Any, other: Any) -> Any:
    """Return how far a value may lie beyond a bound; integers are exact."""
    if np.asarray(bound).dtype.kind != "f":
        return 0
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(np.asarray(other, np.float64) - bound)
    return TOLERANCE * np.maximum(
        np.where(np.isfinite(bound), np.abs(bound), 0.0), np.where(np.isfinite(size), size, 1.0)
    )


def _leaves(space: Space, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], ArraySpace]]:
    match space:
        case Dict():
            for name, part in space.spaces.items():
                yield from _leaves(part, (*path, name))
        case Tuple():
            for index, part in enumerate(space.spaces):
                yield from _leaves(part, (*path, index))
        case ArraySpace():
            yield path, space


def _low_and_high(space: ArraySpace) -> tuple[np.ndarray, np.ndarray]:
    low: Any
    high: Any
    match space:
        case Box():
            low, high = space.low, space.high
        case Discrete():
            low, high = space.start, space.start + space.n - 1
        case MultiDiscrete():
            low, high = space.start, space.start + space.nvec - 1
        case MultiBinary():
            low, high = 0, 1
        case _:
            raise AssertionError(f"no bounds are known for {space}")
    return np.broadcast_to(low, space.shape), np.broadcast_to(high, space.shape)


def _stack_fn(space: Space) -> Callable[[Sequence[Any]], Any]:
    """Return a function that stacks observations; it returns None if one does not have the form of the space."""
    match space:
        case Dict():
            return functools.partial(_stack_dicts, {name: _stack_fn(part) for name, part in space.spaces.items()})
        case Tuple():
            return functools.partial(_stack_tuples, [_stack_fn(part) for part in space.spaces])
        case Discrete():
            return functools.partial(_stack_integers, space.dtype)
        case ArraySpace():
            return functools.partial(_stack_arrays, space.dtype, space.shape)
    raise AssertionError(f"{space} is not a space of rookery.spaces")


def _stack_dicts(parts: dict[str, Callable], rows: Sequence[Any]) -> PyTreeDict | None:
    names = parts.keys()
    if not all(isinstance(row, Mapping) and row.keys() == names for row in rows):
        return None
    stacked = {name: stack([row[name] for row in rows]) for name, stack in parts.items()}
    return None if any(part is None for part in stacked.values()) else PyTreeDict(stacked)


def _stack_tuples(parts: list[Callable], rows: Sequence[Any]) -> tuple | None:
    if not all(isinstance(row, (tuple, list)) and len(row) == len(parts) for row in rows):
        return None
    stacked = tuple(stack([row[index] for row in rows]) for index, stack in enumerate(parts))
    return None if any(part is None for part in stacked) else stacked


def _stack_integers(dtype: np.dtype, rows: Sequence[Any]) -> np.ndarray | None:
    if not set(map(type, rows)) <= INTEGERS:
        rows = list(map(as_numpy, rows))
        if not all(map(_is_integer, rows)):
            return None
    try:
        stacked = np.array(rows, dtype)
    except (ValueError, OverflowError):
        return None
    return stacked if stacked.shape == (len(rows),) else None


_dtype_of = operator.attrgetter("dtype")


def _stack_arrays(dtype: np.dtype, shape: tuple[int, ...], rows: Sequence[Any]) -> np.ndarray | None:
    if set(map(type, rows)) != {np.ndarray}:
        rows = list(map(as_numpy, rows))
        if not all(isinstance(row, (np.ndarray, np.generic)) for row in rows):
            return None
    if list(map(_dtype_of, rows)).count(dtype) != len(rows):
        return None
    try:
        stacked = np.array(rows, dtype) if rows else np.empty((0, *shape), dtype)
    except ValueError:
        return None
    return stacked if stacked.shape == (len(rows), *shape) else None


def _kind(value: Any) -> str:
    return f"of type {type(value).__name__}"
