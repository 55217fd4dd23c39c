"""Figures as inline SVG, with their labels in HTML.

A plot is stretched to the width of the page, on a laptop as on a phone: strokes do not scale, and the labels are HTML,
which keeps its size. `page.css` has the colors and the places of the labels; `page.js` shows values under the pointer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rookery.report.curves import Curve
from rookery.report.formatting import format_number, tick_labels
from rookery.report.markup import Content, Markup, element, script_data

WIDTH, HEIGHT = 2000, 1000
"""The units of a plot: coordinates are whole numbers, finer than a pixel."""
NUM_STYLES = 7
"""How many colors there are; further curves have the same colors, dashed."""
MAX_MARKED_POINTS = 20
"""A curve with at most so many points shows each of them."""
MARGIN = 0.05
"""The free space above and below the curves, as a share of their height."""
X_LABEL = "env steps"


@dataclass(frozen=True)
class Line:
    """One curve of a figure: `style` chooses its color, `name` stands in the legend and beside its values."""

    name: str
    style: int
    curve: Curve


@dataclass(frozen=True)
class Axis:
    """A range of values, and the round values in it that are labeled."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def fraction(self, values: np.ndarray) -> np.ndarray:
        """Return where values lie between the ends of the axis, 0 to 1."""
        return (np.asarray(values, np.float64) - self.low) / (self.high - self.low)


def line_figure(title: str, lines: Sequence[Line], x_axis: Axis, note: Content = None, small: bool = False) -> Markup:
    """Draw curves over a common axis of env steps."""
    y_axis = axis_of_values(_drawn_values(lines))
    drawing = element(
        "svg",
        _grid(x_axis, y_axis),
        [_band(line, x_axis, y_axis) for line in lines],
        [_seeds(line, x_axis, y_axis) for line in lines],
        [_center(line, x_axis, y_axis) for line in lines],
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=describe(title, lines),
    )
    labels = _labels(x_axis, y_axis)
    how_to_read = f"{title}: the arrow keys show values"
    plot = element("div", drawing, labels, class_="plot", role="group", aria_label=how_to_read, tabindex=0)
    return element(
        "figure",
        element("figcaption", element("h3", title), element("p", note, class_="note") if note else None),
        plot,
        script_data(_values_for_pointer(lines, x_axis, y_axis)),
        class_="small-figure" if small else None,
    )


def share_bar(title: str, amounts: Mapping[str, float]) -> Markup:
    """Draw a bar that is divided in proportion to the amounts; a part is colored by the class `part-<name>`."""
    total = sum(amounts.values())
    ends = np.rint(np.cumsum([0.0, *amounts.values()]) / total * WIDTH).astype(int).tolist()
    parts = (
        element("rect", element("title", name), x=left, width=right - left, height=HEIGHT, class_=f"part-{name}")
        for name, left, right in zip(amounts, ends[:-1], ends[1:], strict=True)
    )
    percentages = ", ".join(f"{name} {amount / total:.0%}" for name, amount in amounts.items())
    return element(
        "svg",
        parts,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        class_="share-bar",
        role="img",
        aria_label=f"{title}: {percentages}",
    )


def legend(names: Sequence[str]) -> Markup:
    """List the names of the curves with their colors."""
    return element(
        "ul",
        (element("li", swatch(style), name) for style, name in enumerate(names)),
        class_="legend",
        aria_label="Runs",
    )


def swatch(style: int) -> Markup:
    """Draw a short piece of line in the color of a curve."""
    line = element("path", d="M0 5H24", class_="center")
    return element("svg", line, class_=f"swatch {style_class(style)}", viewBox="0 0 24 10", aria_hidden="true")


