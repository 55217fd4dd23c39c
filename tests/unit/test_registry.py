"""The methods by name."""

import pytest

from rookery.errors import InvalidInputError, UnknownNameError
from rookery.registry import agent_names, build_workflow, workflow_class
from rookery.workflows.workflow import Workflow


@pytest.mark.parametrize("name", agent_names())
def test_a_name_stands_for_the_workflow_that_has_it(name: str) -> None:
    workflow = workflow_class(name)
    assert issubclass(workflow, Workflow)
    assert workflow.agent_name == name
    assert workflow.__doc__


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
