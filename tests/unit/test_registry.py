"""The methods by name."""

import importlib.metadata
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from rookery import registry
from rookery.algorithms.evolution.open_es import OpenES
from rookery.configs import compose
from rookery.errors import InvalidInputError, UnknownNameError
from rookery.registry import agent_name, agent_names, build_workflow, workflow_class
from rookery.trust import strangers_config
from rookery.workflows.evolution.workflow import ECWorkflow
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


class OwnWorkflow(ECWorkflow):
    """Moves to the fittest."""

    optimizer_class = OpenES


def test_a_method_without_a_name_is_a_module_and_a_class() -> None:
    assert workflow_class(f"{__name__}:OwnWorkflow") is OwnWorkflow
    assert workflow_class(OwnWorkflow) is OwnWorkflow
    assert agent_name(OwnWorkflow) == f"{__name__}:OwnWorkflow"
    assert agent_name(workflow_class("ppo")) == "ppo"


def test_a_class_that_was_passed_is_found_by_its_name_without_an_import() -> None:
    class LocalWorkflow(OwnWorkflow):
        pass

    name = agent_name(LocalWorkflow)
    assert name.endswith("<locals>.LocalWorkflow")
    assert workflow_class(name) is LocalWorkflow
    workflow = build_workflow({"agent": {"name": name, "population_size": 4}, "env": {"name": "classic/cartpole"}})
    assert workflow.settings.to_mapping()["agent"]["name"] == name


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (
            "rookery.algorithms.ppo:PPO",
            r"is <class 'rookery\.algorithms\.ppo\.PPO'>: expected a subclass of Workflow\.",
        ),
        ("rookery.workflows.evolution.workflow:ECWorkflow", r"lacks config_class"),
        ("rookery.workflows.workflow:Workflow", r"lacks config_class"),
        ("rookery.registry:NoSuch", r"rookery\.registry has no 'NoSuch'\."),
        ("rookery.algorithms.ppo:PPOWorkflo", r"has no 'PPOWorkflo'\. Did you mean 'PPOWorkflow'"),
        ("rookery.nowhere:X", r"the module 'rookery\.nowhere' cannot be imported"),
        (":X", r"expected module:Name\."),
        (dict, r"agent=dict is <class 'dict'>: expected a subclass of Workflow\."),
    ],
)
def test_what_is_no_method_is_refused_in_one_line(agent: str | type, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        workflow_class(agent)


def test_an_installed_package_adds_a_method_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", f"{__name__}:OwnWorkflow", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: EntryPoints([point]).select(group=group))
    assert "theirs" in agent_names()
    assert compose(["agent=theirs", "agent.population_size=4"])["agent"]["population_size"] == 4
    with strangers_config():  # it is installed: a run may name it
        workflow = build_workflow({"agent": {"name": "theirs"}, "env": {"name": "classic/cartpole"}})
    assert isinstance(workflow, OwnWorkflow)
    assert workflow.settings.agent_name == "theirs"
