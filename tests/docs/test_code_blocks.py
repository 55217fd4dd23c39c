"""What README and docs show runs as it stands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "bench/README.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(page.read_text()) if found == language]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_blocks_of_a_page_run_one_after_the_other(page: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    done = subprocess.run(
        [sys.executable, "-W", "error:::rookery", "-c", code], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def rookery_commands() -> list[str]:
    lines = {line for page in PAGES for block in blocks(page, "console") for line in block.splitlines()}
    return sorted(line.removeprefix("$ ") for line in lines if line.startswith("$ rookery ") and "bench" not in line)


@pytest.mark.parametrize("command", rookery_commands())
def test_a_command_that_is_shown_runs(command: str) -> None:
    arguments = shlex.split(command, comments=True)[1:]
    done = subprocess.run([sys.executable, "-m", "rookery", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    broken = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    assert not broken
