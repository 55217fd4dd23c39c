"""The section on evolution: it appears for runs that evolved, says what they did, and survives what is damaged."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rookery.algorithms.evolution.open_es import OpenESWorkflow
from rookery.report import write_report
from rookery.runs.directory import RunDirectory
from tests.report_runs import learning_rows, write_run
from tests.unit.report.evolved_runs import evolution_rows, front, grid_archive, write_evolved_run

HOSTILE = "</script><script>alert(1)</script>\"' & <img src=x onerror=alert(1)>"


def report(path: Path, *runs: Any) -> str:
    return write_report(runs, path / "report.html").read_text()


def headings(text: str) -> list[str]:
    return re.findall("<h[23]>([^<]*)</h[23]>", text)


def pointer_data(text: str, title: str) -> dict[str, Any]:
    """Return the values that the figure of this title shows under the pointer."""
    figure = next(figure for figure in text.split("<figure")[1:] if f"<h3>{title}</h3>" in figure)
    return json.loads(re.search('<script type="application/json">(.*?)</script>', figure).group(1))


def test_a_run_that_evolved_nothing_has_no_such_section(tmp_path: Path) -> None:
    assert "Population" not in headings(report(tmp_path, write_run(tmp_path / "run")))


def test_the_quantiles_of_each_generation_are_the_interquartile_means_over_seeds(tmp_path: Path) -> None:
    run = write_evolved_run(tmp_path / "run", evolution_rows(num_seeds=4, num_generations=3), num_seeds=4)
    data = pointer_data(report(tmp_path, run), "Fitness in the population")
    assert data["unit"] == "generations"
    lines = {line["name"]: line for line in data["lines"]}
    assert list(lines) == ["max", "median", "min"]
    # Seeds 0 to 3 add their number: the middle two of them remain.
    assert lines["median"]["x"] == [1, 2, 3]
    assert lines["median"]["y"] == [31.5, 41.5, 51.5]
    assert lines["median"]["low"] == [21.5, 31.5, 41.5]
    assert lines["median"]["high"] == [41.5, 51.5, 61.5]
    assert lines["max"]["y"] == [51.5, 61.5, 71.5]
    assert lines["min"]["y"] == [11.5, 21.5, 31.5]


def test_every_other_metric_of_evolution_has_a_small_figure_and_none_is_drawn_twice(tmp_path: Path) -> None:
    rows = [{**row, "evolution/coverage": 0.5, "evolution/own": 1.0} for row in evolution_rows()]
    found = headings(report(tmp_path, write_evolved_run(tmp_path / "run", rows)))
    section = found[found.index("Population") : found.index("Throughput")]
    assert section == [
        "Population",
        "Fitness in the population",
        "Path of the center",
        "step_size",
        "num_invalid",
        "fitness_std",
        "coverage",
        "own",
    ]


def test_the_children_of_several_emitters_share_a_figure_and_those_of_one_have_a_small_one(tmp_path: Path) -> None:
    rows = [{**row, "qd/added_by_variation": 7.0, "qd/actor_fitness": 1.0} for row in evolution_rows()]
    alone = headings(report(tmp_path, write_evolved_run(tmp_path / "alone", rows)))
    assert {"added_by_variation", "actor_fitness"} <= set(alone)
    run = write_evolved_run(tmp_path / "run", [{**row, "qd/added_actor": 0.0} for row in rows])
    text = report(tmp_path, run)
    assert {"added_by_variation", "added_actor"}.isdisjoint(headings(text))
    lines = pointer_data(text, "Children in the archive by emitter")["lines"]
    assert {line["name"]: set(line["y"]) for line in lines} == {"variation": {7.0}, "actor": {0.0}}


def test_the_path_of_the_center_is_that_of_each_seed(tmp_path: Path) -> None:
    rows = evolution_rows(num_seeds=2, num_generations=3)
    for row in rows:
        row["seed"] += 11
    run = write_evolved_run(tmp_path / "run", rows, num_seeds=2)
    data = pointer_data(report(tmp_path, run), "Path of the center")
    assert data["names"] == ["parameter 0", "parameter 1", "generation"]
    assert {group["name"]: group["points"] for group in data["groups"]} == {
        "seed 11": [[1, 1, 1], [2, 4, 2], [3, 9, 3]],
        "seed 12": [[1, 2, 1], [2, 5, 2], [3, 10, 3]],
    }


def test_objectives_are_named_and_their_front_is_shown_for_every_seed(tmp_path: Path) -> None:
    rows = evolution_rows(num_seeds=2, quantities=("objective_0", "objective_1"))
    run = write_evolved_run(tmp_path / "run", rows, [front(seed=0), front(seed=1)], num_seeds=2)
    text = report(tmp_path, run)
    assert {"Objective 0 in the population", "Objective 1 in the population", "Pareto front"} <= set(headings(text))
    assert '<h3>Objective 1 in the population</h3><p class="note">last:obs[0]</p>' in text
    assert [group["name"] for group in pointer_data(text, "Pareto front")["groups"]] == ["seed 0", "seed 1"]


def test_of_many_seeds_as_many_are_drawn_as_there_are_colors(tmp_path: Path) -> None:
    run = write_evolved_run(tmp_path / "run", evolution_rows(num_seeds=9), [front()] * 9, num_seeds=9)
    text = report(tmp_path, run)
    for title in ("Pareto front", "Path of the center"):
        assert len(pointer_data(text, title)["groups"]) == 7
    assert text.count("The first 7 of 9 seeds.") == 2


def test_an_archive_is_shown_with_its_coverage_and_score(tmp_path: Path) -> None:
    archive = {**grid_archive((2, 2)), "fitness": [1.0, None, 2.5, None]}
    text = report(tmp_path, write_evolved_run(tmp_path / "run", evolution_rows(), [archive, archive]))
    assert "2 of 4 cells are filled (50%), and the QD score, the sum of their fitness, is 3.5." in text
    assert "This is seed 0, one of 2." in text


def test_an_archive_is_shown_before_and_after_its_elites_played_again(tmp_path: Path) -> None:
    before, after = [1.0, None, 2.5, 9.0], [1.5, None, 2.0, None]
    archive = {**grid_archive((2, 2)), "fitness": before, "corrected_fitness": after}
    text = report(tmp_path, write_evolved_run(tmp_path / "run", evolution_rows(), [archive]))
    assert "3 of 4 cells are filled (75%), and the QD score, the sum of their fitness, is 12.5." in text
    assert "2 of 4 cells are filled (50%), and the QD score, the sum of their fitness, is 3.5." in text
    for title, fitness in (("Archive", before), ("Archive after re-evaluation", after)):
        points = pointer_data(text, title)["groups"][0]["points"]
        assert [point[2] for point in points] == fitness
    assert text.count("fitness 1</span>") == 2, "both have the same colors"


def test_an_archive_that_is_still_empty_is_shown(tmp_path: Path) -> None:
    archive = {**grid_archive((2, 2)), "fitness": [None] * 4}
    text = report(tmp_path, write_evolved_run(tmp_path / "run", evolution_rows(), [archive]))
    assert "0 of 4 cells are filled (0%)" in text


def test_a_population_without_any_record_is_shown(tmp_path: Path) -> None:
    text = report(tmp_path, write_evolved_run(tmp_path / "run", [], [front()]))
    assert {"Population", "Pareto front"} <= set(headings(text))


def test_records_of_generations_without_a_valid_individual_leave_gaps(tmp_path: Path) -> None:
    rows = evolution_rows(num_generations=3)
    rows[1] = {name: value for name, value in rows[1].items() if not name.startswith("evolution/fitness")}
    text = report(tmp_path, write_evolved_run(tmp_path / "run", rows))
    median = pointer_data(text, "Fitness in the population")["lines"][1]
    assert (median["x"], median["y"]) == ([1, 3], [30, 50])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('[{"kind": "fr', "is not valid JSON"),
        ("", "is not valid JSON"),
        ("{}", "expected a list"),
        ('[{"kind": "front", "axes": ["a", "b"]}]', "&#x27;points&#x27; is missing"),
        ("[null]", "expected an object"),
        ("\udcff", "is not valid JSON"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_reported(tmp_path: Path, content: str, problem: str) -> None:
    run = write_evolved_run(tmp_path / "run", evolution_rows())
    run.population_path.write_text(content, errors="surrogateescape")
    text = report(tmp_path, run)
    (absent,) = re.findall('<p class="absent">(The last population cannot be shown: [^<]*)</p>', text)
    assert problem in absent
    assert "population.json" in absent
    assert {"Fitness in the population", "Configuration"} <= set(headings(text))


def test_of_several_runs_each_has_its_figures_and_those_that_evolved_nothing_have_none(tmp_path: Path) -> None:
    text = report(
        tmp_path,
        write_run(tmp_path / "gradient", learning_rows()),
        write_evolved_run(tmp_path / "first", evolution_rows(num_generations=40)),
        write_evolved_run(tmp_path / "second", evolution_rows(), [grid_archive()]),
    )
    section = text[text.index("<h2>Population</h2>") : text.index("<h2>Updates</h2>")]
    assert {
        "Fitness in the population of first",
        "Fitness in the population of second",
        "Path of the center of first",
        "Archive of second",
    } <= set(headings(section))
    assert "gradient" not in section
    # The color of a run is the same everywhere: the first that evolved is the second of the report.
    assert pointer_data(text, "Fitness in the population of first")["lines"][0]["style"] == "style-1"
    assert pointer_data(text, "Fitness in the population of first")["x"] == [0, 60]


def test_text_of_the_run_stays_text(tmp_path: Path) -> None:
    rows = [{**row, f"evolution/{HOSTILE}": 1.0, f"evolution/{HOSTILE}_median": 1.0} for row in evolution_rows()]
    populations = ([{**front(), "axes": [HOSTILE, HOSTILE]}], [{**grid_archive(), "axes": [HOSTILE, "b"]}], [HOSTILE])
    for number, population in enumerate(populations):
        text = report(tmp_path, write_evolved_run(tmp_path / str(number), rows, population))
        assert "alert(1)" in text
        assert "<script>alert" not in text
        assert "<img src=x" not in text


def test_a_real_run_of_evolution_is_reported_with_the_path_of_its_center(tmp_path: Path) -> None:
    config = {
        "agent": {"name": "openes", "population_size": 4, "num_lanes": 4, "network": {"hidden_sizes": []}},
        "env": {"name": "classic/cartpole", "episode_length": 5},
        "evaluation": {"num_episodes": 2},
        "total_timesteps": 60,
        "record_interval": 20,
        "recorders": ["jsonl"],
        "num_seeds": 2,
        "seed": 5,
        "run_dir": str(tmp_path / "run"),
    }
    workflow = OpenESWorkflow.build_from_config(config)
    workflow.learn(workflow.init(workflow.make_key()))
    data = pointer_data(report(tmp_path, RunDirectory.open(tmp_path / "run")), "Path of the center")
    assert [group["name"] for group in data["groups"]] == ["seed 5", "seed 6"]
    assert all([generation for _, _, generation in group["points"]] == [1, 2, 3] for group in data["groups"])
