"""`rookery bench`."""

from pathlib import Path

import pytest

from bench.ray import WARM_UP, Window
from rookery import cli
from rookery.cli import bench


def test_bench_runs_the_benchmarks_beside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__main__.py").write_text("import sys; print(sys.argv[1:]); sys.exit(5)")
    monkeypatch.setattr(bench, "SOURCE_ROOT", tmp_path)
    assert cli.main(["bench", "rollout", "evaluator"]) == 5
    assert capfd.readouterr().out == "['rollout', 'evaluator']\n"


def test_bench_without_a_source_tree_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "SOURCE_ROOT", tmp_path)
    assert cli.main(["bench"]) == 2
    assert capsys.readouterr().err.startswith("rookery: error: the benchmarks are part of a source checkout")


def test_a_rate_is_that_of_two_records_after_the_warm_up_however_rare_they_are() -> None:
    window = Window(seconds=1.0)
    assert not window.note(0.0, 0)
    assert not window.note(WARM_UP + 90.0, 1000)
    assert window.note(WARM_UP + 100.0, 3000)
    assert window.rate == 200.0
