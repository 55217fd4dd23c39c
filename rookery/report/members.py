"""The section on members of a population: their fitness and hyper-parameters over time, and who descends from whom."""

from collections.abc import Callable, Sequence

import numpy as np

from rookery.report.curves import Curve
from rookery.report.layout import figures, note, section
from rookery.report.loaded_run import LoadedRun
from rookery.report.markup import Markup
from rookery.report.member_history import MemberHistory
from rookery.report.plots import Line, line_figure

HOW_TO_READ = (
    "The thick line follows the best member of the last round back through its ancestors; thin lines are the places of "
    "all members. Where a member takes over from another, the line of its ancestors changes places."
)
LINEAGE = "Ancestors of the members of the last round: lines that meet come from the same member."
ON_SCALE: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "log": ("{}, as power of 10", np.log10),
    "complement": ("1 - {}, as power of 10", lambda values: np.log10(1.0 - values)),
}
"""The title of a number on a scale, and its values."""


def members(runs: Sequence[LoadedRun]) -> Markup | None:
    """The members of all runs with populations of trainings; of several seeds, the first."""
    trained = [(run, run.populations[0]) for run in runs if run.populations]
    histories = [(run, history) for run, history in trained if isinstance(history, MemberHistory)]
    if not histories:
        return None
    named = len(runs) > 1
    return section(
        "Members",
        note(HOW_TO_READ),
        figures([figure for run, history in histories for figure in _figures(run, history, named)]),
    )


def _figures(run: LoadedRun, history: MemberHistory, named: bool) -> list[Markup]:
    suffix = f" of {run.name}" if named else ""
    best = history.ancestors()[:, history.best_member]
    drawn = [_figure(f"Fitness{suffix}", run, history, history.fitness, best)]
    for name, values in history.numbers.items():
        title, on_scale = ON_SCALE.get(history.scales.get(name, ""), ("{}", np.asarray))
        drawn.append(_figure(title.format(name) + suffix, run, history, on_scale(values), best))
    return [*drawn, _lineage(f"Lineage{suffix}", run, history)]


def _figure(title: str, run: LoadedRun, history: MemberHistory, values: np.ndarray, best: np.ndarray) -> Markup:
    """Draw a value `[R, P]` of all members, and that of the ancestors of the best."""
    center = values[np.arange(len(values)), best]
    return _drawn(title, run, history, center, values, "ancestors of the best")


def _lineage(title: str, run: LoadedRun, history: MemberHistory) -> Markup:
    ancestors = history.ancestors().astype(float)
    return _drawn(title, run, history, ancestors[:, history.best_member], ancestors, "place of the best", LINEAGE)


def _drawn(
    title: str,
    run: LoadedRun,
    history: MemberHistory,
    center: np.ndarray,
    values: np.ndarray,
    name: str,
    how_to_read: str | None = None,
) -> Markup:
    thin = tuple((history.steps, column) for column in values.T)
    curve = Curve(history.steps, center, None, None, seeds=thin)
    return line_figure(title, [Line(name, run.style, curve)], int(history.steps[-1]), note=how_to_read)
