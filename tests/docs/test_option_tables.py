"""The tables of options in docs/methods."""

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from rookery.configuration import declarations, field_names
from rookery.runners.ray.settings import RaySettings
from rookery.serving.env import ServedSettings
from rookery.workflows.config import TrainConfig

DOCS = Path(__file__).parents[2] / "docs"
OPTION_TABLES = runpy.run_path(str(DOCS / "option_tables.py"))
WITH_TABLES, WRITTEN = OPTION_TABLES["with_tables"], OPTION_TABLES["written"]


@pytest.mark.parametrize("page", sorted((DOCS / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_the_table_of_options_is_the_one_that_the_declarations_make(page: Path) -> None:
    text = page.read_text()
    assert "<!-- options of " in text
    assert WITH_TABLES(text) == text, "run `make docs`"


def test_the_options_of_runners_have_the_names_and_defaults_of_the_settings() -> None:
    page = (DOCS / "concepts/scale-out.md").read_text()
    (table,) = re.findall(r"<!-- runner options -->(.*?)<!-- end of runner options -->", page, re.DOTALL)
    shown = dict(re.findall(r"^\| `(.*?)` \| (.*?) \|", table, re.MULTILINE))
    ray, train = RaySettings(), TrainConfig()
    declared = {name: getattr(train, name) for name in ("num_env_runners", "max_staleness", "min_ready")}
    declared |= {f"ray.{name}": getattr(ray, name) for name in field_names(RaySettings)}
    assert shown == {name: WRITTEN(value) for name, value in declared.items()}


def test_the_options_of_served_environments_are_those_of_the_settings() -> None:
    page = (DOCS / "how-to/simulators-over-http.md").read_text()
    (table,) = re.findall(r"<!-- options of served -->(.*?)<!-- end of options of served -->", page, re.DOTALL)
    shown = re.findall(r"^\| `(.*?)` \| (.*?) \| (.*?) \|$", table, re.MULTILINE)
    declared = declarations(ServedSettings)
    assert shown == [
        (
            f"env.kwargs.{field.name}",
            "those of the protocol" if field.name == "limits" else WRITTEN(field.default),
            declared[field.name].help,
        )
        for field in dataclasses.fields(ServedSettings)
    ]
