"""The configs: YAML files in the groups `agent`, `env` and `preset`, and how one config is composed of them."""

from rookery.configs.composition import compose, sweep
from rookery.configs.explanation import explain

__all__ = ["compose", "explain", "sweep"]
