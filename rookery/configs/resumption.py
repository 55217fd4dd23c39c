"""The config of a run that goes on with other settings: the budget, hyper-parameters, intervals, recorders, devices."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from rookery.configs.composition import full_key, parse, with_values
from rookery.configs.declared import train_defaults
from rookery.configuration import declarations
from rookery.errors import InvalidInputError
from rookery.registry import AGENTS, agent_name, workflow_class

CHANGEABLE = (
    "total_timesteps",
    "record_interval",
    "evaluation",
    "checkpoint",
    "stop_at",
    "video",
    "on_nan",
    "devices",
    "recorders",
    "env.runner",
    "max_staleness",
    "min_ready",
)
"""Settings, and groups of them, that change neither the state of a run nor what it was trained on."""
FIXED = ("checkpoint.replay",)
"""A setting of these groups that changes what checkpoints contain."""


OWN_PARTS = {
    "agent": "agent.name",
    "network": "agent.network.encoder",
    "agent.network": "agent.network.encoder",
    "agent.network.encoder": "agent.network.encoder",
    "agent.search": "agent.search",
    "env.wrappers": "env.wrappers",
    "env.mapping": "env.mapping",
}
"""Where the config of a run names own classes and functions, by the keys that name them again."""


def resumed_config(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run with other settings; raise if one of them would change its state.

    A schedule over the whole run then spans the new `total_timesteps`.
    """
    agent = config["agent"]
    workflow = workflow_class(agent["name"])
    declared = declarations(workflow.hyperparameters_class)
    numbers = [name for name, declaration in declared.items() if declaration.schedule]
    complete = _with_defaults(config, train_defaults())
    for name in changes:
        key = full_key(complete, name)
        groups = {".".join(key.split(".")[:length]) for length in range(1, key.count(".") + 2)}
        is_number = key.startswith("agent.") and key.split(".")[1] in numbers
        if not is_number and (key in FIXED or not groups & set(CHANGEABLE)):
            raise InvalidInputError(
                f"{name}: a resumed run cannot change it. It can change {', '.join(CHANGEABLE)}, and agent.NAME with "
                f"NAME one of {', '.join(numbers)}. Start a new run to change other settings; init_from takes over "
                "the parameters."
            )
    before = complete["devices"]
    if changes.get("devices", before) != before and workflow.is_split_by_devices:
        raise InvalidInputError(
            f"devices={changes['devices']}: the replay buffer of this run is split over its devices: keep "
            f"devices={'null' if before is None else before}."
        )
    if "total_timesteps" in changes:
        complete["agent"] = {name: _without_end(value, config["total_timesteps"]) for name, value in agent.items()}
    return with_values(complete, changes)


def named_again(config: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config of a run with the own classes that the user names again, and the other changes.

    A class may have moved to another module since the run was made.
    """
    named, others = copy.deepcopy(dict(config)), {}
    for key, value in changes.items():
        if key not in OWN_PARTS:
            others[key] = value
            continue
        *path, last = OWN_PARTS[key].split(".")
        part: Any = named
        for name in path:
            part = part.get(name) if isinstance(part, dict) else None
        own = part.get(last) if isinstance(part, dict) else None
        if own in (None, [], *AGENTS) or (key == "agent.search" and ":" not in str(own)):
            raise InvalidInputError(f"{key}: this run has no own class there; start a new run to change it.")
        part[last] = agent_name(value) if key == "agent" else value
    return named, others


def changes_from(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of overrides of the command line by key."""
    return {override.key_or_group: override.value() for override in map(parse, overrides)}


def _with_defaults(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Add the settings that did not exist when a run was made."""
    result = dict(config)
    for name, default in defaults.items():
        value = result.setdefault(name, default)
        if isinstance(default, Mapping) and isinstance(value, Mapping) and name != "kwargs":
            result[name] = _with_defaults(value, default)
    return result


def _without_end(value: Any, total_timesteps: Any) -> Any:
    """Return a schedule over the whole run without its number of steps; it is then that of the run."""
    if isinstance(value, Mapping) and value.get("steps") == total_timesteps:
        return {name: entry for name, entry in value.items() if name != "steps"}
    return value
