"""Building blocks of sections: headings, rows of figures, and the figure of one metric."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from rookery.report.curves import make_curve
from rookery.report.loaded_run import LoadedRun
from rookery.report.markup import Content, Markup, element
from rookery.report.plots import ENV_STEPS, Line, legend, line_figure, swatch
from rookery.report.tables import NOT_KNOWN, table

MAX_POINTS = 500
"""The maximum number of points of a curve."""
MAX_SEED_POINTS = 250
"""The maximum number of points of the curve of a single seed."""
MAX_SMALL_FIGURES = 64
"""The maximum number of small figures of a section."""
MAX_SMALL_POINTS = 160
"""The maximum number of points of a curve in a small figure."""


def section(title: str, *content: Content) -> Markup:
    """Put content under a heading."""
    return element("section", element("h2", title), content)


def note(text: Content) -> Markup:
    """Make a note that explains what follows."""
    return element("p", text, class_="note")


def absent(reason: str) -> Markup:
    """Explain why there is no figure."""
    return element("p", reason, class_="absent")


def figures(*content: Content) -> Markup:
    """Arrange large figures in rows."""
    return element("div", content, class_="figures")


def small_figures(names: Iterable[str], figure_fn: Callable[[str], Content]) -> list[Markup]:
    """Arrange small figures of metrics in rows, up to `MAX_SMALL_FIGURES`."""
    names = list(names)
    drawn, num_more = names[:MAX_SMALL_FIGURES], len(names) - MAX_SMALL_FIGURES
    content = [element("div", [figure_fn(name) for name in drawn], class_="small-figures")]
    return [*content, note(f"{num_more:,} more metrics are not drawn.")] if num_more > 0 else content


def legend_of(runs: Sequence[LoadedRun], label: str = "Runs") -> Markup | None:
    """List several runs with their colors."""
    return legend(label, {run.style: run.name for run in runs}) if len(runs) > 1 else None


def run_label(run: LoadedRun) -> Markup:
    """Write the name of a run with its color."""
    return element("span", swatch(run.style), run.name, class_="run-label")


def metric_figure(
    runs: Sequence[LoadedRun],
    metric: str,
    title: str,
    small: bool = False,
    with_seeds: bool = True,
    x_label: str = ENV_STEPS,
) -> Markup | None:
    """Draw one metric of all runs that have it; all figures of these runs share their x axis."""
    with_metric = [run for run in runs if metric in run.series]
    if not with_metric:
        return None
    max_points = MAX_SMALL_POINTS if small else MAX_POINTS
    max_seed_points = MAX_SEED_POINTS if with_seeds else 0
    lines = [
        Line(run.name, run.style, make_curve(run.series[metric], max_points, max_seed_points)) for run in with_metric
    ]
    notes = []
    num_not_finite = sum(run.series[metric].num_not_finite for run in with_metric)
    if num_not_finite:
        notes.append(f"Values omitted because they are NaN or infinite: {num_not_finite:,}.")
    if len(with_metric) < len(runs):
        notes.append(f"Without values: {', '.join(run.name for run in runs if metric not in run.series)}.")
    return line_figure(title, lines, last_record(runs), " ".join(notes), small, x_label)


def count_table(runs: Sequence[LoadedRun], title: str, labels: Mapping[str, str]) -> Markup:
    """List the last values of counts by their labels, one column per run."""
    rows = [[label, *(_count(run, name) for run in runs)] for name, label in labels.items()]
    header = ["", *map(run_label, runs)] if len(runs) > 1 else []
    return element("div", element("h3", title), table(title, header, rows), class_="group")


def _count(run: LoadedRun, name: str) -> str:
    count = run.last(name)
    return NOT_KNOWN if count is None else f"{count:,.0f}"


def last_record(runs: Sequence[LoadedRun]) -> int:
    """Return the position of the last record of any run on the x axis."""
    all_steps = (steps for run in runs for series in run.series.values() for steps in series.steps)
    return max((int(steps[-1]) for steps in all_steps if len(steps)), default=0)
