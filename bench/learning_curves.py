"""Plots learning curves for the docs: one SVG without a style sheet for each study."""

from collections.abc import Iterator

import numpy as np

from rookery.report.axes import Axis, axis_of_steps, axis_of_values
from rookery.report.curves import Series, make_curve
from rookery.report.formatting import tick_labels
from rookery.report.markup import Markup, element

WIDTH, HEIGHT = 420, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 404, 34, 226
INK, GRID, COLOR = "#333", "#ddd", "#1f6feb"


def draw_returns(title: str, series: Series) -> str:
    """Plot the interquartile mean over the seeds, its 95 % interval as a band, and every seed as a thin line."""
    curve = make_curve(series, max_points=200)
    steps, returns = (
        axis_of_steps(series.steps[-1], num_ticks=4),
        axis_of_values(series.values[~np.isnan(series.values)]),
    )

    def path(x_values: np.ndarray, y_values: np.ndarray) -> str:
        known = ~np.isnan(y_values)
        x, y = _place(steps, x_values[known], LEFT, RIGHT), _place(returns, y_values[known], BOTTOM, TOP)
        return "M" + "L".join(f"{left:.1f} {top:.1f}" for left, top in zip(x, y, strict=True))

    band = ""
    if curve.low is not None and curve.high is not None:
        there_and_back = np.concatenate([curve.steps, curve.steps[::-1]])
        band = path(there_and_back, np.concatenate([curve.low, curve.high[::-1]]))
    picture = element(
        "svg",
        element("rect", width=WIDTH, height=HEIGHT, fill="white"),
        element("text", title, x=LEFT, y=20, fill=INK, font_weight="bold"),
        _grid(steps, returns),
        (
            element("path", d=path(series.steps, of_seed), stroke=COLOR, stroke_opacity=0.25)
            for of_seed in series.values
        ),
        element("path", d=band, fill=COLOR, fill_opacity=0.2),
        element("path", d=path(curve.steps, curve.center), stroke=COLOR, stroke_width=2),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
        fill="none",
        font_family="sans-serif",
        font_size=12,
    )
    return f"{picture}\n"


def _grid(steps: Axis, returns: Axis) -> Iterator[Markup]:
    for tick, label in zip(returns.ticks, tick_labels(returns.ticks), strict=True):
        y = _place(returns, np.array([tick]), BOTTOM, TOP)[0]
        yield element("path", d=f"M{LEFT} {y:.1f}H{RIGHT}", stroke=GRID)
        yield element("text", label, x=LEFT - 8, y=f"{y + 4:.1f}", fill=INK, text_anchor="end")
    for tick, label in zip(steps.ticks, tick_labels(steps.ticks), strict=True):
        x = _place(steps, np.array([tick]), LEFT, RIGHT)[0]
        yield element("text", label, x=f"{x:.1f}", y=BOTTOM + 18, fill=INK, text_anchor="middle")


def _place(axis: Axis, values: np.ndarray, first: float, last: float) -> np.ndarray:
    return first + axis.fraction(values) * (last - first)
