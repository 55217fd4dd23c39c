"""Faults in the report: told where there were some, and not mentioned where there were none."""

import json
import re
from pathlib import Path
from typing import Any

from rookery.report import write_report
from rookery.runners.faults import FaultKind
from rookery.runs.directory import RunDirectory
from tests.report_runs import learning_rows, write_run

NO_FAULTS = {"faults/total": 0, **{f"faults/{kind}": 0 for kind in FaultKind}}
NO_COSTS = {"faults/restarts": 0, "faults/lost_envs": 0, "rollout/steps_discarded": 0}


def write_host_run(path: Path, **last_counts: int) -> RunDirectory:
    """Write a run whose counts, the others being 0, rise evenly to those of its last record."""
    counts = {name: last_counts.get(name.partition("/")[2], 0) for name in (*NO_FAULTS, *NO_COSTS)}
    rows = learning_rows()
    told = ({name: count * number // len(rows) for name, count in counts.items()} for number in range(1, len(rows) + 1))
    return write_run(path, [row | faults for row, faults in zip(rows, told, strict=True)])


def faults_section(page: str) -> str:
    (section,) = re.findall(r"<h2>Faults</h2>(.*?)</section>", page, flags=re.DOTALL)
    return section


def cells(section: str) -> dict[str, list[str]]:
    """The table of a section, by the headings of its rows."""
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th>(.*?)</tr>", section, flags=re.DOTALL)
    return {heading: re.findall(r"<td>(.*?)</td>", rest, flags=re.DOTALL) for heading, rest in rows}


def drawn_lines(section: str) -> list[dict[str, Any]]:
    (values,) = re.findall(r"<h3>Faults so far</h3>.*?<script[^>]*>(.*?)</script>", section, flags=re.DOTALL)
    return json.loads(values)["lines"]


def test_faults_are_counted_by_kind_with_what_they_cost_and_drawn(tmp_path: Path) -> None:
    run = write_host_run(tmp_path / "run", total=1200, raised=1150, killed=50, restarts=1198, lost_envs=2)
    section = faults_section(write_report([run], tmp_path / "report.html").read_text())
    assert cells(section) == {
        "Faults": ["1,200"],
        "Exceptions raised": ["1,150"],
        "Processes killed by a signal": ["50"],
        "Envs restarted": ["1,198"],
        "Envs given up": ["2"],
        "Env steps discarded": ["0"],
    }
    (line,) = drawn_lines(section)
    assert (line["y"][0], line["y"][-1]) == (24, 1200)


def test_every_kind_of_fault_has_a_row(tmp_path: Path) -> None:
    run = write_host_run(tmp_path / "run", total=5, **{kind.value: 1 for kind in FaultKind})
    section = faults_section(write_report([run], tmp_path / "report.html").read_text())
    assert list(cells(section).values())[: len(FaultKind) + 1] == [["5"]] + [["1"]] * len(FaultKind)


def test_runs_without_faults_do_not_mention_them(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "device"), write_host_run(tmp_path / "host", steps_discarded=64)]
    assert "Faults" not in write_report(runs, tmp_path / "report.html").read_text()


def test_the_faults_of_several_runs_stand_beside_each_other(tmp_path: Path) -> None:
    runs = [
        write_host_run(tmp_path / "none"),
        write_host_run(tmp_path / "some", total=7, hung=7, steps_discarded=350),
        write_run(tmp_path / "device"),
    ]
    section = faults_section(write_report(runs, tmp_path / "report.html").read_text())
    counts = cells(section)
    assert counts["Faults"] == counts["Timeouts"] == ["0", "7", "—"]
    assert counts["Env steps discarded"] == ["0", "350", "—"]
    assert "Exceptions raised" not in counts
    assert [line["name"] for line in drawn_lines(section)] == ["none", "some"]
    assert "Without values: device." in section


def test_episodes_of_evolution_that_were_given_up_are_told(tmp_path: Path) -> None:
    counts = {**NO_FAULTS, **NO_COSTS, "faults/total": 6, "faults/raised": 6, "faults/unfinished_episodes": 1}
    run = write_run(tmp_path / "run", [row | counts for row in learning_rows()])
    section = faults_section(write_report([run], tmp_path / "report.html").read_text())
    assert cells(section)["Episodes given up, without a fitness"] == ["1"]
