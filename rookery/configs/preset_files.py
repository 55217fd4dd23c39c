"""Presets in files of the user, such as the best setting of a search."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.configs.composition import GROUPS, compose, parse, with_values
from rookery.configuration import plain
from rookery.errors import InvalidInputError
from rookery.runs.directory import flat_config
from rookery.runs.documents import read_yaml


def compose_with_preset(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose the config of the agent and the environment that a preset names, with its settings, then overrides."""
    preset = read_preset(path)
    given = [parse(text).key_or_group for text in overrides]
    names = {group: preset.get(group, {}).pop("name", None) for group in GROUPS}
    chosen = [f"{group}='{name}'" for group, name in names.items() if name is not None and group not in given]
    config = compose([*chosen, *overrides])
    return with_values(config, {key: value for key, value in flat_config(preset).items() if not _is_given(key, given)})


def read_preset(path: Path) -> dict[str, Any]:
    """Read a preset: a mapping like those of `rookery/configs/preset`, in which agent and env may have a name."""
    try:
        preset = plain(read_yaml(path.parent, path.name), str(path))
    except OSError as error:
        raise InvalidInputError(f"--preset {path}: {error.strerror}.") from error
    for group in GROUPS:
        if not isinstance(preset.setdefault(group, {}), Mapping):
            raise InvalidInputError(f"{path}: {group} is {preset[group]!r:.80}, expected a mapping like {{name: ...}}.")
    return preset


def _is_given(key: str, given: Sequence[str]) -> bool:
    """Tell whether an override gives the value of a key, or of a mapping around it."""
    return any(key == own or key.startswith(f"{own}.") or own.startswith(f"{key}.") for own in given)
