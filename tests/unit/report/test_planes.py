"""Figures of two values: paths go where they went, and the line along a front dominates what it should."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from rookery.report.axes import HEIGHT, WIDTH
from rookery.report.fronts_and_archives import Front
from rookery.report.planes import Group, front_figure, path_figure

LOWER, UPPER = 0.05 / 1.1, 1.05 / 1.1
"""Where the least and the greatest value lie, as a share of an axis with its margins."""


def svg(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.search("<svg.*?</svg>", figure, re.DOTALL).group())


def paths(figure: str, name: str) -> list[str]:
    return [path.get("d") for path in svg(figure).iter("path") if name in path.get("class").split()]


def draw_front(points: list[list[float]], is_front: list[bool], axes: tuple[str, ...] = ("a", "b")) -> str:
    front = Front(axes, np.array(points, float).reshape(-1, len(axes)), np.array(is_front, bool))
    return front_figure("Front", [Group("seed 4", 0, front.points)], [front], "note")


def test_a_path_goes_through_its_points_from_the_ring_to_the_dot() -> None:
    path = np.array([[0.0, 0.0, 1], [2.0, 1.0, 2], [4.0, 4.0, 3]])
    figure = path_figure("Path", ("p", "q", "generation"), [Group("seed 3", 2, path)], "note")
    start = f"{round(LOWER * WIDTH)} {round(UPPER * HEIGHT)}"
    end = f"{round(UPPER * WIDTH)} {round(LOWER * HEIGHT)}"
    (line,) = paths(figure, "center")
    assert line.startswith(f"M{start}L{WIDTH // 2} ")
    assert line.endswith(f"L{end}")
    assert paths(figure, "mark") == [f"M{start}h0", f"M{end}h0"]
    assert paths(figure, "mark-inside") == [f"M{start}h0"]
    assert svg(figure).get("aria-label") == "Path, q over p. seed 3: from (0, 0) to (4, 4)"


def test_the_line_along_the_front_falls_before_it_goes_on() -> None:
    figure = draw_front([[0, 2], [2, 0], [1, 1], [0, 0]], [True, True, True, False])
    left, middle, right = round(LOWER * WIDTH), WIDTH // 2, round(UPPER * WIDTH)
    top, center, bottom = round(LOWER * HEIGHT), HEIGHT // 2, round(UPPER * HEIGHT)
    assert paths(figure, "thin") == [f"M{left} {top}V{center}H{middle}V{bottom}H{right}"]
    assert paths(figure, "dominated") == [f"M{left} {bottom}h0"]
    assert paths(figure, "points")[0].count("h0") == 3
    assert svg(figure).get("aria-label") == "Front, b over a. seed 4: 3 of 4 individuals on the front"


def test_of_three_objectives_two_are_drawn_without_a_line_and_the_pointer_knows_all() -> None:
    figure = draw_front([[0, 2, 5], [2, 0, 6]], [True, True], axes=("a", "b", "c"))
    assert paths(figure, "thin") == []
    data = json.loads(re.search("<script[^>]*>(.*)</script>", figure).group(1))
    assert data["names"] == ["a", "b", "c"]
    assert data["groups"][0]["points"] == [[0, 2, 5], [2, 0, 6]]


@pytest.mark.parametrize(
    ("points", "is_front"), [([], []), ([[1, 5], [1, 7]], [False, True]), ([[0, 0]], [True]), ([[3e38, -3e38]], [True])]
)
def test_odd_fronts_can_be_drawn(points: list[list[float]], is_front: list[bool]) -> None:
    figure = draw_front(points, is_front)
    for path in paths(figure, "points"):
        for x, y in re.findall(r"M(-?\d+) (-?\d+)", path):
            assert 0 <= int(x) <= WIDTH
            assert 0 <= int(y) <= HEIGHT


def test_several_seeds_are_told_apart() -> None:
    seeds = [Group(f"seed {seed}", seed, np.array([[0.0, seed, 1]])) for seed in range(2)]
    figure = path_figure("Path", ("p", "q", "generation"), seeds, "note")
    assert re.findall('style-[01]" viewBox.*?</svg>(seed [01])</li>', figure) == ["seed 0", "seed 1"]
