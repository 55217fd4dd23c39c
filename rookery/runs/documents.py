"""JSON and YAML of a run directory, read within bounds: size, depth, and the number of entries.

A small file can stand for a huge tree: YAML has aliases and merge keys, and both formats nest without limit.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rookery.errors import InvalidInputError
from rookery.runs.files import MAX_BYTES, read_bytes

MAX_YAML_BYTES = 64 * 2**10
MAX_DEPTH = 32
MAX_ENTRIES = 1_000_000
MAX_YAML_ENTRIES = 20_000
MAX_BITS = 1_000
"""The maximum length of a whole number: a longer one is no float."""
TOO_DEEP = f"nested more than {MAX_DEPTH} deep"


def read_json(folder: Path, name: str, max_bytes: int = MAX_BYTES) -> Any:
    """Read the JSON file `name` of a run directory; a missing file raises `FileNotFoundError`."""
    content = read_bytes(folder, name, max_bytes)
    return _within_bounds(f"{folder / name}", "JSON", lambda: parse_json(content), MAX_ENTRIES)


def read_yaml(folder: Path, name: str) -> Any:
    """Read the YAML file `name` of a run directory; a missing file raises `FileNotFoundError`."""
    content = read_bytes(folder, name, MAX_YAML_BYTES)
    return _within_bounds(f"{folder / name}", "YAML", lambda: _parse_yaml(content), MAX_YAML_ENTRIES)


def parse_json(content: bytes) -> Any:
    """Parse JSON; raise `ValueError` if it is invalid or nested too deeply."""
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def check_bounds(tree: Any, max_entries: int = MAX_ENTRIES) -> None:
    """Raise `ValueError` unless a tree is plain data within bounds; an alias counts as often as it is used."""
    stack, num_entries = [(tree, 0)], 0
    while stack:
        node, depth = stack.pop()
        children: list[Any] = []
        if isinstance(node, dict):
            children = [*node.values(), *(key for key in node if not isinstance(key, str))]
        elif isinstance(node, list):
            children = node
        elif not isinstance(node, (str, int, float, type(None))):
            raise ValueError(f"a {type(node).__name__} is neither a number nor text")
        elif isinstance(node, int) and node.bit_length() > MAX_BITS:
            raise ValueError(f"a number has more than {MAX_BITS} bits")
        num_entries += len(children)
        if depth > MAX_DEPTH:
            raise ValueError(TOO_DEEP)
        if num_entries > max_entries:
            raise ValueError(f"more than {max_entries:,} entries")
        stack += [(child, depth + 1) for child in children]


def _within_bounds(path: str, kind: str, parse_fn: Callable[[], Any], max_entries: int) -> Any:
    try:
        tree = parse_fn()
        check_bounds(tree, max_entries)
    except ValueError as error:
        raise InvalidInputError(f"{path} is not valid {kind}: {' '.join(str(error).split())}.") from None
    return tree


def _parse_yaml(content: bytes) -> Any:
    import yaml  # type: ignore[import-untyped]

    class Loader(yaml.SafeLoader):
        def flatten_mapping(self, node: Any) -> None:
            """Refuse merge keys (<<): merging lists of aliases multiplies entries."""
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise ValueError("merge keys (<<) are not supported")

    try:
        return yaml.load(content.decode("utf-8"), Loader)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
