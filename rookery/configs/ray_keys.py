"""The keys `ray.*` of a command line or of Python. They say where a run works, so they are no part of its config."""

from collections.abc import Mapping, Sequence
from typing import Any

from rookery.configs.composition import parse
from rookery.configuration import from_mapping
from rookery.errors import InvalidInputError
from rookery.runners.ray.settings import RaySettings

GROUP = "ray"


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], RaySettings | None]:
    """Return the overrides without `ray.*`, and the settings of those; None without any."""
    others, given = [], {}
    for text in overrides:
        if not _is_key(text.lstrip("+").partition("=")[0]):
            others.append(text)
            continue
        override = parse(text.lstrip("+"))
        if override.is_sweep_override():
            raise InvalidInputError(f"{text}: all runs of a command use the same Ray: give one value.")
        given[override.key_or_group] = override.value()
    return others, split_values(given)[1]


def split_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], RaySettings | None]:
    """Return the values by key without `ray.*`, and the settings of those; None without any."""
    others = {key: value for key, value in values.items() if not _is_key(key)}
    if len(others) == len(values):
        return others, None
    whole = values.get(GROUP, {})
    if isinstance(whole, RaySettings):
        return others, whole
    if not isinstance(whole, Mapping):
        raise InvalidInputError(f"{GROUP}={whole!r:.80}: single settings are written as {GROUP}.KEY=VALUE.")
    single = {key.removeprefix(f"{GROUP}."): value for key, value in values.items() if key.startswith(f"{GROUP}.")}
    return others, from_mapping(RaySettings, {**whole, **single}, GROUP)


def _is_key(key: str) -> bool:
    return key == GROUP or key.startswith(f"{GROUP}.")
