"""Composes a config from defaults, presets and overrides, and prints it with its help.

The groups `env` and `preset` are YAML files. The group `agent` and the settings of a run come from declarations.
"""

from rookery.configs.composition import compose, sweep, with_values
from rookery.configs.declared import register
from rookery.configs.explanation import explain
from rookery.configs.preset_files import compose_with_preset
from rookery.configs.ray_keys import split_overrides, split_values
from rookery.configs.resumption import changes_from, named_again, resumed_config

__all__ = [
    "changes_from",
    "compose",
    "compose_with_preset",
    "explain",
    "named_again",
    "resumed_config",
    "split_overrides",
    "split_values",
    "sweep",
    "with_values",
]

register()
