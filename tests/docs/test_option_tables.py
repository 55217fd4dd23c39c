"""The tables of options in docs/methods."""

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
WITH_TABLES = runpy.run_path(str(DOCS / "option_tables.py"))["with_tables"]


@pytest.mark.parametrize("page", sorted((DOCS / "methods").glob("*.md")), ids=lambda page: page.stem)
def test_the_table_of_options_is_the_one_that_the_declarations_make(page: Path) -> None:
    text = page.read_text()
    assert "<!-- options of " in text
    assert WITH_TABLES(text) == text, "run `make docs`"
