"""Runners on Ray in the report: drawn and counted where there were some, and not mentioned where there were none."""

import json
import re
from pathlib import Path
from typing import Any

from rookery.report import write_report
from tests.report_runs import learning_rows, write_run
from tests.unit.report.runs_on_ray import READY, write_run_on_ray


def runners_section(page: str) -> str:
    (section,) = re.findall(r"<h2>Runners</h2>(.*?)</section>", page, flags=re.DOTALL)
    return section


def drawn_lines(section: str) -> dict[str, list[dict[str, Any]]]:
    """The lines of each figure of a section, by its title."""
    found = re.findall(r"<h3>([^<]*)</h3></figcaption>.*?<script[^>]*>(.*?)</script>", section, flags=re.DOTALL)
    return {title: json.loads(values)["lines"] for title, values in found}


def cells(section: str) -> dict[str, list[str]]:
    """The table of a section, by the headings of its rows."""
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th>(.*?)</tr>", section, flags=re.DOTALL)
    return {heading: re.findall(r"<td>(.*?)</td>", rest, flags=re.DOTALL) for heading, rest in rows}


def test_runners_are_drawn_by_their_state_with_staleness_and_waiting(tmp_path: Path) -> None:
    section = runners_section(write_report([write_run_on_ray(tmp_path / "run")], tmp_path / "report.html").read_text())
    figures = drawn_lines(section)
    assert {title: [line["name"] for line in lines] for title, lines in figures.items()} == {
        "Runners": ["ready", "starting", "lost"],
        "Updates that the acting parameters lag": ["mean", "largest"],
        "Waiting for runners in an iteration, ms": [""],
    }
    counts = [[line["y"][record] for line in figures["Runners"]] for record in (0, 15, 29)]
    assert counts == [[4, 0, 0], [3, 1, 0], [3, 0, 1]]
    assert [lines["y"][-1] for lines in figures["Updates that the acting parameters lag"]] == [1.5, 2]
    for label in ("ready", "starting", "lost", "mean", "largest"):
        assert f"</svg>{label}</li>" in section


def test_restarts_and_lost_fragments_are_counted(tmp_path: Path) -> None:
    run = write_run_on_ray(tmp_path / "run", num_restarts=1200)
    section = runners_section(write_report([run], tmp_path / "report.html").read_text())
    assert cells(section) == {
        "Ready at the last record": ["3"],
        "Starting": ["0"],
        "Given up": ["1"],
        "Restarts": ["1,200"],
        "Fragments lost": ["1,200"],
    }


def test_lost_chunks_of_a_population_are_counted(tmp_path: Path) -> None:
    rows = [row | READY | {"runners/chunks_lost": 3.0} for row in learning_rows()]
    page = write_report([write_run(tmp_path / "run", rows)], tmp_path / "report.html").read_text()
    counted = cells(runners_section(page))
    assert counted["Chunks of individuals lost"] == ["3"]
    assert "Fragments lost" not in counted


def test_every_run_on_ray_has_its_own_figure_and_a_column(tmp_path: Path) -> None:
    runs = [
        write_run_on_ray(tmp_path / "few", num_restarts=1),
        write_run(tmp_path / "device"),
        write_run_on_ray(tmp_path / "many", num_restarts=7),
    ]
    section = runners_section(write_report(runs, tmp_path / "report.html").read_text())
    assert [title for title in drawn_lines(section) if title.startswith("Runners")] == ["Runners: few", "Runners: many"]
    assert cells(section)["Restarts"] == ["1", "—", "7"]


def test_records_without_waiting_have_no_such_figure(tmp_path: Path) -> None:
    rows = [row | READY for row in learning_rows()]
    page = write_report([write_run(tmp_path / "run", rows)], tmp_path / "report.html").read_text()
    assert list(drawn_lines(runners_section(page))) == ["Runners"]


def test_runs_without_runners_on_ray_do_not_mention_them(tmp_path: Path) -> None:
    rows = [row | {"rollout/staleness": 1.0, "rollout/staleness_max": 1} for row in learning_rows()]
    runs = [write_run(tmp_path / "device"), write_run(tmp_path / "host", rows)]
    assert "Runners" not in write_report(runs, tmp_path / "report.html").read_text()


def test_counts_of_steps_are_not_taken_for_what_environments_report(tmp_path: Path) -> None:
    run = write_run_on_ray(tmp_path / "run", **{"rollout/steps_sampled": 4096.0, "rollout/success": 0.5})
    page = write_report([run], tmp_path / "report.html").read_text()
    assert "success in training" in page
    assert "steps queued" not in page
    assert "steps sampled" not in page
