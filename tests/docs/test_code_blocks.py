"""What README and docs show runs as it stands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "bench/README.md"]
# Many pages show the same program: it is compiled once.
ENVIRONMENT = os.environ | {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(page.read_text()) if found == language]


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, env=ENVIRONMENT)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_blocks_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    done = run(["-W", "error:::rookery", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


def rookery_commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ rookery ") and "bench" not in line]


@pytest.mark.parametrize("page", [page for page in PAGES if rookery_commands(page)], ids=name_of)
def test_commands_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    for command in rookery_commands(page):
        arguments = shlex.split(command, comments=True)[1:]
        done = run(["-m", "rookery", *arguments], tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    broken = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    assert not broken
