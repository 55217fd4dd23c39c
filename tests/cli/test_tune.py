"""`rookery tune`, and `rookery train --preset`."""

from pathlib import Path

import pytest

from rookery import cli
from rookery.runs.search_directory import SearchDirectory
from rookery.runs.trial_results import best_of, describe

RATES = "agent.learning_rate={low: 1e-4, high: 1e-1, scale: log}"


def test_a_search_prints_its_trials_and_leaves_a_preset_that_train_takes_and_a_report(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", *small, RATES, "trials=2", "search_dir=found"]) == 0
    best = best_of(SearchDirectory.open("found").read_results())
    assert best is not None
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "search directory found"
    header = next(index for index, line in enumerate(lines) if line.startswith("trial  "))
    assert lines[header].split() == ["trial", "fitness", "env", "steps", "learning_rate"]
    rate = describe(best.values["agent.learning_rate"])
    assert lines[header + 1].split() == [str(best.trial), f"{best.fitness:.2f}", "64", rate]
    assert lines[-1].split(None, 1)[1] == "rookery train --preset found/best.yaml"
    page = (tmp_path / "found" / "report.html").read_text()
    assert page.count('class="trial') == 2

    assert cli.main(["train", "--preset", "found/best.yaml", "agent.num_envs=2", "--show-config"]) == 0
    shown = capsys.readouterr().out
    assert "num_envs: 2" in shown
    assert str(best.values["agent.learning_rate"]["start"]) in shown
    assert cli.main(["report", "found", "-o", "again.html"]) == 0
    assert (tmp_path / "again.html").read_text() == page
    assert cli.main(["resume", "found"]) == 2
    assert "found is a search: continue it with `rookery tune --resume found`." in capsys.readouterr().err
    assert cli.main(["tune", "--resume", "found", "trials=3"]) == 2
    assert "trials=3: a search continues as it began" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([RATES, "num_trials=8"], "unknown key 'num_trials'. Did you mean 'trials'?"),
        ([RATES, "learning_rate=[1,2]"], "unknown key 'learning_rate'. Did you mean 'agent.learning_rate'?"),
        (["agent=[ppo,a2c]"], "agent=[ppo,a2c]: a search has one agent"),
        ([RATES, "search=grid"], "unknown search 'grid'. Known: halving, optuna, random."),
        ([RATES, "rungs=4"], "rungs=4 is for search=halving"),
        ([RATES, "trials=0"], "trials=0 must lie between 1 and 10000."),
    ],
)
def test_a_wrong_search_is_one_line(overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", *overrides]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_preset_that_is_no_preset_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.yaml").write_text("agent: {name: a2c, learning_rte: 1.0}\n")
    assert cli.main(["train", "--preset", str(tmp_path / "wrong.yaml"), "--show-config"]) == 2
    assert "Did you mean 'agent.learning_rate'?" in capsys.readouterr().err
    assert cli.main(["train", "--preset", str(tmp_path / "none.yaml"), "--show-config"]) == 2
    assert "none.yaml: No such file or directory." in capsys.readouterr().err
