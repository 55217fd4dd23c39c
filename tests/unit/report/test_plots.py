"""Figures: values lie where they belong, axes are round, and odd data draws too."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from rookery.report.curves import Curve
from rookery.report.plots import (
    HEIGHT,
    NUM_STYLES,
    WIDTH,
    Axis,
    Line,
    axis_of_steps,
    axis_of_values,
    line_figure,
    round_values,
    share_bar,
    style_class,
)


def curve(steps: list[int], center: list[float], low: list | None = None, high: list | None = None) -> Curve:
    ends = (None if end is None else np.array(end, float) for end in (low, high))
    return Curve(np.array(steps), np.array(center, float), *ends)


def draw(*curves: Curve, last: float = 100.0) -> ElementTree.Element:
    """Draw curves and return the SVG, which an XML parser must accept."""
    lines = [Line(f"run {style}", style, one) for style, one in enumerate(curves)]
    figure = line_figure("Return", lines, axis_of_steps(last))
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


@pytest.mark.parametrize(
    ("low", "high", "num_values", "expected"),
    [
        (0, 500_000, 5, [0, 100_000, 200_000, 300_000, 400_000, 500_000]),
        (-212, -90, 5, [-200, -180, -160, -140, -120, -100]),
        (0, 1, 3, [0, 0.5, 1.0]),
        (2e-4, 1e-3, 4, [2e-4, 4e-4, 6e-4, 8e-4, 1e-3]),
    ],
)
def test_axes_are_labeled_at_round_values(low: float, high: float, num_values: int, expected: list[float]) -> None:
    np.testing.assert_allclose(round_values(low, high, num_values), expected, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 37.0, 1e7])
def test_every_axis_has_a_few_labels_inside_it(scale: float) -> None:
    axis = axis_of_values(np.random.default_rng(0).normal(size=20) * scale)
    assert 3 <= len(axis.ticks) <= 10
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks)


def test_an_axis_maps_its_ends_to_0_and_1() -> None:
    np.testing.assert_array_equal(Axis(-5.0, 15.0, ()).fraction(np.array([-5.0, 5.0, 15.0])), [0.0, 0.5, 1.0])


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
