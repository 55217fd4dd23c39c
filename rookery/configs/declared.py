"""Configs from declarations: the defaults of a run and of each method, and the help of every key.

Hydra loads them from its store. The module of a method is imported when its config is loaded.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, OmegaConf

from rookery.configuration import declarations, to_mapping
from rookery.registry import AGENTS, workflow_class


def agent_defaults(name: str) -> dict[str, Any]:
    """Return the defaults of a method: settings, hyper-parameters, then nested configs such as `network`."""
    workflow = workflow_class(name)
    config = workflow.config_class()
    settings = to_mapping(config)
    nested = {key: settings.pop(key) for key in list(settings) if dataclasses.is_dataclass(getattr(config, key))}
    return {"name": name, **settings, **to_mapping(workflow.hyperparameters_class()), **nested}


def train_defaults() -> dict[str, Any]:
    """Return the defaults of the settings that all methods share."""
    from rookery.workflows.config import TrainConfig

    return to_mapping(TrainConfig())


def train_help() -> dict[str, str]:
    """Return the help of the settings that all methods share, by full names such as `env.runner.processes`."""
    from rookery.workflows.config import TrainConfig

    return help_of(TrainConfig())


def agent_help(name: str) -> dict[str, str]:
    """Return the help of the keys of a method, by full names such as `agent.network.core`."""
    workflow = workflow_class(name)
    return help_of(workflow.config_class(), "agent.") | help_of(workflow.hyperparameters_class(), "agent.")


def help_of(config: object, prefix: str = "") -> dict[str, str]:
    """Return the help of the fields of a config and its nested configs; * marks numbers that may be schedules."""
    found: dict[str, str] = {}
    for name, declaration in declarations(type(config)).items():
        text = declaration.describe()
        if text:
            found[prefix + name] = f"* {text}" if declaration.schedule else text
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            found |= help_of(value, f"{prefix}{name}.")
    return found


class DeclaredNode(ConfigNode):
    """A config in Hydra's store that is built when Hydra loads it; Hydra copies the entry and sets `node`."""

    def __init__(self, name: str, group: str | None, make_fn: Callable[[], dict[str, Any]]) -> None:
        self.name, self.group, self.package, self.provider = f"{name}.yaml", group, None, "rookery"
        self._make_fn = make_fn
        self._node: DictConfig | None = None

    @property
    def node(self) -> DictConfig:
        return OmegaConf.create(self._make_fn()) if self._node is None else self._node

    @node.setter
    def node(self, node: DictConfig) -> None:
        self._node = node


def register() -> None:
    """Put the configs into Hydra's store: the methods as the group `agent`, the settings of a run as `train`."""
    for name in AGENTS:
        register_agent(name)
    ConfigStore.instance().repo["train.yaml"] = DeclaredNode("train", None, train_defaults)


def register_agent(name: str) -> None:
    """Put the config of a method into Hydra's store."""
    node = DeclaredNode(name, "agent", partial(agent_defaults, name))
    ConfigStore.instance().repo.setdefault("agent", {})[node.name] = node
