"""The page of the serving protocol."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_the_protocol_is_the_one_that_the_routes_make() -> None:
    written = runpy.run_path(str(DOCS / "protocol_page.py"))
    assert written["PAGE"].read_text() == written["page"](), "run `make docs`"
