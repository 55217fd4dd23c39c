"""Writes the tables of options in docs/methods from what the methods declare: `python docs/option_tables.py`.

A table stands between two comments. The first names the methods, one column each, and the keys as patterns,
in which `*` does not match a dot:

    <!-- options of td3 ddpg: * network.num_critics -->
    <!-- end of options -->
"""

import math
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from rookery.configs.declared import agent_defaults, agent_help

PAGES = Path(__file__).parent / "methods"
TABLE = re.compile(r"(<!-- options of ([\w ]+): (.+) -->\n).*?(<!-- end of options -->)", re.DOTALL)
LEGEND = "\\* may also be a schedule over the run: `{start: 3e-4, end: 0}`."


def with_tables(page: str) -> str:
    """Return the text of a page with its tables made again."""
    return TABLE.sub(lambda match: f"{match[1]}\n{table(match[2].split(), match[3].split())}\n{match[4]}", page)


def table(methods: list[str], patterns: list[str]) -> str:
    """Return the options of some methods whose keys match the patterns."""
    defaults = {method: flat(agent_defaults(method)) for method in methods}
    keys = list(dict.fromkeys(key for method in methods for key in defaults[method] if is_chosen(key, patterns)))
    headers = ["default"] if len(methods) == 1 else [f"`{method}`" for method in methods]
    lines = [["key", *headers, "what it does"], ["---"] * (len(methods) + 2)]
    for key in keys:
        cells = [written(defaults[method][key]) if key in defaults[method] else "" for method in methods]
        help_texts = [agent_help(method).get(f"agent.{key}", "") for method in methods if key in defaults[method]]
        star = " \\*" if help_texts[0].startswith("* ") else ""
        lines.append([f"`agent.{key}`{star}", *cells, help_texts[0].removeprefix("* ")])
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    has_schedules = any("\\*" in row for row in rows)
    return "\n".join([*rows, *(["", LEGEND] if has_schedules else []), ""])


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the entries of a config by their full names; a schedule is one entry."""
    entries: dict[str, Any] = {}
    for key, value in config.items():
        is_block = isinstance(value, dict) and value and "start" not in value
        entries |= flat(value, f"{prefix}{key}.") if is_block else {prefix + key: value}
    return entries


def is_chosen(key: str, patterns: list[str]) -> bool:
    """Whether a key matches a pattern; `*` does not match a dot."""
    return key != "name" and any(
        fnmatchcase(key, pattern) and key.count(".") == pattern.count(".") for pattern in patterns
    )


def written(value: Any) -> str:
    """Write a default as on the command line."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return f"`{{{', '.join(f'{key}: {written(entry)}' for key, entry in value.items())}}}`"
    text = yaml.safe_dump([value], default_flow_style=True, width=math.inf).strip()[1:-1]
    return f"`{text}`" if isinstance(value, list) else text


def main() -> None:
    """Rewrite the pages whose tables are out of date."""
    for path in sorted(PAGES.glob("*.md")):
        page = path.read_text()
        if with_tables(page) != page:
            path.write_text(with_tables(page))
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
