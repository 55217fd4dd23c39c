"""The methods by name, as in `agent=ppo`. A method is imported on first use."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rookery.configuration import plain
from rookery.errors import InvalidInputError, unknown_name

if TYPE_CHECKING:  # an import at run time would load JAX for `rookery list`
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
    "map_elites": "rookery.algorithms.evolution.map_elites:MAPElitesWorkflow",
}
"""The module and class of the workflow of each method."""


def agent_names() -> list[str]:
    """Return the names of all methods."""
    return list(AGENTS)


def workflow_class(name: str) -> type["Workflow"]:
    """Import the workflow of a method."""
    if name not in AGENTS:
        raise unknown_name("agent", str(name), AGENTS)
    module, _, class_name = AGENTS[name].partition(":")
    workflow: type[Workflow] = getattr(importlib.import_module(module), class_name)
    return workflow


def build_workflow(config: Mapping[str, Any], **kwargs: Any) -> "Workflow":
    """Build the workflow that a composed config describes; `kwargs` are those of `Workflow.build_from_config`."""
    agent = plain(config).get("agent")
    if not isinstance(agent, Mapping) or "name" not in agent:
        raise InvalidInputError(f"agent={agent!r}: expected a mapping with the name of a method, like agent.name=ppo.")
    return workflow_class(agent["name"]).build_from_config(config, **kwargs)
