"""Splits a command line into the config that trials start from, what is searched, and how."""

from collections.abc import Mapping, Sequence
from typing import Any

from rookery.configs.composition import GROUPS, compose, full_key, parse
from rookery.configuration import field_names
from rookery.errors import InvalidInputError, UnknownNameError, nearest_names
from rookery.runs.directory import flat_config
from rookery.tuning.config import TuneConfig, tune_config

RANGE_KEYS = {"low", "high", "scale"}


def split_overrides(overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], TuneConfig]:
    """Return the config that trials start from, the searched settings by key, and the settings of the search."""
    own: dict[str, Any] = {}
    candidates: list[tuple[str, Any, str]] = []
    others: list[str] = []
    for text in overrides:
        override = parse(text)
        key, value = override.key_or_group, override.value()
        if key in field_names(TuneConfig):
            own[key] = _plain(value)
        elif isinstance(value, (list, dict)) and text[0] not in "+~":
            _check_group(key, text)
            candidates.append((key, _plain(value), text))
        else:
            others.append(text)
    config = tune_config(own)
    base = _compose(others)
    space: dict[str, Any] = {}
    fixed: list[str] = []
    for key, value, text in candidates:
        if is_searched(base, _known_key(base, key), value):
            space[key] = value
        else:
            fixed.append(text)
    return compose([*others, *fixed]) if fixed else base, space, config


def _compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose a config; an unknown key may be a misspelled one of the search."""
    try:
        return compose(overrides)
    except UnknownNameError as error:
        for key in (parse(text).key_or_group for text in overrides):
            near = nearest_names(key, field_names(TuneConfig))
            if near and f"unknown key {key!r}" in str(error):
                raise UnknownNameError(f"unknown key {key!r}. Did you mean {near[0]!r}?") from None
        raise


def is_searched(base: Mapping[str, Any], key: str, value: Any) -> bool:
    """Tell a range or a list of choices from a value: a list is a value where the config has a list."""
    if isinstance(value, Mapping):
        return not RANGE_KEYS.isdisjoint(value)
    has_list = isinstance(flat_config(base).get(key), list)
    return isinstance(value, list) and (not has_list or (bool(value) and all(isinstance(one, list) for one in value)))


def _known_key(base: Mapping[str, Any], key: str) -> str:
    """Return the key, which the config must have, as in `rookery train`."""
    if full_key(base, key) != key:
        raise UnknownNameError(f"unknown key {key!r}. Did you mean {full_key(base, key)!r}?")
    return key


def _check_group(key: str, text: str) -> None:
    if key in GROUPS:
        raise InvalidInputError(
            f"{text}: a search has one {key}: start one for each, or train them with `rookery train --multirun`."
        )


def _plain(value: Any) -> Any:
    """Return a value of Hydra's grammar as plain data."""
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list) else value
