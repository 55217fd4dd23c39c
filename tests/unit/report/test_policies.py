"""Policies in the report: a curve for each, in the same figures."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rookery.report import write_report
from rookery.runs.directory import RunDirectory
from tests.report_runs import learning_rows, write_run


def write_run_of_policies(path: Path, policies: Sequence[str], num_seeds: int = 1) -> RunDirectory:
    """Write a run in which the metrics of policy k are those of the others plus k."""
    rows = []
    for row in learning_rows(num_seeds):
        common = {name: value for name, value in row.items() if not name.startswith("train/")}
        told = {name: value for name, value in row.items() if name.startswith(("train/", "eval/", "rollout/ep_rew"))}
        of_policies = {
            f"{policy}/{name}": value + index for index, policy in enumerate(policies) for name, value in told.items()
        }
        rows.append(common | of_policies)
    return write_run(path, rows, num_seeds=num_seeds)


def figure(page: str, title: str) -> dict[str, Any]:
    """What the figure with this title shows under the pointer."""
    (match,) = re.findall(rf"<h3>{re.escape(title)}</h3>.*?<script[^>]*>(.*?)</script>", page, flags=re.DOTALL)
    return json.loads(match)


def legend(page: str, section: str) -> list[str]:
    """The names in the legend of a section."""
    (text,) = re.findall(rf"<h2>{section}</h2>(.*?)</section>", page, flags=re.DOTALL)
    found = re.search(r"<ul class=\"legend\".*?</ul>", text, flags=re.DOTALL)
    return [] if found is None else re.findall(r"</svg>(.*?)</li>", found[0], flags=re.DOTALL)


def test_every_policy_has_a_curve_of_its_own_color_in_the_same_figure(tmp_path: Path) -> None:
    run = write_run_of_policies(tmp_path / "run", ["leader", "follower"])
    page = write_report([run], tmp_path / "report.html").read_text()
    losses = [row["leader/train/value_loss"] for row in run.read_metrics()]
    lines = figure(page, "value_loss")["lines"]
    assert [line["name"] for line in lines] == ["leader", "follower"]
    assert [line["style"] for line in lines] == ["style-0", "style-1"]
    for line, offset in zip(lines, (0.0, 1.0), strict=True):
        assert max(abs(drawn - loss - offset) for drawn, loss in zip(line["y"], losses, strict=True)) < 1e-3
    assert legend(page, "Updates") == legend(page, "Policies") == ["leader", "follower"]
    returns = figure(page, "Evaluation return of each policy")["lines"]
    assert [round(line["y"][-1]) for line in returns] == [410, 411]
    assert len(figure(page, "Training return of each policy")["lines"]) == 2
    assert len(figure(page, "Training return")["lines"]) == 1


def test_one_policy_of_all_agents_is_drawn_like_a_run_without_policies(tmp_path: Path) -> None:
    run = write_run_of_policies(tmp_path / "run", ["shared"])
    page = write_report([run], tmp_path / "report.html").read_text()
    assert len(figure(page, "value_loss")["lines"]) == 1
    assert legend(page, "Updates") == []
    assert "<h2>Policies</h2>" not in page


def test_the_policies_of_several_runs_are_told_apart(tmp_path: Path) -> None:
    runs = [
        write_run_of_policies(tmp_path / "two", ["leader", "follower"]),
        write_run_of_policies(tmp_path / "one", ["shared"]),
        write_run(tmp_path / "none"),
    ]
    page = write_report(runs, tmp_path / "report.html").read_text()
    names = ["two: leader", "two: follower", "one: shared", "none"]
    lines = figure(page, "value_loss")["lines"]
    assert [line["name"] for line in lines] == legend(page, "Updates") == names
    assert len({line["style"] for line in lines}) == 4
    assert legend(page, "Learning curves") == ["two", "one", "none"]
