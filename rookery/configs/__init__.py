"""Composes a config from defaults, presets and overrides, and prints it with its help.

The groups `env` and `preset` are YAML files. The group `agent` and the settings of a run come from declarations.
"""

from rookery.configs.composition import compose, sweep
from rookery.configs.declared import register
from rookery.configs.explanation import explain

__all__ = ["compose", "explain", "sweep"]

register()
