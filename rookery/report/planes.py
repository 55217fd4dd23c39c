"""Figures with values on both axes: search paths, and individuals by their objectives."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rookery.report.axes import HEIGHT, WIDTH, Axis, axis_of_values, connect, grid, labels, numbers, places
from rookery.report.formatting import format_number
from rookery.report.fronts_and_archives import Front
from rookery.report.markup import Content, Markup, element
from rookery.report.plots import interactive_figure, legend, style_class


@dataclass(frozen=True)
class Group:
    """Points `values[n, 2...]` in one color: their coordinates, then further values for the pointer."""

    name: str
    style: int
    values: np.ndarray


@dataclass(frozen=True)
class Plane:
    """Two axes, and the names of the values of points; the first two name the axes."""

    x_axis: Axis
    y_axis: Axis
    names: tuple[str, ...]

    @classmethod
    def around(cls, groups: Sequence[Group], names: Sequence[str]) -> "Plane":
        """Return a plane that contains all points."""
        values = np.concatenate([group.values[:, :2] for group in groups])
        return cls(axis_of_values(values[:, 0]), axis_of_values(values[:, 1]), tuple(names))

    @property
    def grid(self) -> Markup:
        return grid(self.x_axis, self.y_axis)

    def places(self, values: np.ndarray) -> list[str]:
        """Format points in plot units."""
        return places(self.x_axis, self.y_axis, values[:, 0], values[:, 1])


def path_figure(title: str, names: Sequence[str], paths: Sequence[Group], note: str) -> Markup:
    """Draw paths with marks at start and end."""
    plane = Plane.around(paths, names)
    drawing: list[Content] = [plane.grid]
    for path in paths:
        start, end = plane.places(path.values[[0, -1]])
        line = connect(plane.x_axis, plane.y_axis, path.values[:, 0], path.values[:, 1])
        color = style_class(path.style)
        drawing += [
            element("path", d=line, class_=f"center {color}"),
            element("path", d=_dots([start]), class_=f"mark {color}"),
            element("path", d=_dots([start]), class_="mark-inside"),
            element("path", d=_dots([end]), class_=f"mark {color}"),
        ]
    ends = "; ".join(f"{path.name}: from {_place(path.values[0])} to {_place(path.values[-1])}" for path in paths)
    return plane_figure(title, plane, drawing, f"{title}, {names[1]} over {names[0]}. {ends}", paths, note)


def front_figure(title: str, groups: Sequence[Group], fronts: Sequence[Front], note: str) -> Markup:
    """Plot the individuals of each group by their first two objectives, and mark its Pareto front."""
    names = fronts[0].axes
    plane = Plane.around(groups, names)
    dominated, lines, best, counts = [], [], [], []
    for group, front in zip(groups, fronts, strict=True):
        color = style_class(group.style)
        on_front = front.points[front.is_front]
        dominated.append(
            element("path", d=_dots(plane.places(front.points[~front.is_front])), class_=f"dominated {color}")
        )
        best.append(element("path", d=_dots(plane.places(on_front)), class_=f"points {color}"))
        # With more objectives, the figure is a projection in which the front is not a line.
        if len(names) == 2:
            lines.append(element("path", d=_staircase(plane.places(on_front)), class_=f"thin {color}"))
        counts.append(f"{group.name}: {len(on_front)} of {len(front.points)} individuals on the front")
    description = f"{title}, {names[1]} over {names[0]}. {'; '.join(counts)}"
    return plane_figure(title, plane, [plane.grid, dominated, lines, best], description, groups, note)


def plane_figure(
    title: str,
    plane: Plane,
    drawing: Content,
    description: str,
    groups: Sequence[Group],
    note: str,
    below: Content = None,
) -> Markup:
    """Make a figure of a drawing; the pointer shows the values of the nearest point."""
    svg = element(
        "svg",
        drawing,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=description,
    )
    x_name, y_name, *_ = plane.names
    axis_names = [element("span", y_name, class_="y-label"), element("span", x_name, class_="x-label")]
    values = {
        "x": [plane.x_axis.low, plane.x_axis.high],
        "y": [plane.y_axis.low, plane.y_axis.high],
        "names": plane.names,
        "groups": [
            {
                "name": group.name if len(groups) > 1 else "",
                "style": style_class(group.style),
                "points": [numbers(values) for values in group.values],
            }
            for group in groups
        ],
    }
    colors = legend("Seeds", {group.style: group.name for group in groups}) if len(groups) > 1 else None
    plot = [svg, labels(plane.x_axis, plane.y_axis, axis_names)]
    return interactive_figure(title, plot, values, note, [below, colors], class_="plane")


def _dots(points: Sequence[str]) -> str:
    return "".join(f"M{point}h0" for point in points)


def _staircase(points: Sequence[str]) -> str:
    """Draw the border of the dominated region as a staircase."""
    ordered = sorted(tuple(map(int, point.split())) for point in points)
    return "".join(f"V{y}H{x}" if number else f"M{x} {y}" for number, (x, y) in enumerate(ordered))


def _place(values: np.ndarray) -> str:
    return f"({format_number(values[0])}, {format_number(values[1])})"
