"""Archives: every cell lies at its descriptors, and its color tells its fitness, in gray too."""

import json
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from rookery.report.axes import HEIGHT, WIDTH
from rookery.report.fronts_and_archives import Archive, parse_populations
from rookery.report.heat_maps import NUM_LEVELS, archive_figure, color_of_level
from tests.unit.report.evolved_runs import cvt_archive, grid_archive


def draw(entry: dict[str, Any], **changes: Any) -> str:
    (archive,) = parse_populations([{**entry, **changes}])
    assert isinstance(archive, Archive)
    return archive_figure("Archive", archive, 0, "note")


def svg(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.search("<svg.*?</svg>", figure, re.DOTALL).group())


def colored(figure: str, color: str) -> list[str]:
    """Return the paths that are filled or drawn in a color."""
    return [path.get("d") for path in svg(figure).iter("path") if color in path.get("style", "")]


def points(figure: str) -> list[list[float | None]]:
    (group,) = json.loads(re.search("<script[^>]*>(.*)</script>", figure).group(1))["groups"]
    return group["points"]


def test_the_first_descriptor_goes_to_the_right_and_the_second_up() -> None:
    # Row-major: the cells are (0, 0), (0, 1), (1, 0), (1, 1) of the first and the second descriptor.
    figure = draw(grid_archive((2, 2)), fitness=[None, 1.0, 3.0, None])
    upper_left, lower_right = colored(figure, color_of_level(0)), colored(figure, color_of_level(NUM_LEVELS - 1))
    assert upper_left == [f"M0 {HEIGHT // 2}H{WIDTH // 2}V0H0z"]
    assert lower_right == [f"M{WIDTH // 2} {HEIGHT}H{WIDTH}V{HEIGHT // 2}H{WIDTH // 2}z"]
    assert points(figure) == [[-1.2, -1.2, None], [-1.2, 1.2, 1], [1.2, -1.2, 3], [1.2, 1.2, None]]
    label = "Archive, by last:obs[0] and last:obs[1]. 2 of 4 cells filled, fitness from 1 to 3"
    assert svg(figure).get("aria-label") == label


def test_over_further_descriptors_the_best_is_shown() -> None:
    figure = draw(grid_archive((1, 2, 2)), fitness=[1.0, 4.0, None, None])
    assert points(figure) == [[0, -1.2, 4], [0, 1.2, None]]


def test_every_filled_cell_is_drawn_once() -> None:
    entry = grid_archive((32, 20))
    tiles = "".join(path.get("d") for path in svg(draw(entry)).iter("path"))
    assert tiles.count("M") == sum(value is not None for value in entry["fitness"])


def test_scattered_cells_are_dots_at_their_centroids_with_the_fittest_on_top() -> None:
    figure = draw(
        cvt_archive(3), centroids=[[-2.4, -2.4], [0.0, 0.0], [2.4, 2.4]], fitness=[9.0, None, 1.0], low=[-2.4, -2.4]
    )
    drawn = [(path.get("class"), path.get("d")) for path in svg(figure).iter("path")]
    assert drawn == [("empty", f"M{WIDTH // 2} {HEIGHT // 2}h0"), (None, f"M{WIDTH} 0h0"), (None, f"M0 {HEIGHT}h0")]


def test_one_descriptor_is_drawn_as_bars_as_high_as_the_fitness() -> None:
    figure = draw(grid_archive((4,)), fitness=[0.0, None, 5.0, 10.0])
    (bars,) = [path.get("d") for path in svg(figure).iter("path") if "bars" in path.get("class")]
    edges = re.findall(r"M(\d+) \d+V(\d+)H(\d+)", bars)
    quarter = WIDTH // 4
    assert [(int(left), int(right)) for left, _, right in edges] == [
        (0, quarter),
        (2 * quarter, 3 * quarter),
        (3 * quarter, WIDTH),
    ]
    lowest, middle, highest = (int(top) for _, top, _ in edges)
    assert middle == HEIGHT // 2
    assert lowest - middle == middle - highest > 0


def test_scattered_cells_of_one_descriptor_are_bars_between_the_middles() -> None:
    figure = draw(cvt_archive(2, num_axes=1), centroids=[[1.4], [-0.6]], low=[-1.6], high=[2.4], fitness=[1.0, 2.0])
    (bars,) = [path.get("d") for path in svg(figure).iter("path") if "bars" in path.get("class")]
    # The middle between -0.6 and 1.4 is half of the way from -1.6 to 2.4.
    assert [(left, right) for left, right in re.findall(r"M(\d+) .*?H(\d+)", bars)] == [("0", "1000"), ("1000", "2000")]
    assert points(figure) == [[-0.6, 2], [1.4, 1]]


@pytest.mark.parametrize("entry", [grid_archive((3, 3)), cvt_archive(9), grid_archive((9,)), grid_archive((3, 3, 1))])
@pytest.mark.parametrize("fitness", [[None] * 9, [None] * 8 + [7.0], [7.0] * 9, [0.0] * 9, [-3e38] * 8 + [3e38]])
def test_odd_archives_can_be_drawn(entry: dict[str, Any], fitness: list[float | None]) -> None:
    figure = draw(entry, fitness=fitness)
    num_filled = sum(value is not None for value in fitness)
    assert f"{num_filled} of 9 cells filled" in svg(figure).get("aria-label")
    for x, y in re.findall(r"(-?\d+) (-?\d+)[hH]", "".join(path.get("d") for path in svg(figure).iter("path"))):
        assert 0 <= int(x) <= WIDTH
        assert 0 <= int(y) <= HEIGHT


def lightness(color: str) -> float:
    """CIE 1976 lightness, 0 to 100, of a color of the web."""
    parts = np.array([int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(116.0 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16.0)


def test_a_higher_fitness_is_lighter_by_even_steps() -> None:
    steps = np.diff([lightness(color_of_level(level)) for level in range(NUM_LEVELS)])
    assert np.all(steps > 0.5)
    assert np.all(steps < 2.0)


def test_the_color_bar_names_its_ends() -> None:
    figure = draw(grid_archive((2, 2)), fitness=[1.5, None, 3.0, None])
    assert "<span>fitness 1.5</span>" in figure
    assert "<span>3</span>" in figure
