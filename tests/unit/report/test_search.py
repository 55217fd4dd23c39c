"""The report on a search."""

import re
from pathlib import Path

import pytest

from rookery.errors import InvalidInputError
from rookery.report.parallel_coordinates import axes_of, parallel_coordinates
from rookery.report.search import write_search_report
from rookery.runs.search_directory import SearchDirectory
from rookery.runs.trial_results import DIVERGED, TrialResult, ranked

SPACE = {"agent.learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"}, "agent.network.core": [None, "<gru>"]}
RESULTS = [
    TrialResult(0, 1, {"agent.learning_rate": 1e-4, "agent.network.core": None}, env_steps=64, fitness=10.0),
    TrialResult(
        1, 1, {"agent.learning_rate": {"start": 1e-3, "end": 0.0}, "agent.network.core": "<gru>"}, fitness=30.0
    ),
    TrialResult(2, 1, {"agent.learning_rate": 1e-2, "agent.network.core": None}, status=DIVERGED),
]


def search_with(path: Path, results: list[TrialResult]) -> SearchDirectory:
    config = {"agent": {"name": "ppo"}, "env": {"name": "classic/cartpole"}, "total_timesteps": 64, "num_seeds": 2}
    search = SearchDirectory.create(path, {"config": config, "space": SPACE, "tune": {"search": "random"}})
    search.add(results)
    return search


def test_a_line_goes_through_the_places_of_its_trial_and_one_without_a_fitness_ends_before_its_axis() -> None:
    results = ranked(RESULTS)
    axes = axes_of(SPACE, results)
    assert [axis.name for axis in axes] == ["learning_rate", "network.core", "fitness"]
    assert axes[0].places == pytest.approx((0.5, 0.0, 1.0), abs=1e-6)
    assert axes[1].places == (1.0, 0.0, 0.0)
    svg = parallel_coordinates(axes, results)
    drawn = re.findall(r'<path d="(M[^"]*)" class="trial ([^"]*)"[^>]*><title>trial (\d)', svg)
    by_trial = {int(number): (d, kind) for d, kind, number in drawn}
    assert by_trial[1][1] == "best style-1"
    assert by_trial[1][0].startswith("M0 500L1000 0L2000 ")
    assert by_trial[0][0].startswith("M0 1000L1000 1000L2000 ")
    assert by_trial[2] == ("M0 0L1000 1000", "without-fitness")


def test_the_page_has_the_best_result_and_all_trials_and_escapes_what_a_search_contains(tmp_path: Path) -> None:
    search = search_with(tmp_path / "search", RESULTS)
    page = write_search_report(search, search.report_path).read_text()
    assert "Search of ppo on classic/cartpole" in page
    assert "1 diverged or failed" in page
    assert page.count("<tr>") >= 4
    assert "<gru>" not in page
    assert "&lt;gru&gt;" in page


def test_a_search_without_results_has_a_report(tmp_path: Path) -> None:
    search = search_with(tmp_path / "search", [])
    assert "No trial has a fitness yet." in write_search_report(search, search.report_path).read_text()


def test_values_that_were_not_searched_are_an_error(tmp_path: Path) -> None:
    wrong = TrialResult(0, 1, {"agent.learning_rate": "high", "agent.network.core": None}, fitness=1.0)
    search = search_with(tmp_path / "search", [wrong])
    with pytest.raises(
        InvalidInputError, match=r"trial 0 has agent\.learning_rate='high', which the search does not have"
    ):
        write_search_report(search, search.report_path)


def test_lines_that_are_no_results_are_an_error_with_their_place(tmp_path: Path) -> None:
    search = search_with(tmp_path / "search", RESULTS)
    with search.trials_path.open("a") as file:
        file.write('{"trial": 4, "rung": 1, "values": {}, "fitness": "much"}\n')
    with pytest.raises(InvalidInputError, match=r"trials.jsonl, line 4.fitness='much': expected a number"):
        search.read_results()
