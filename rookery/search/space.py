"""The space of a search: which hyper-parameters vary, between which bounds, on which scale."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from rookery.configuration import Declaration, check_settings, field_names, from_mapping, plain, setting
from rookery.errors import InvalidInputError, unknown_name
from rookery.hyperparameters import Hyperparameters, LinearSchedule, declaration_of
from rookery.search.scales import SCALES, Scale
from rookery.types import Array, Key

Numbers = dict[str, Array]
"""The searched numbers of one member by name; of a population, arrays `[P]`."""


@dataclass(frozen=True)
class SearchRange:
    """The bounds and the scale of one searched number."""

    low: float
    high: float
    scale: str = setting("linear", choices=SCALES)
    end_ratio: float | None = None
    """For a schedule, whose start is searched: its end divided by its start."""

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.low < self.high:
            raise InvalidInputError(f"low={self.low:g} must be less than high={self.high:g}.")
        if self.scale == "log" and self.low <= 0.0:
            raise InvalidInputError(f"low={self.low:g} must be greater than 0 on the scale log.")
        if self.scale == "complement" and self.high >= 1.0:
            raise InvalidInputError(f"high={self.high:g} must be less than 1 on the scale complement.")

    def sample(self, key: Key) -> Array:
        """Draw a number uniformly on the scale."""
        return self.from_unit(jax.random.uniform(key))

    def perturb(self, number: Array, factor: Array) -> Array:
        """Multiply a number by a factor, or its complement, and clip it to the bounds."""
        return self._clipped(self._scale.stretched(number, factor, self.low, self.high))

    def to_unit(self, number: Array) -> Array:
        """Return the place of a number between the bounds: 0 is `low`, 1 is `high`."""
        first, last = self._ends
        return (self._scale.to_line(number) - first) / (last - first)

    def from_unit(self, place: Array) -> Array:
        """Return the number at a place between the bounds: the inverse of `to_unit`."""
        first, last = self._ends
        return self._clipped(self._scale.from_line(first + place * (last - first)))

    @property
    def _scale(self) -> type[Scale]:
        return SCALES[self.scale]

    @property
    def _ends(self) -> tuple[Array, Array]:
        return self._scale.to_line(jnp.float32(self.low)), self._scale.to_line(jnp.float32(self.high))

    def _clipped(self, number: Array) -> Array:
        return jnp.clip(number, jnp.float32(self.low), jnp.float32(self.high))


@dataclass(frozen=True)
class SearchSpace:
    """Ranges by the names of hyper-parameters, in alphabetical order.

    The functions are for one member and can be vmapped. They take the key of the member and derive one key per name,
    which does not depend on the other names.
    """

    ranges: tuple[tuple[str, SearchRange], ...]

    @classmethod
    def of(cls, space: Mapping[str, Any], hyperparameters: Hyperparameters, path: str = "agent.space") -> Self:
        """Build the space of a config, `{learning_rate: {low: 1e-5, high: 3e-2, scale: log}}`, and check it.

        `hyperparameters` are those that the search starts from. `path` is the key of the space in the config.
        """
        names = field_names(type(hyperparameters))
        known = [name for name in names if not isinstance(getattr(hyperparameters, name), Hyperparameters)]
        for name in space:
            if name not in known:
                hint = "" if known else f"{type(hyperparameters).__name__} declares no numbers."
                raise unknown_name(f"hyper-parameter of {path}", name, known, hint)
        return cls(tuple((name, _range_of(name, space[name], hyperparameters, path)) for name in sorted(space)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.ranges)

    def sample(self, key: Key) -> Numbers:
        """Draw all numbers of a member, each uniformly on its scale."""
        return {name: own.sample(key_of(key, name)) for name, own in self.ranges}

    def perturb(
        self, numbers: Numbers, key: Key, factor: Array | float, resample_probability: Array | float = 0.0
    ) -> Numbers:
        """Multiply or divide each number by `factor`, independently, or with a probability draw it again."""
        return {
            name: _perturbed(own, numbers[name], key_of(key, name), factor, resample_probability)
            for name, own in self.ranges
        }

    def to_unit(self, numbers: Numbers) -> Numbers:
        """Return the places of numbers between their bounds, from 0 to 1."""
        return {name: own.to_unit(numbers[name]) for name, own in self.ranges}

    def from_unit(self, places: Numbers) -> Numbers:
        """Return the numbers at places between their bounds; places beyond 0 and 1 are clipped."""
        return {name: own.from_unit(places[name]) for name, own in self.ranges}

    def numbers_of(self, hyperparameters: Hyperparameters) -> Numbers:
        """Return the searched numbers among hyper-parameters; of a schedule, its start."""
        return {name: jnp.float32(_start_of(getattr(hyperparameters, name))) for name in self.names}

    def with_numbers(self, hyperparameters: Hyperparameters, numbers: Numbers) -> Hyperparameters:
        """Return hyper-parameters with these searched numbers; the end of a schedule keeps its ratio to the start."""
        changes: dict[str, Any] = {}
        for name, own in self.ranges:
            value = getattr(hyperparameters, name)
            if isinstance(value, LinearSchedule):
                changes[name] = value.replace(start=numbers[name], end=numbers[name] * jnp.float32(own.end_ratio))
            else:
                changes[name] = numbers[name]
        return hyperparameters.replace(**changes)


def _range_of(name: str, given: Any, hyperparameters: Hyperparameters, path: str) -> SearchRange:
    """Build one range and check it against the declaration and the value of the hyper-parameter."""
    path, value = f"{path}.{name}", getattr(hyperparameters, name)
    given = plain(given, path)
    if "end_ratio" in given:
        raise InvalidInputError(f"{path}: unknown key 'end_ratio'. The keys are: low, high, scale.")
    if value is None:
        raise InvalidInputError(f"{path}: {name} is null, which disables it: give it a number, or do not search it.")
    start = _start_of(value)
    if isinstance(value, LinearSchedule):
        if start == 0.0:
            raise InvalidInputError(
                f"{path}: the schedule of {name} starts at 0, so its end has no ratio to its start: start it elsewhere."
            )
        given["end_ratio"] = float(value.end) / float(start)
    own = from_mapping(SearchRange, given, path)
    _check_declared(path, own, declaration_of(type(hyperparameters), name))
    return own


def _check_declared(path: str, own: SearchRange, declaration: Declaration) -> None:
    for bound in ("low", "high"):
        number = getattr(own, bound)
        if not declaration.contains(number):
            raise InvalidInputError(f"{path}.{bound}={number:g} {declaration.expected_range()}.")
        if own.end_ratio is not None and not declaration.contains(number * own.end_ratio):
            raise InvalidInputError(
                f"{path}.{bound}={number:g} ends the schedule at {number * own.end_ratio:g}, which "
                f"{declaration.expected_range()}."
            )


def _start_of(value: Any) -> Any:
    return value.start if isinstance(value, LinearSchedule) else value


def key_of(key: Key, name: str) -> Key:
    """Derive the key of one searched number from that of its member."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def _perturbed(
    own: SearchRange, number: Array, key: Key, factor: Array | float, resample_probability: Array | float
) -> Array:
    direction_key, choice_key, sample_key = jax.random.split(key, 3)
    factors = jnp.float32(factor), 1.0 / jnp.float32(factor)
    perturbed = own.perturb(number, jnp.where(jax.random.bernoulli(direction_key), *factors))
    is_drawn_again = jax.random.uniform(choice_key) < resample_probability
    return jnp.where(is_drawn_again, own.sample(sample_key), perturbed)
