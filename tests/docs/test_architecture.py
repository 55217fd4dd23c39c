"""The architecture page describes the package as it is."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/concepts/architecture.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_the_import_table_has_the_layers_of_the_import_linter_in_their_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    rows = [line for line in section("Which way imports point").splitlines() if line.startswith("|")]
    modules = re.findall(r"`(\w+)`", "\n".join(rows))
    assert modules == [module for layer in layers for module in layer.split(" | ")]


def test_files_of_the_reading_order_exist() -> None:
    files = re.findall(r"^\d\. `([\w/]+\.py)`", section("Reading order"), re.MULTILINE)
    assert len(files) == 12
    assert [file for file in files if not (ROOT / "rookery" / file).is_file()] == []


def test_files_and_folders_of_the_tables_exist() -> None:
    files, runners = section("The folders").split("The host world, `runners/`:")
    paths = [ROOT / "rookery" / path for path in named(files)]
    paths += [ROOT / "rookery/runners" / path for path in named(runners)]
    assert len(paths) > 30
    assert [str(path) for path in paths if not path.exists()] == []


def named(tables: str) -> list[str]:
    """The files and folders in the first column of tables."""
    first_cells = [line.split("|")[1] for line in tables.splitlines() if line.startswith("|")]
    return re.findall(r"`([\w/]+(?:\.py|/))`", "\n".join(first_cells))
