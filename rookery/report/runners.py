"""The section on runners on Ray: how many were ready, how stale their experience was, and what their failures cost."""

from collections.abc import Mapping, Sequence

from rookery.report.curves import make_curve
from rookery.report.layout import MAX_POINTS, count_table, figures, last_record, legend_of, metric_figure, note, section
from rookery.report.loaded_run import LoadedRun
from rookery.report.markup import Markup
from rookery.report.plots import Line, legend, line_figure

READY = "runners/ready"
STATES = {READY: "ready", "runners/starting": "starting", "runners/lost": "lost"}
STALENESS = {"rollout/staleness": "mean", "rollout/staleness_max": "largest"}
WAITING = "time/wait_ms"
TOTALS = {
    READY: "Ready at the last record",
    "runners/starting": "Starting",
    "runners/lost": "Given up",
    "runners/restarts": "Restarts",
    "runners/fragments_lost": "Fragments lost",
    "runners/chunks_lost": "Chunks of individuals lost",
}


def runners(runs: Sequence[LoadedRun]) -> Markup | None:
    """The runners of runs that collect on Ray."""
    on_ray = [run for run in runs if READY in run.series]
    if not on_ray:
        return None
    last, named = last_record(runs), len(runs) > 1
    totals = {metric: label for metric, label in TOTALS.items() if any(metric in run.series for run in on_ray)}
    return section(
        "Runners",
        note(
            "A runner that fails is restarted; the others go on. The fragment that it was asked for is lost. "
            "Individuals of a population are played again."
        ),
        legend_of(runs),
        figures(
            [lines_of(run, "Runners", STATES, last, named) for run in on_ray],
            [lines_of(run, "Updates that the acting parameters lag", STALENESS, last, named) for run in on_ray],
            metric_figure(runs, WAITING, "Waiting for runners in an iteration, ms"),
            count_table(runs, "Runners in numbers", totals),
        ),
    )


def lines_of(run: LoadedRun, title: str, metrics: Mapping[str, str], last: int, named: bool) -> Markup | None:
    """Draw some metrics of one run into one figure, with their labels below."""
    found = [(label, run.series[metric]) for metric, label in metrics.items() if metric in run.series]
    if not found:
        return None
    title = f"{title}: {run.name}" if named else title
    lines = [Line(label, style, make_curve(series, MAX_POINTS)) for style, (label, series) in enumerate(found)]
    return line_figure(title, lines, last, below=legend(title, {line.style: line.name for line in lines}))
