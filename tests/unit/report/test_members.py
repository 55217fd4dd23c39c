"""The section on members of a population: descent, the scales on which numbers are drawn, and what is damaged."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.report import write_report
from rookery.report.fronts_and_archives import parse_populations
from rookery.report.member_history import MemberHistory
from tests.unit.report.evolved_runs import evolution_rows, write_evolved_run

ENTRY: dict[str, Any] = {
    "kind": "members",
    "fitness": [[1.0, 2.0, None], [4.0, 3.0, 5.0], [9.0, 6.0, 7.0]],
    "parents": [[0, 1, 1], [2, 1, 2], [0, 1, 1]],
    "numbers": {"learning_rate": [[1e-3, 1e-2, 1e-4]] * 3, "discount": [[0.9, 0.99, 0.999]] * 3},
    "scales": {"learning_rate": "log", "discount": "complement"},
    "best_member": 0,
    "first_round": 2,
    "env_steps_per_round": 100.0,
}
"""After the first round, place 2 takes over from place 1; after the second, place 0 from place 2."""


def history(**changes: Any) -> MemberHistory:
    (read,) = parse_populations([ENTRY | changes])
    assert isinstance(read, MemberHistory)
    return read


def test_ancestors_follow_the_parents_back_from_the_last_round() -> None:
    assert history().ancestors().tolist() == [[1, 1, 1], [2, 1, 2], [0, 1, 2]]


def test_the_parents_after_the_last_round_have_no_effect_yet() -> None:
    after = [*ENTRY["parents"][:2], [1, 1, 1]]
    np.testing.assert_array_equal(history(parents=after).ancestors(), history().ancestors())


def test_a_member_that_diverged_has_no_fitness_and_steps_count_from_the_first_round_kept() -> None:
    read = history()
    assert np.isnan(read.fitness).tolist() == [[False, False, True], [False] * 3, [False] * 3]
    assert read.steps.tolist() == [300, 400, 500]


def test_figures_follow_the_best_and_draw_numbers_on_their_scales(tmp_path: Path) -> None:
    run = write_evolved_run(tmp_path / "run", evolution_rows(), [ENTRY])
    text = write_report([run], tmp_path / "report.html").read_text()
    drawn: dict[str, list[float]] = {}
    for figure in text.partition("<h2>Members</h2>")[2].partition("</section>")[0].split("<figure")[1:]:
        (title,) = re.findall("<h3>(.*?)</h3>", figure)
        data = json.loads(re.search('<script type="application/json">(.*?)</script>', figure).group(1))  # type: ignore[union-attr]
        drawn[title] = data["lines"][0]["y"]
    assert drawn == {
        "Fitness": [2.0, 5.0, 9.0],
        "learning_rate, as power of 10": [-2.0, -4.0, -3.0],
        "1 - discount, as power of 10": [-2.0, -3.0, -1.0],
        "Lineage": [1.0, 2.0, 0.0],
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"fitness": []}, "fitness has the shape"),
        ({"fitness": [1.0, 2.0]}, "fitness has the shape"),
        ({"parents": [[0, 1, 1]]}, r"parents has the shape \[1, 3\], expected \[3, 3\]"),
        ({"parents": [[0, 1, 3]] * 3}, "none of the 3 members"),
        ({"parents": [[0, 1, 0.5]] * 3}, "none of the 3 members"),
        ({"best_member": -1}, "none of the 3 members"),
        ({"best_member": "first"}, "invalid literal"),
        ({"numbers": {"discount": [[0.9]]}}, r"discount has the shape \[1, 1\]"),
        ({"numbers": None}, "numbers is None, expected an object"),
        ({"scales": [1]}, r"scales is \[1\], expected an object"),
        ({"env_steps_per_round": None}, "float"),
    ],
)
def test_a_damaged_entry_is_named(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        history(**changes)
