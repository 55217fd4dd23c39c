"""The space of a search: ranges of hyper-parameters and choices of any other setting, by the keys of a config."""

import itertools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from rookery.configs import with_values
from rookery.configs.composition import full_key
from rookery.configuration import field_names
from rookery.errors import InvalidInputError, RookeryError
from rookery.registry import workflow_class
from rookery.search import SearchRange, SearchSpace
from rookery.types import Key
from rookery.workflows.config import Settings

REFUSED = {
    "seed": "all trials use the same seeds, and num_seeds is their number",
    "num_seeds": "all trials use the same seeds, and num_seeds is their number",
    "total_timesteps": "all trials have the same budget",
    "run_dir": "search_dir is where a search is written",
    "devices": "all trials use the same devices",
}
"""The settings that cannot be searched, and why."""

Values = dict[str, Any]
"""The searched settings of one trial by their keys, as a config takes them."""


@dataclass(frozen=True)
class Dimension(ABC):
    """One searched setting."""

    key: str

    @property
    @abstractmethod
    def places(self) -> SearchRange:
        """The range of numbers that stand for the values."""

    @abstractmethod
    def value(self, place: float) -> Any:
        """Return the value at a place, as a config takes it."""


@dataclass(frozen=True)
class Range(Dimension):
    """A hyper-parameter between two bounds. A schedule is searched by its start; its end keeps its ratio to it."""

    own: SearchRange

    @property
    def places(self) -> SearchRange:
        return self.own

    def value(self, place: float) -> Any:
        start = _float32(place)
        return start if self.own.end_ratio is None else {"start": start, "end": _float32(start * self.own.end_ratio)}


@dataclass(frozen=True)
class Choices(Dimension):
    """A setting with one of several values, all equally likely."""

    values: tuple[Any, ...]

    @property
    def places(self) -> SearchRange:
        return SearchRange(0.0, float(len(self.values)))

    def value(self, place: float) -> Any:
        return self.values[min(int(place), len(self.values) - 1)]


@dataclass(frozen=True)
class TuneSpace:
    """All searched settings."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def of(cls, base: Mapping[str, Any], given: Mapping[str, Any]) -> "TuneSpace":
        """Build the space of `{key: {low, high, scale}}` and `{key: [choice, ...]}`, and check every bound and choice.

        `base` is the config that trials start from. The keys are full.
        """
        if not given:
            raise InvalidInputError(
                "nothing to search: give a range, 'agent.learning_rate={low: 1e-5, high: 1e-2, scale: log}', or "
                "choices, 'agent.num_minibatches=[2,4,8]'."
            )
        settings = settings_of(base, {})
        return cls(tuple(_dimension(base, settings, key, given[key]) for key in sorted(given)))

    def sample(self, key: Key, numbers: range) -> list[Values]:
        """Draw the settings of trials by their numbers; those of one trial do not depend on the others."""
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(np.array(numbers, np.uint32))
        places = jax.tree.map(np.asarray, jax.vmap(self.places.sample)(keys))
        return [self.values({name: places[name][index] for name in places}) for index in range(len(numbers))]

    def combinations(self, at_most: int) -> list[Values] | None:
        """Return all combinations of choices; None if a range is searched, or if there are more than `at_most`."""
        choices = [dimension.values for dimension in self.dimensions if isinstance(dimension, Choices)]
        if len(choices) < len(self.dimensions) or math.prod(map(len, choices)) > at_most:
            return None
        keys = [dimension.key for dimension in self.dimensions]
        return [dict(zip(keys, values, strict=True)) for values in itertools.product(*choices)]

    def values(self, places: Mapping[str, Any]) -> Values:
        """Return the settings at some places."""
        return {dimension.key: dimension.value(float(places[dimension.key])) for dimension in self.dimensions}

    @cached_property
    def places(self) -> SearchSpace:
        """The space of the numbers that stand for values."""
        return SearchSpace(tuple((dimension.key, dimension.places) for dimension in self.dimensions))


def full_space(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space by full keys; that of the method if none is given."""
    if given:
        return {full_key(base, name): _data(name, entry) for name, entry in given.items()}
    of_method = workflow_class(base["agent"]["name"]).search_space
    return {f"agent.{name}": dict(of_method[name]) for name in of_method if base["agent"][name] is not None}


def _data(name: str, entry: Any) -> Any:
    """Return a range or choices as they are read from a file; raise if they cannot be written to one."""
    try:
        return json.loads(json.dumps(entry))
    except TypeError as error:
        raise InvalidInputError(
            f"{name}={entry!r:.80}: {error}. Give numbers, text, lists and mappings; name a class as 'module:Class'."
        ) from None


def settings_of(base: Mapping[str, Any], values: Mapping[str, Any]) -> Settings:
    """Return the settings of a trial; raise if they are invalid, or have no meaning in a search."""
    config = with_values(base, values)
    name = config["agent"]["name"]
    settings = workflow_class(name).check_config(config, name)
    train = settings.train
    if train.run_dir is not None:
        raise InvalidInputError(f"run_dir={train.run_dir}: set search_dir instead, which holds the runs of all trials.")
    if train.stop_at.value is not None:
        raise InvalidInputError("stop_at.value ends a run, and the trials of a search share runs: leave it out.")
    if train.video.interval is not None:
        raise InvalidInputError("video.interval: trials make no videos; train the best setting with it.")
    return settings


def _dimension(base: Mapping[str, Any], settings: Settings, key: str, entry: Any) -> Dimension:
    if key in REFUSED:
        raise InvalidInputError(f"{key} cannot be searched: {REFUSED[key]}.")
    if isinstance(entry, Mapping):
        return Range(key, _range(settings, key, entry))
    if not isinstance(entry, (list, tuple)):
        raise InvalidInputError(
            f"{key}={entry!r:.80}: expected a range {{low: ..., high: ..., scale: log}} or a list of choices."
        )
    return _checked_choices(base, Choices(key, tuple(entry)))


def _range(settings: Settings, key: str, given: Mapping[str, Any]) -> SearchRange:
    name = key.removeprefix("agent.")
    if name not in field_names(type(settings.hyperparameters)):
        raise InvalidInputError(
            f"{key} is not a number that a compiled program takes: give a list of choices, like {key}=[...]."
        )
    return SearchSpace.of({name: given}, settings.hyperparameters, "agent").ranges[0][1]


def _checked_choices(base: Mapping[str, Any], choices: Choices) -> Choices:
    if not choices.values:
        raise InvalidInputError(f"{choices.key}=[]: give at least one choice.")
    for value in choices.values:
        try:
            settings_of(base, {choices.key: value})
        except RookeryError as error:
            raise InvalidInputError(f"the choice {value!r:.80} of {choices.key} does not fit: {error}") from error
    return choices


def _float32(number: float) -> float:
    """Return the shortest number that is the same in float32."""
    return float(str(np.float32(number)))
