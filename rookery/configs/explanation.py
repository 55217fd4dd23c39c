"""A config written out, each key with its help as a comment."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rookery.configs.declared import agent_help, train_help

FOLDER = Path(__file__).parent
LEGEND = "# * may also be a schedule over the run, {start: 3e-4, end: 0.0}"
KEY_AND_COMMENT = re.compile(r"( *)(\w+):(?:.*  # (.*))?")


def explain(config: Mapping[str, Any]) -> str:
    """Return a composed config as YAML with a comment for each key."""
    name = config["agent"]["name"]
    agent_file = FOLDER / "agent" / f"{name}.yaml"
    comments = train_help()
    if agent_file.exists():
        comments |= {f"agent.{key}": comment for key, comment in comments_of(agent_file).items()}
    else:
        comments |= agent_help(name)
    ordered = {"agent": config["agent"], **config}
    return "\n".join([LEGEND, *_lines(ordered, comments)]) + "\n"


def comments_of(path: Path) -> dict[str, str]:
    """Read the comments of a YAML file: those at the end of a line, by the full name of its key."""
    comments: dict[str, str] = {}
    names: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        match = KEY_AND_COMMENT.match(line)
        if match is not None:
            indent, key, comment = match.groups()
            names[len(indent) // 2 :] = [key]
            if comment:
                comments[".".join(names)] = comment
    return comments


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
