"""Axes of figures: ranges, ticks, and positions in plot units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rookery.report.formatting import tick_labels
from rookery.report.markup import Content, Markup, element

WIDTH, HEIGHT = 2000, 1000
"""The size of a plot in plot units: integer coordinates, finer than a pixel."""
MARGIN = 0.05
"""The margin above and below the data, as a fraction of its height."""


@dataclass(frozen=True)
class Axis:
    """A range of values and its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def fraction(self, values: np.ndarray) -> np.ndarray:
        """Scale values to 0 at the low end and 1 at the high end of the axis."""
        return (np.asarray(values, np.float64) - self.low) / (self.high - self.low)


def axis_of_values(values: np.ndarray, num_ticks: int = 5) -> Axis:
    """Return an axis that contains all values; a constant is in its middle."""
    low, high = range_of(values)
    margin = MARGIN * (high - low)
    low, high = low - margin, high + margin
    return Axis(low, high, round_values(low, high, num_ticks))


def range_of(values: np.ndarray) -> tuple[float, float]:
    """Return the smallest and largest value; for a constant, a range around it."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    spread = 0.5 * abs(low) or 0.5
    return low - spread, high + spread


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


def grid(x_axis: Axis, y_axis: Axis) -> Markup:
    """Draw a line at every tick."""
    down = [f"M{x} 0V{HEIGHT}" for x in x_positions(x_axis, x_axis.ticks)]
    across = [f"M0 {y}H{WIDTH}" for y in y_positions(y_axis, y_axis.ticks)]
    return element("path", d="".join(down + across), class_="grid")


def labels(x_axis: Axis, y_axis: Axis, names: Content) -> Markup:
    """Write the tick labels and the names of the axes of a plot."""

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
        names,
        class_="labels",
        aria_hidden="true",
    )


def connect(x_axis: Axis, y_axis: Axis, x_values: np.ndarray, y_values: np.ndarray) -> str:
    """Connect the points; missing values interrupt the line, and isolated points become dots."""
    pieces = []
    for stretch in stretches(~np.isnan(y_values)):
        points = places(x_axis, y_axis, x_values[stretch], y_values[stretch])
        pieces.append(f"M{'L'.join(points)}" if len(points) > 1 else f"M{points[0]}h0")
    return "".join(pieces)


def stretches(known: np.ndarray) -> list[slice]:
    """Return the slices of consecutive True values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    return [slice(start, stop) for start, stop in edges.reshape(-1, 2)]


def places(x_axis: Axis, y_axis: Axis, x_values: np.ndarray, y_values: np.ndarray) -> list[str]:
    """Format points in plot units."""
    return [f"{x} {y}" for x, y in zip(x_positions(x_axis, x_values), y_positions(y_axis, y_values), strict=True)]


def x_positions(axis: Axis, values: Sequence[float] | np.ndarray) -> list[int]:
    """Return positions in plot units from the left edge."""
    return np.rint(axis.fraction(np.asarray(values)) * WIDTH).astype(int).tolist()


def y_positions(axis: Axis, values: Sequence[float] | np.ndarray) -> list[int]:
    """Return positions in plot units from the upper edge."""
    return np.rint((1.0 - axis.fraction(np.asarray(values))) * HEIGHT).astype(int).tolist()


def numbers(values: np.ndarray | None) -> list[float | int | None] | None:
    """Round numbers to five digits; missing values become null."""
    if values is None:
        return None
    if np.issubdtype(values.dtype, np.integer):
        return values.tolist()
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