def style_class(style: int) -> str:
    """Return the classes that give an element the color, and the dashes, of a curve."""
    return f"style-{style % NUM_STYLES}" + (" dashed" if style // NUM_STYLES % 2 else "")


def axis_of_values(values: np.ndarray, num_ticks: int = 5) -> Axis:
    """Return an axis with room for all values; that of a constant has the constant in its middle."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        spread = 0.5 * abs(low) or 0.5
        low, high = low - spread, high + spread
    margin = MARGIN * (high - low)
    low, high = low - margin, high + margin
    return Axis(low, high, round_values(low, high, num_ticks))


def axis_of_steps(last: float, num_ticks: int = 5) -> Axis:
    """Return an axis from 0 to `last`."""
    last = max(float(last), 1.0)
    return Axis(0.0, last, round_values(0.0, last, num_ticks))


def round_values(low: float, high: float, num_values: int) -> tuple[float, ...]:
    """Return about `num_values` values between `low` and `high`: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / num_values
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((factor * power for factor in (1.0, 2.0, 5.0, 10.0)), key=lambda step: abs(math.log(step / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(index * step for index in range(first, last + 1))


def describe(title: str, lines: Sequence[Line]) -> str:
    """Say in words what a figure shows, for those who cannot see it."""
    parts = []
    for line in lines:
        known = np.flatnonzero(~np.isnan(line.curve.center))
        if known.size:
            first, last = line.curve.center[known[[0, -1]]]
            parts.append(f"{line.name}: from {format_number(first)} to {format_number(last)}")
    return f"{title} over {X_LABEL}. {'; '.join(parts)}"


def _drawn_values(lines: Iterable[Line]) -> np.ndarray:
    drawn = [np.empty(0)]
    for line in lines:
        curve = line.curve
        drawn += [curve.center, *(values for _, values in curve.seeds)]
        drawn += [end for end in (curve.low, curve.high) if end is not None]
    values = np.concatenate(drawn)
    return values[np.isfinite(values)]


def _grid(x_axis: Axis, y_axis: Axis) -> Markup:
    down = [f"M{x} 0V{HEIGHT}" for x in _x_positions(x_axis, x_axis.ticks)]
    across = [f"M0 {y}H{WIDTH}" for y in _y_positions(y_axis, y_axis.ticks)]
    return element("path", d="".join(down + across), class_="grid")


def _band(line: Line, x_axis: Axis, y_axis: Axis) -> Markup | None:
    curve = line.curve
    if curve.low is None or curve.high is None:
        return None
    outline = []
    for stretch in _stretches(~np.isnan(curve.low)):
        forth = _points(x_axis, y_axis, curve.steps[stretch], curve.high[stretch])
        back = _points(x_axis, y_axis, curve.steps[stretch][::-1], curve.low[stretch][::-1])
        outline.append(f"M{'L'.join(forth + back)}Z")
    return element("path", d="".join(outline), class_=f"band {style_class(line.style)}")


def _seeds(line: Line, x_axis: Axis, y_axis: Axis) -> Markup | None:
    if not line.curve.seeds:
        return None
    path = "".join(_path(x_axis, y_axis, steps, values) for steps, values in line.curve.seeds)
    return element("path", d=path, class_=f"seeds {style_class(line.style)}")


def _center(line: Line, x_axis: Axis, y_axis: Axis) -> list[Markup]:
    curve = line.curve
    known = ~np.isnan(curve.center)
    drawn = [
        element("path", d=_path(x_axis, y_axis, curve.steps, curve.center), class_=f"center {style_class(line.style)}")
    ]
    if known.sum() <= MAX_MARKED_POINTS:
        points = _points(x_axis, y_axis, curve.steps[known], curve.center[known])
        drawn.append(
            element("path", d="".join(f"M{point}h0" for point in points), class_=f"points {style_class(line.style)}")
        )
    return drawn


def _path(x_axis: Axis, y_axis: Axis, steps: np.ndarray, values: np.ndarray) -> str:
    """Connect the points; a value that is missing interrupts the line, and a lonely point becomes a dot."""
    pieces = []
    for stretch in _stretches(~np.isnan(values)):
        points = _points(x_axis, y_axis, steps[stretch], values[stretch])
        pieces.append(f"M{'L'.join(points)}" if len(points) > 1 else f"M{points[0]}h0")
    return "".join(pieces)


def _stretches(known: np.ndarray) -> list[slice]:
    """Return the stretches of consecutive True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    return [slice(start, stop) for start, stop in edges.reshape(-1, 2)]


def _points(x_axis: Axis, y_axis: Axis, steps: np.ndarray, values: np.ndarray) -> list[str]:
    return [f"{x} {y}" for x, y in zip(_x_positions(x_axis, steps), _y_positions(y_axis, values), strict=True)]


def _x_positions(axis: Axis, values: Sequence[float] | np.ndarray) -> list[int]:
    return np.rint(axis.fraction(np.asarray(values)) * WIDTH).astype(int).tolist()


def _y_positions(axis: Axis, values: Sequence[float] | np.ndarray) -> list[int]:
    return np.rint((1.0 - axis.fraction(np.asarray(values))) * HEIGHT).astype(int).tolist()


def _labels(x_axis: Axis, y_axis: Axis) -> Markup:
    def label(axis: Axis, tick: float, text: str, name: str, edge: str) -> Markup:
        position = float(axis.fraction(np.asarray(tick))) * 100
        return element("span", text, class_=name, style=f"{edge}:{position:.2f}%")

    return element(
        "div",
        (
            label(y_axis, *tick, "y-tick", "bottom")
            for tick in zip(y_axis.ticks, tick_labels(y_axis.ticks), strict=True)
        ),
        (label(x_axis, *tick, "x-tick", "left") for tick in zip(x_axis.ticks, tick_labels(x_axis.ticks), strict=True)),
        element("span", X_LABEL, class_="x-label"),
        class_="labels",
        aria_hidden="true",
    )


def _values_for_pointer(lines: Sequence[Line], x_axis: Axis, y_axis: Axis) -> dict:
    return {
        "x": [x_axis.low, x_axis.high],
        "y": [y_axis.low, y_axis.high],
        "unit": X_LABEL,
        "lines": [
            {
                "name": line.name if len(lines) > 1 else "",
                "style": style_class(line.style),
                "x": _numbers(line.curve.steps),
                "y": _numbers(line.curve.center),
                "low": _numbers(line.curve.low),
                "high": _numbers(line.curve.high),
            }
            for line in lines
        ],
    }


def _numbers(values: np.ndarray | None) -> list[float | int | None] | None:
    """Shorten numbers to what a reader can tell apart; a missing one becomes null."""
    if values is None:
        return None
    if np.issubdtype(values.dtype, np.integer):
        return values.tolist()
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
