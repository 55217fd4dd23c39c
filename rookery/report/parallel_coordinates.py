"""Parallel coordinates: one upright axis per searched setting and one for the fitness; a line for each trial."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from rookery.configuration import from_mapping
from rookery.errors import InvalidInputError
from rookery.report.axes import HEIGHT, WIDTH, axis_of_values
from rookery.report.formatting import format_number, tick_labels
from rookery.report.markup import Markup, element
from rookery.runs.trial_results import TrialResult, describe, shown_number
from rookery.search import SearchRange

FITNESS = "fitness"
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
PALEST, DARKEST = 0.12, 0.8
"""The opacity of the lines of the worst and the best trial."""


@dataclass(frozen=True)
class UprightAxis:
    """The name of an axis, its ticks from 0 at the bottom to 1 at the top, and the place of each trial; NaN: none."""

    name: str
    ticks: Mapping[float, str]
    places: tuple[float, ...]


def check_values(space: Mapping[str, Any], results: Sequence[TrialResult]) -> None:
    """Raise unless each trial has a value of each searched setting; a search may come from a stranger."""
    for result in results:
        for key, given in space.items():
            value = shown_number(result.values.get(key))
            is_range = isinstance(given, Mapping)
            if (is_range and type(value) not in (int, float)) or (not is_range and result.values.get(key) not in given):
                raise InvalidInputError(
                    f"trial {result.trial} has {key}={value!r:.80}, which the search does not have."
                )


def axes_of(space: Mapping[str, Any], results: Sequence[TrialResult]) -> list[UprightAxis]:
    """Return an axis for each searched setting, then that of the fitness."""
    searched = [_axis_of_setting(key, space[key], [result.values[key] for result in results]) for key in space]
    return [*searched, _axis_of_fitness(results)]


def parallel_coordinates(axes: Sequence[UprightAxis], results: Sequence[TrialResult]) -> Markup:
    """Draw the trials, the best first; the best is marked, and those without a fitness end before its axis."""
    x = [round(index * WIDTH / (len(axes) - 1)) for index in range(len(axes))]
    upright = element("path", d="".join(f"M{place} 0V{HEIGHT}" for place in x), class_="axis")
    lines = [_line(axes, x, results, index) for index in reversed(range(len(results)))]
    svg = element(
        "svg",
        upright,
        lines,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"Parallel coordinates of {len(results)} trials over {', '.join(axis.name for axis in axes)}",
    )
    labels = element("div", [_labels(axes, index) for index in range(len(axes))], class_="labels", aria_hidden="true")
    return element("figure", element("div", svg, labels, class_="plot"), class_="parallel")


def _axis_of_setting(key: str, given: Any, values: Sequence[Any]) -> UprightAxis:
    name = key.removeprefix("agent.")
    if isinstance(given, Mapping):
        own = from_mapping(SearchRange, given, key)
        numbers = jnp.float32([shown_number(value) for value in values])
        ticks = {place: format_number(float(own.from_unit(jnp.float32(place)))) for place in TICKS}
        return UprightAxis(name, ticks, tuple(np.asarray(own.to_unit(numbers)).tolist()))
    indices = {json.dumps(choice): index for index, choice in enumerate(given)}
    num_gaps = max(1, len(given) - 1)
    ticks = {index / num_gaps: describe(choice) for index, choice in enumerate(given)}
    return UprightAxis(name, ticks, tuple(indices[json.dumps(value)] / num_gaps for value in values))


def _axis_of_fitness(results: Sequence[TrialResult]) -> UprightAxis:
    fitness = np.array([np.nan if result.fitness is None else result.fitness for result in results])
    axis = axis_of_values(fitness[np.isfinite(fitness)])
    places = axis.fraction(np.array(axis.ticks)).tolist()
    ticks = dict(zip(places, tick_labels(axis.ticks), strict=True))
    return UprightAxis(FITNESS, ticks, tuple(axis.fraction(fitness).tolist()))


def _line(axes: Sequence[UprightAxis], x: Sequence[int], results: Sequence[TrialResult], index: int) -> Markup:
    result = results[index]
    places = [axis.places[index] for axis in axes]
    points = [f"{at} {round((1 - place) * HEIGHT)}" for at, place in zip(x, places, strict=True) if not np.isnan(place)]
    outcome = result.status if result.fitness is None else f"fitness {format_number(result.fitness)}"
    settings = ", ".join(f"{key.removeprefix('agent.')} {describe(value)}" for key, value in result.values.items())
    is_best = index == 0 and result.fitness is not None
    opacity = DARKEST - (DARKEST - PALEST) * index / max(1, len(results) - 1)
    kind = "best style-1" if is_best else "style-0" if result.fitness is not None else "without-fitness"
    return element(
        "path",
        element("title", f"trial {result.trial}: {outcome}; {settings}"),
        d=f"M{'L'.join(points)}",
        class_=f"trial {kind}",
        style=None if is_best else f"opacity:{opacity:.2f}",
    )


def _labels(axes: Sequence[UprightAxis], index: int) -> list[Markup]:
    """Write the name of an axis below it, and its ticks to its right; to its left for the last."""
    axis, left = axes[index], f"left:{100 * index / (len(axes) - 1):.2f}%"
    side = "upright-tick before" if index == len(axes) - 1 else "upright-tick"
    ticks = [
        element("span", text, class_=side, style=f"{left};bottom:{100 * at:.2f}%") for at, text in axis.ticks.items()
    ]
    edge = "first" if index == 0 else "last" if index == len(axes) - 1 else None
    return [*ticks, element("span", axis.name, class_=" ".join(filter(None, ["upright-name", edge])), style=left)]
