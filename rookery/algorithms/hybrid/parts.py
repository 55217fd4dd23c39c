"""The two parts of a hybrid: a strategy and a learner, each with the settings and hyper-parameters of its method."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rookery.configuration import check_keys, field_names, from_mapping, plain, to_mapping
from rookery.errors import InvalidInputError
from rookery.hyperparameters import Hyperparameters, hyperparameters_from
from rookery.registry import agent_names, workflow_class
from rookery.workflows.evolution.workflow import ECWorkflow
from rookery.workflows.off_policy import OffPolicyWorkflow
from rookery.workflows.workflow import Workflow


@dataclass(frozen=True)
class Part:
    """A method as a part of another: its workflow, settings and hyper-parameters."""

    workflow: Any
    config: Any
    hyperparameters: Hyperparameters
    fixed: frozenset[str]
    """The settings that the whole method sets."""

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings and hyper-parameters that a user may set."""
        settings = to_mapping(self.config) | to_mapping(self.hyperparameters)
        return {name: value for name, value in settings.items() if name not in self.fixed}


def strategy_of(name: str, options: Mapping[str, Any], fixed: Mapping[str, Any], total_timesteps: int) -> Part:
    """Return the evolution of a hybrid; `fixed` are the settings that are those of the whole."""
    workflow = _workflow("evolution", name, ECWorkflow)
    unused = ("explore", "fixed_obs_statistics", "network")
    return _part("agent.strategy", workflow, options, fixed, unused, total_timesteps)


def learner_of(name: str, options: Mapping[str, Any], fixed: Mapping[str, Any], total_timesteps: int) -> Part:
    """Return the gradient of a hybrid; `fixed` are the settings that are those of the whole."""
    workflow = _workflow("gradient", name, OffPolicyWorkflow)
    unused = ("rollout_length", "updates_per_step", "warmup")
    # One step of every lane is one iteration; the exchange sets the number of updates.
    fixed = {"updates_per_step": 1.0, **fixed}
    return _part("agent.learner", workflow, options, fixed, unused, total_timesteps)


def _workflow(setting: str, name: str, base: type[Workflow]) -> type[Workflow]:
    found = workflow_class(name)
    if not issubclass(found, base):
        fitting = ", ".join(known for known in agent_names() if issubclass(workflow_class(known), base))
        raise InvalidInputError(f"agent.{setting}={name}: expected one of {fitting}, or your own as module:Class.")
    return found


def _part(
    path: str,
    workflow: type[Workflow],
    options: Mapping[str, Any],
    fixed: Mapping[str, Any],
    unused: tuple[str, ...],
    total_timesteps: int,
) -> Part:
    options = plain(options, path)
    config_class, hyperparameters_class = workflow.config_class, workflow.hyperparameters_class
    for name in options:
        if name in fixed or name in unused:
            whole = f"set agent.{name} instead" if name in fixed and name != "updates_per_step" else "leave it out"
            raise InvalidInputError(f"{path}.{name} has no effect in a hybrid: {whole}.")
    numbers, settings = field_names(hyperparameters_class), field_names(config_class)
    check_keys(options, [*settings, *numbers], path)
    config: Any = from_mapping(
        config_class, {**{name: options[name] for name in options if name in settings}, **fixed}, path
    )
    values = {name: options[name] for name in options if name in numbers}
    hyperparameters = hyperparameters_from(hyperparameters_class, values, total_timesteps, path)
    return Part(workflow, config, hyperparameters, frozenset((*fixed, *unused)))
