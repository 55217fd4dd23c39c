"""Figures: values lie where they belong, and odd data draws too."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from rookery.report.axes import HEIGHT, WIDTH
from rookery.report.curves import Curve
from rookery.report.plots import NUM_STYLES, Line, line_figure, share_bar, style_class


def curve(steps: list[int], center: list[float], low: list | None = None, high: list | None = None) -> Curve:
    ends = (None if end is None else np.array(end, float) for end in (low, high))
    return Curve(np.array(steps), np.array(center, float), *ends)


def draw(*curves: Curve, last: int = 100) -> ElementTree.Element:
    """Draw curves and return the SVG, which an XML parser must accept."""
    lines = [Line(f"run {style}", style, one) for style, one in enumerate(curves)]
    figure = line_figure("Return", lines, last)
    return ElementTree.fromstring(re.search("<svg.*</svg>", figure, re.DOTALL).group())


def paths(svg: ElementTree.Element, name: str) -> list[str]:
    return [path.get("d") for path in svg.iter("path") if name in path.get("class").split()]


def coordinates(path: str) -> list[tuple[int, int]]:
    return [tuple(map(int, point.split())) for point in re.findall(r"-?\d+ -?\d+", path)]


def test_points_lie_where_the_axes_put_them() -> None:
    ((left, right),) = [coordinates(path) for path in paths(draw(curve([0, 100], [0.0, 200.0])), "center")]
    # A twentieth of the range is left free above and below.
    bottom, top = HEIGHT * (1 - 0.05 / 1.1), HEIGHT * 0.05 / 1.1
    assert left == (0, round(bottom))
    assert right == (WIDTH, round(top))


def test_the_band_goes_forth_along_the_upper_end_and_back_along_the_lower() -> None:
    svg = draw(curve([0, 50, 100], [5, 6, 7], low=[4, 5, 6], high=[8, 9, 10]))
    (band,) = map(coordinates, paths(svg, "band"))
    assert [x for x, _ in band] == [0, WIDTH // 2, WIDTH, WIDTH, WIDTH // 2, 0]
    heights = np.array([y for _, y in band])
    assert np.all(heights[:3] < heights[:2:-1])


def test_a_missing_value_interrupts_the_line_and_a_lonely_point_is_a_dot() -> None:
    (path,) = paths(draw(curve([0, 10, 20, 30, 40], [1, 2, np.nan, 3, np.nan])), "center")
    assert path.count("M") == 2
    assert path.endswith("h0")
    assert len(coordinates(path)) == 3


@pytest.mark.parametrize(
    "center", [[3.0, 3.0], [0.0, 0.0], [np.nan, np.nan], [-1e30, 1e30], [1e-12, 2e-12], [1e6, 1e6 + 1e-9]]
)
def test_odd_values_can_be_drawn(center: list[float]) -> None:
    for x, y in coordinates("".join(paths(draw(curve([0, 100], center)), "center"))):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_all_curves_share_one_axis() -> None:
    first, second = paths(draw(curve([0, 100], [0, 1]), curve([0, 100], [0, 10])), "center")
    assert coordinates(first)[0] == coordinates(second)[0]
    assert coordinates(first)[1][1] > coordinates(second)[1][1]


def test_the_parts_of_a_bar_fill_it_in_proportion() -> None:
    bar = ElementTree.fromstring(share_bar("Time", {"compile": 1.0, "collect": 0.0, "learn": 3.0}))
    assert [(int(part.get("x")), int(part.get("width"))) for part in bar.iter("rect")] == [
        (0, WIDTH // 4),
        (WIDTH // 4, 0),
        (WIDTH // 4, 3 * WIDTH // 4),
    ]
    assert bar.get("aria-label") == "Time: compile 25%, collect 0%, learn 75%"


def test_no_two_of_the_first_runs_look_the_same() -> None:
    assert len({style_class(style) for style in range(2 * NUM_STYLES)}) == 2 * NUM_STYLES
