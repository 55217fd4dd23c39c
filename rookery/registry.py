"""The methods by name, as in `agent=ppo`. A method is imported on first use.

Other packages add theirs under the entry-point group `rookery.agents`; a method without a name is `module:Class`.
"""

import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rookery.configuration import plain
from rookery.errors import InvalidInputError, nearest_names, unknown_name
from rookery.trust import import_object, name_of

if TYPE_CHECKING:  # an import at run time would load JAX for `rookery list`
    from rookery.agent import Agent
    from rookery.workflows.workflow import Workflow

AGENTS = {
    "ppo": "rookery.algorithms.ppo:PPOWorkflow",
    "a2c": "rookery.algorithms.a2c:A2CWorkflow",
    "impala": "rookery.algorithms.impala:IMPALAWorkflow",
    "dqn": "rookery.algorithms.dqn:DQNWorkflow",
    "ddpg": "rookery.algorithms.ddpg:DDPGWorkflow",
    "td3": "rookery.algorithms.td3:TD3Workflow",
    "sac": "rookery.algorithms.sac:SACWorkflow",
    "openes": "rookery.algorithms.evolution.open_es:OpenESWorkflow",
    "vanilla_es": "rookery.algorithms.evolution.vanilla_es:VanillaESWorkflow",
    "ars": "rookery.algorithms.evolution.ars:ARSWorkflow",
    "sepcem": "rookery.algorithms.evolution.sep_cem:SepCEMWorkflow",
    "snes": "rookery.algorithms.evolution.snes:SNESWorkflow",
    "sep_cma_es": "rookery.algorithms.evolution.sep_cma_es:SepCMAESWorkflow",
    "cmaes": "rookery.algorithms.evolution.evosax_methods:CMAESWorkflow",
    "pso": "rookery.algorithms.evolution.evosax_methods:PSOWorkflow",
    "cso": "rookery.algorithms.evolution.cso:CSOWorkflow",
    "ga": "rookery.algorithms.evolution.ga:GAWorkflow",
    "evosax": "rookery.algorithms.evolution.evosax_methods:EvosaxWorkflow",
    "nsga2": "rookery.algorithms.evolution.nsga2:NSGA2Workflow",
    "pbt": "rookery.populations.pbt:PBTWorkflow",
    "map_elites": "rookery.algorithms.evolution.map_elites:MAPElitesWorkflow",
}
"""The module and class of the workflow of each method."""

ENTRY_POINT_GROUP = "rookery.agents"

ACTING_AGENTS = (
    "rookery.agents.policy:PolicyAgent",
    "rookery.algorithms.dqn:DQNAgent",
    "rookery.algorithms.td3:TD3Agent",
    "rookery.agent:RandomAgent",
)
"""The module and class of the agents that act in policies of our methods."""


def agent_names() -> list[str]:
    """Return the names of all methods: ours and those of installed packages."""
    return [*AGENTS, *(name for name in _entry_points() if name not in AGENTS)]


def workflow_class(agent: str | type["Workflow"]) -> type["Workflow"]:
    """Return the workflow of a method, which is given by its name, by `module:Class` or by its class."""
    if isinstance(agent, type):
        return _checked(agent, agent.__qualname__)
    workflow: type[Workflow] = _imported(AGENTS[agent]) if str(agent) in AGENTS else _own_class(str(agent))
    return workflow


def agent_name(agent: str | type["Workflow"]) -> str:
    """Return the name of a method in a config; that of an own class is `module:Class`."""
    if isinstance(agent, str):
        return agent
    place = name_of(workflow_class(agent))
    return next((name for name, ours in AGENTS.items() if ours == place), place)


def acting_agent(name: str) -> type["Agent"]:
    """Return the class of an agent that a policy file names; an own class is imported only if the user trusts it."""
    if name in ACTING_AGENTS:
        ours: type[Agent] = _imported(name)
        return ours
    own = own_agent(name)
    if own is None:
        raise InvalidInputError(f"agent={name} is a workflow: expected a subclass of Agent.")
    return own


def own_agent(name: str) -> type["Agent"] | None:
    """Import an own class of a run: the agent, or its workflow, for which this returns None."""
    from rookery.agent import Agent
    from rookery.workflows.workflow import Workflow

    found = import_object(name, f"agent={name}")
    if not (isinstance(found, type) and issubclass(found, (Agent, Workflow))):
        raise InvalidInputError(f"agent={name} is {found!r:.80}: expected a subclass of Agent or Workflow.")
    return found if issubclass(found, Agent) else None


def _imported(name: str) -> Any:
    module, _, class_name = name.partition(":")
    return getattr(importlib.import_module(module), class_name)


def _own_class(name: str) -> Any:
    if ":" in name:
        return _checked(import_object(name, f"agent={name}"), name)
    entry_points = _entry_points()
    if name in entry_points:
        return _checked(entry_points[name].load(), name)
    known = agent_names()
    hint = "" if nearest_names(name, known) else "`rookery list agents` shows all; your own is module:Class."
    raise unknown_name("agent", name, known, hint)


def _checked(found: Any, name: str) -> type["Workflow"]:
    """Return `found`; raise unless it is a workflow that can be built."""
    from rookery.workflows.workflow import Workflow

    if not (isinstance(found, type) and issubclass(found, Workflow)):
        raise InvalidInputError(f"agent={name} is {found!r:.80}: expected a subclass of Workflow.")
    missing = [part for part in ("config_class", "hyperparameters_class") if not hasattr(found, part)]
    missing += sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise InvalidInputError(f"agent={name} lacks {missing[0]}: inherit from PPOWorkflow or ECWorkflow.")
    return found


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}


def build_workflow(config: Mapping[str, Any], **kwargs: Any) -> "Workflow":
    """Build the workflow that a composed config describes; `kwargs` are those of `Workflow.build_from_config`."""
    agent = plain(config).get("agent")
    if not isinstance(agent, Mapping) or "name" not in agent:
        raise InvalidInputError(f"agent={agent!r}: expected a mapping with the name of a method, like agent.name=ppo.")
    return workflow_class(agent["name"]).build_from_config(config, agent_name=agent["name"], **kwargs)
