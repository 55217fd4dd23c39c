"""Figures of quality-diversity archives: a heat map over two descriptors, bars over one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rookery.report.axes import HEIGHT, WIDTH, Axis, axis_of_values, range_of, round_values, x_positions, y_positions
from rookery.report.formatting import format_number
from rookery.report.fronts_and_archives import Archive
from rookery.report.markup import Content, Markup, element
from rookery.report.planes import Group, Plane, plane_figure
from rookery.report.plots import style_class

COLORS = ("#502684", "#3552ae", "#0c7ead", "#04a3ab", "#19c79a", "#9add78", "#f7e967")
"""From low to high with evenly increasing lightness, readable in gray and on white and black backgrounds."""
NUM_LEVELS = 61
"""The number of colors of a scale: those above, and nine between each pair."""
FITNESS = "fitness"


@dataclass(frozen=True)
class ColorScale:
    """Colors for the values in a range."""

    low: float
    high: float

    def levels(self, values: np.ndarray) -> np.ndarray:
        """Return the color index of each value."""
        return np.rint((values - self.low) / (self.high - self.low) * (NUM_LEVELS - 1)).astype(int)


def archive_figure(title: str, archive: Archive, style: int, note: str, scaled_like: Sequence[Archive] = ()) -> Markup:
    """Draw the fitness in the cells of an archive over its first two descriptors.

    Its colors are those of the archives `scaled_like`, to compare them.
    """
    filled = archive.fitness[~np.isnan(archive.fitness)]
    description = f"{title}, by {' and '.join(archive.axes[:2])}. {filled.size} of {archive.fitness.size} cells filled"
    if filled.size:
        description += f", {FITNESS} from {format_number(filled.min())} to {format_number(filled.max())}"
    x_axis = _axis_between(archive, 0)
    if len(archive.axes) == 1:
        plane = Plane(x_axis, axis_of_values(filled), (archive.axes[0], FITNESS))
        bars, values = _bars(archive, plane)
        drawing = [plane.grid, element("path", d=bars, class_=f"bars {style_class(style)}")]
        return plane_figure(title, plane, drawing, description, [Group("", style, values)], note)
    plane = Plane(x_axis, _axis_between(archive, 1), (*archive.axes[:2], FITNESS))
    compared = [of.fitness[~np.isnan(of.fitness)] for of in (archive, *scaled_like)]
    scale = ColorScale(*range_of(np.concatenate(compared)))
    tiles, values = _dots(archive, plane, scale) if archive.cells is None else _tiles(archive, plane, scale)
    return plane_figure(title, plane, tiles, description, [Group("", style, values)], note, _color_bar(scale))


def color_of_level(level: int) -> str:
    """Interpolate between the two nearest `COLORS`."""
    place = level / (NUM_LEVELS - 1) * (len(COLORS) - 1)
    first = min(int(place), len(COLORS) - 2)
    share = place - first
    low, high = ([int(color[index : index + 2], 16) for index in (1, 3, 5)] for color in COLORS[first : first + 2])
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(low, high, strict=True))


def _tiles(archive: Archive, plane: Plane, scale: ColorScale) -> tuple[Content, np.ndarray]:
    """Draw a grid and return its cells as points; further descriptors are reduced to the best."""
    assert archive.cells is not None
    fitness = np.fmax.reduce(archive.fitness.reshape(*archive.cells[:2], -1), axis=2)
    x_edges, y_edges = _edges(archive, 0), _edges(archive, 1)
    x, y = x_positions(plane.x_axis, x_edges), y_positions(plane.y_axis, y_edges)
    tiles: dict[int, list[str]] = {}
    for column, row in np.argwhere(~np.isnan(fitness)).tolist():
        tile = f"M{x[column]} {y[row]}H{x[column + 1]}V{y[row + 1]}H{x[column]}z"
        tiles.setdefault(int(scale.levels(fitness[column, row])), []).append(tile)
    drawing = [
        element("rect", width=WIDTH, height=HEIGHT, class_="empty"),
        [
            element("path", d="".join(tiles[level]), style=f"fill:{color_of_level(level)}", class_="tiles")
            for level in sorted(tiles)
        ],
    ]
    middles = np.meshgrid(_middles(x_edges), _middles(y_edges), indexing="ij")
    return drawing, np.stack([*middles, fitness], axis=-1).reshape(-1, 3)


def _dots(archive: Archive, plane: Plane, scale: ColorScale) -> tuple[Content, np.ndarray]:
    """Draw a dot at each centroid, the fittest on top; return the centroids as points."""
    assert archive.centroids is not None
    values = np.column_stack([archive.centroids[:, :2], archive.fitness])
    is_empty = np.isnan(archive.fitness)
    levels = np.where(is_empty, -1, scale.levels(np.where(is_empty, scale.low, archive.fitness)))
    # A size at which the dots nearly touch on a phone.
    size = f"stroke-width:{np.clip(240.0 / np.sqrt(len(values)), 4.0, 24.0):.0f}px"
    drawing = []
    for level in np.unique(levels).tolist():
        dots = "".join(f"M{place}h0" for place in plane.places(values[levels == level]))
        if level < 0:
            drawing.append(element("path", d=dots, class_="empty", style=size))
        else:
            drawing.append(element("path", d=dots, style=f"stroke:{color_of_level(level)};{size}"))
    return drawing, values


def _bars(archive: Archive, plane: Plane) -> tuple[str, np.ndarray]:
    """Draw the fitness over the single descriptor; return the tops of the bars as points."""
    if archive.centroids is None:
        edges, fitness = _edges(archive, 0), archive.fitness
        middles = _middles(edges)
    else:
        order = np.argsort(archive.centroids[:, 0])
        middles, fitness = archive.centroids[order, 0], archive.fitness[order]
        edges = np.concatenate([archive.low, _middles(middles), archive.high])
    filled = np.flatnonzero(~np.isnan(fitness))
    x, tops = x_positions(plane.x_axis, edges), y_positions(plane.y_axis, fitness[filled])
    bars = (
        f"M{x[cell]} {HEIGHT}V{top}H{x[cell + 1]}V{HEIGHT}z" for cell, top in zip(filled.tolist(), tops, strict=True)
    )
    return "".join(bars), np.column_stack([middles, fitness])[filled]


def _color_bar(scale: ColorScale) -> Markup:
    # Each color extends under the next one, to avoid visible seams.
    colors = (
        element("rect", x=level, width=NUM_LEVELS - level, height=1, style=f"fill:{color_of_level(level)}")
        for level in range(NUM_LEVELS)
    )
    empty = element("svg", element("rect", width=1, height=1, class_="empty"), viewBox="0 0 1 1", aria_hidden="true")
    return element(
        "div",
        element("span", f"{FITNESS} {format_number(scale.low)}"),
        element("svg", colors, viewBox=f"0 0 {NUM_LEVELS} 1", preserveAspectRatio="none", aria_hidden="true"),
        element("span", format_number(scale.high)),
        element("span", empty, "empty", class_="empty-key"),
        class_="color-bar",
    )


def _axis_between(archive: Archive, index: int) -> Axis:
    low, high = float(archive.low[index]), float(archive.high[index])
    return Axis(low, high, round_values(low, high, 5))


def _edges(archive: Archive, index: int) -> np.ndarray:
    assert archive.cells is not None
    return np.linspace(archive.low[index], archive.high[index], archive.cells[index] + 1)


def _middles(values: np.ndarray) -> np.ndarray:
    return (values[1:] + values[:-1]) / 2.0
