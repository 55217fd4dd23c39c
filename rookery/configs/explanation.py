"""Prints a config as YAML, with the help of each key as a comment."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rookery.configs.declared import agent_help, help_of, train_help
from rookery.configuration import to_mapping
from rookery.runners.ray.settings import RaySettings

LEGEND = "# * may also be a schedule over the run, {start: 3e-4, end: 0.0}"


def explain(config: Mapping[str, Any], ray: RaySettings | None = None) -> str:
    """Return a composed config as YAML with the help of each key as a comment; with runners on Ray, also `ray.*`."""
    comments = train_help() | agent_help(config["agent"]["name"])
    ordered = {"agent": config["agent"], **config}
    if ray is not None or config["num_env_runners"]:
        ray = ray or RaySettings()
        ordered["ray"] = to_mapping(ray)
        comments |= {"ray": "where runners on Ray work: no part of the config of a run", **help_of(ray, "ray.")}
    return "\n".join([LEGEND, *_lines(ordered, comments)]) + "\n"


def _lines(config: Mapping[str, Any], comments: Mapping[str, str], path: tuple[str, ...] = ()) -> Iterator[str]:
    for key, value in config.items():
        here = (*path, key)
        comment = comments.get(".".join(here))
        is_nested = isinstance(value, Mapping) and len(value) > 0
        text = f"{'  ' * len(path)}{_in_one_line(key)}:{'' if is_nested else ' ' + _in_one_line(value)}"
        yield f"{text}  # {comment}" if comment else text
        if is_nested:
            yield from _lines(value, comments, here)


def _in_one_line(value: Any) -> str:
    import yaml  # type: ignore[import-untyped]

    return yaml.safe_dump([value], default_flow_style=True, width=math.inf).strip()[1:-1]
