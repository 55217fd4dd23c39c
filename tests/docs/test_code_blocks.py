"""What README and docs show runs as it stands."""

import multiprocessing
import os
import re
import runpy
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "bench/README.md"]
# Every command has a process of its own, forked from one in which that is imported what most of them import.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["rookery.cli.training", "rookery.algorithms.ppo", "hydra", "PIL.Image"])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(page.read_text()) if found == language]


def run(function: Callable[[str], None], argument: str, folder: Path) -> tuple[int | None, str]:
    """Call a function in a process of its own in a folder; return the exit code and what was printed."""
    process = PROCESSES.Process(target=in_folder, args=(function, argument, folder))
    process.start()
    process.join(timeout=300)
    process.kill()
    return process.exitcode, (folder / "output.txt").read_text()


def in_folder(function: Callable[[str], None], argument: str, folder: Path) -> None:
    os.chdir(folder)
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    function(argument)


def run_code(code: str) -> None:
    warnings.filterwarnings("error", module="rookery$")
    Path("page.py").write_text(code)
    runpy.run_path("page.py", run_name="__main__")


def run_command(command: str) -> None:
    sys.argv = shlex.split(command, comments=True)
    runpy.run_module("rookery", run_name="__main__")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_blocks_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    exit_code, output = run(run_code, "\n".join(blocks(page, "python")), tmp_path)
    assert exit_code == 0, output


def rookery_commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ rookery ") and "bench" not in line]


@pytest.mark.parametrize("page", [page for page in PAGES if rookery_commands(page)], ids=name_of)
def test_commands_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    for command in rookery_commands(page):
        exit_code, output = run(run_command, command, tmp_path)
        assert exit_code == 0, f"{command}\n{output}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    broken = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    assert not broken
