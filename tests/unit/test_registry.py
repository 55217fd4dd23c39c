"""The methods by name."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import rookery
from rookery.errors import InvalidInputError, UnknownNameError
from rookery.registry import agent_names, build_workflow, workflow_class
from rookery.workflows.workflow import Workflow

AGENT_CONFIGS = Path(rookery.__file__).parent / "configs" / "agent"


def as_yaml(value: Any) -> Any:
    """What a default looks like in a YAML file."""
    if dataclasses.is_dataclass(value):
        return {entry.name: as_yaml(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else value


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in config.items():
        entries |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return entries


@pytest.mark.parametrize("name", agent_names())
def test_a_name_stands_for_the_workflow_that_has_it(name: str) -> None:
    workflow = workflow_class(name)
    assert issubclass(workflow, Workflow)
    assert workflow.agent_name == name
    assert workflow.__doc__


@pytest.mark.parametrize("name", agent_names())
def test_the_yaml_file_of_a_method_lists_all_its_settings_with_their_defaults(name: str) -> None:
    workflow = workflow_class(name)
    defaults = as_yaml(workflow.config_class()) | as_yaml(workflow.hyperparameters_class())
    # OmegaConf, which reads these files for Hydra, takes 3e-4 for a number; plain YAML 1.1 takes it for a string.
    written = {
        key: float(value) if isinstance(value, str) and value[0].isdigit() else value
        for key, value in flat(yaml.safe_load((AGENT_CONFIGS / f"{name}.yaml").read_text())).items()
    }
    assert written == flat({"name": name, **defaults})


def test_there_is_a_config_file_for_every_method_and_for_no_other() -> None:
    assert sorted(path.stem for path in AGENT_CONFIGS.glob("*.yaml")) == sorted(agent_names())


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown agent 'pppo'\. Did you mean 'ppo'\?$"):
        workflow_class("pppo")


def test_a_workflow_is_built_from_the_name_in_its_config() -> None:
    workflow = build_workflow({"agent": {"name": "a2c", "num_envs": 2}, "env": {"name": "classic/pendulum"}})
    assert isinstance(workflow, workflow_class("a2c"))
    assert workflow.config.num_envs == 2


@pytest.mark.parametrize("config", [{}, {"agent": "ppo"}, {"agent": {"num_envs": 2}}])
def test_a_config_without_the_name_of_a_method_is_refused(config: dict) -> None:
    with pytest.raises(
        InvalidInputError, match=r"expected a mapping with the name of a method, like agent\.name=ppo\.$"
    ):
        build_workflow(config)
