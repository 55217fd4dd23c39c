"""The tests that a page names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
PAGES = {page: NAMED.findall(page.read_text()) for page in sorted((ROOT / "docs").rglob("*.md"))}


@pytest.mark.parametrize("page", [page for page, named in PAGES.items() if named], ids=lambda page: page.stem)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    missing = [name for path, name in PAGES[page] if f"def {name}(" not in (ROOT / path).read_text()]
    assert not missing
