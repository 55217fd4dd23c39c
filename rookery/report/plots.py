"""Figures as inline SVG with HTML labels.

A plot is stretched to the width of the page; strokes and HTML labels keep their size. `page.css` defines colors and
positions of labels; `page.js` shows values under the pointer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.report.axes import (
    HEIGHT,
    WIDTH,
    Axis,
    axis_of_steps,
    axis_of_values,
    connect,
    grid,
    labels,
    numbers,
    places,
    stretches,
)
from rookery.report.curves import Curve
from rookery.report.formatting import format_number
from rookery.report.markup import Content, Markup, element, script_data

NUM_STYLES = 7
"""The number of colors; further curves reuse them with dashes."""
MAX_MARKED_POINTS = 20
"""Curves with at most this many points show each of them."""
ENV_STEPS = "env steps"


@dataclass(frozen=True)
class Line:
    """One curve of a figure: `style` selects its color, `name` is shown in the legend and with its values."""

    name: str
    style: int
    curve: Curve
    is_thin: bool = False


def line_figure(
    title: str,
    lines: Sequence[Line],
    last: int,
    note: Content = None,
    small: bool = False,
    x_label: str = ENV_STEPS,
    below: Content = None,
) -> Markup:
    """Draw curves over an x axis from 0 to `last`; `x_label` names it."""
    x_axis = axis_of_steps(last, num_ticks=3 if small else 5)
    y_axis = axis_of_values(_drawn_values(lines))
    drawing = element(
        "svg",
        grid(x_axis, y_axis),
        [_band(line, x_axis, y_axis) for line in lines],
        [_seeds(line, x_axis, y_axis) for line in lines],
        [_center(line, x_axis, y_axis) for line in lines],
        [_ends(line, x_axis, y_axis) for line in lines],
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=describe(title, lines, x_label),
    )
    return interactive_figure(
        title,
        [drawing, labels(x_axis, y_axis, element("span", x_label, class_="x-label"))],
        _values_for_pointer(lines, x_axis, y_axis, x_label),
        note=note,
        below=below,
        class_="small-figure" if small else None,
    )


def interactive_figure(
    title: str,
    plot: Content,
    values: Mapping[str, Any],
    note: Content = None,
    below: Content = None,
    class_: str | None = None,
) -> Markup:
    """Make a figure whose `values` are shown under the pointer and with the arrow keys."""
    how_to_read = f"{title}: the arrow keys show values"
    return element(
        "figure",
        element("figcaption", element("h3", title), element("p", note, class_="note") if note else None),
        element("div", plot, class_="plot", role="group", aria_label=how_to_read, tabindex=0),
        script_data(values),
        below,
        class_=class_,
    )


def share_bar(title: str, amounts: Mapping[str, float]) -> Markup:
    """Draw a bar divided in proportion to the amounts; the class `part-<name>` colors a part."""
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


def legend(label: str, names_by_style: Mapping[int, str]) -> Markup:
    """List the names of the curves with their colors."""
    entries = (element("li", swatch(style), name) for style, name in names_by_style.items())
    return element("ul", entries, class_="legend", aria_label=label)


def swatch(style: int) -> Markup:
    """Draw a short line in the color of a curve."""
    line = element("path", d="M0 5H24", class_="center")
    return element("svg", line, class_=f"swatch {style_class(style)}", viewBox="0 0 24 10", aria_hidden="true")


def style_class(style: int) -> str:
    """Return the CSS classes for the color and dashes of a curve."""
    return f"style-{style % NUM_STYLES}" + (" dashed" if style // NUM_STYLES % 2 else "")


def describe(title: str, lines: Sequence[Line], x_label: str = ENV_STEPS) -> str:
    """Describe a figure in words, for screen readers."""
    parts = []
    for line in lines:
        known = np.flatnonzero(~np.isnan(line.curve.center))
        if known.size:
            first, last = line.curve.center[known[[0, -1]]]
            parts.append(f"{line.name}: from {format_number(first)} to {format_number(last)}")
    return f"{title} over {x_label}. {'; '.join(parts)}"


def _drawn_values(lines: Iterable[Line]) -> np.ndarray:
    drawn = [np.empty(0)]
    for line in lines:
        curve = line.curve
        drawn += [curve.center, *(values for _, values in curve.seeds)]
        drawn += [end for end in (curve.low, curve.high) if end is not None]
    values = np.concatenate(drawn)
    return values[np.isfinite(values)]


def _band(line: Line, x_axis: Axis, y_axis: Axis) -> Markup | None:
    curve = line.curve
    if curve.low is None or curve.high is None:
        return None
    outline = []
    for stretch in stretches(~np.isnan(curve.low)):
        forth = places(x_axis, y_axis, curve.steps[stretch], curve.high[stretch])
        back = places(x_axis, y_axis, curve.steps[stretch][::-1], curve.low[stretch][::-1])
        outline.append(f"M{'L'.join(forth + back)}Z")
    return element("path", d="".join(outline), class_=f"band {style_class(line.style)}")


def _seeds(line: Line, x_axis: Axis, y_axis: Axis) -> Markup | None:
    if not line.curve.seeds:
        return None
    path = "".join(connect(x_axis, y_axis, steps, values) for steps, values in line.curve.seeds)
    return element("path", d=path, class_=f"seeds {style_class(line.style)}")


def _center(line: Line, x_axis: Axis, y_axis: Axis) -> list[Markup]:
    curve = line.curve
    known = ~np.isnan(curve.center)
    path = connect(x_axis, y_axis, curve.steps, curve.center)
    drawn = [element("path", d=path, class_=f"{'thin' if line.is_thin else 'center'} {style_class(line.style)}")]
    if not line.is_thin and known.sum() <= MAX_MARKED_POINTS:
        points = places(x_axis, y_axis, curve.steps[known], curve.center[known])
        drawn.append(
            element("path", d="".join(f"M{point}h0" for point in points), class_=f"points {style_class(line.style)}")
        )
    return drawn


def _ends(line: Line, x_axis: Axis, y_axis: Axis) -> Markup | None:
    """Mark where seeds diverged."""
    if not line.curve.ends:
        return None
    steps, values = (np.array(numbers) for numbers in zip(*line.curve.ends, strict=True))
    return element(
        "path", d="".join(f"M{point}h0" for point in places(x_axis, y_axis, steps, values)), class_="diverged"
    )


def _values_for_pointer(lines: Sequence[Line], x_axis: Axis, y_axis: Axis, x_label: str) -> dict[str, Any]:
    return {
        "x": [x_axis.low, x_axis.high],
        "y": [y_axis.low, y_axis.high],
        "unit": x_label,
        "lines": [
            {
                "name": line.name if len(lines) > 1 else "",
                "style": style_class(line.style),
                "x": numbers(line.curve.steps),
                "y": numbers(line.curve.center),
                "low": numbers(line.curve.low),
                "high": numbers(line.curve.high),
            }
            for line in lines
        ],
    }
