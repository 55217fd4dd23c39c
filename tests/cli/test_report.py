"""`rookery report`."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rookery import cli


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_report_of_one_run_is_put_into_it(
    finished_run: Any, working_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished_run.path, "run")
    (working_directory / "run" / "report.html").unlink()
    assert cli.main(["report", "run"]) == 0
    assert capsys.readouterr().out == "run/report.html\n"
    assert "classic/cartpole" in (working_directory / "run" / "report.html").read_text()


def test_the_report_of_several_runs_is_put_here_and_names_each(
    finished_run: Any, seeds_run: Any, working_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", finished_run.path, seeds_run.path]) == 0
    assert capsys.readouterr().out == "report.html\n"
    page = (working_directory / "report.html").read_text()
    assert all(f">{run.directory.path.name}<" in page for run in (finished_run, seeds_run))


def test_the_report_is_put_where_it_is_asked_for(finished_run: Any, working_directory: Path) -> None:
    assert cli.main(["report", finished_run.path, "-o", "some/where.html"]) == 0
    assert (working_directory / "some" / "where.html").exists()


def test_a_folder_that_is_no_run_is_an_error(working_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(working_directory)]) == 2
    assert "is not a run directory: it is empty." in capsys.readouterr().err
