"""The section on external simulators: how stale their steps were, what they chose themselves, and what was lost."""

from collections.abc import Sequence

from rookery.report.layout import count_table, figures, last_record, legend_of, metric_figure, note, section
from rookery.report.loaded_run import LoadedRun
from rookery.report.markup import Markup
from rookery.report.runners import STALENESS, lines_of

LOGGED = "rollout/logged_share"
STEPS = {
    "rollout/steps_sampled": "Steps reported",
    "rollout/steps_discarded": "Discarded: too old, faulty, or not kept",
    "rollout/steps_abandoned": "Begun and not finished",
    "rollout/steps_pending": "Pending at the last record",
    "rollout/episodes_abandoned": "Episodes abandoned",
}
SERVING = "serving/requests"
SERVED = {
    SERVING: "Requests",
    "serving/started": "Episodes started",
    "serving/ended": "Episodes ended",
    "serving/left": "Episodes left by their client",
    "serving/expired": "Episodes expired after silence",
    "serving/repeated": "Requests that were repeats",
    "serving/outside": "Numbers outside of their bounds",
}


def simulators(runs: Sequence[LoadedRun]) -> Markup | None:
    """The simulators of runs that train on some in control."""
    external = [run for run in runs if LOGGED in run.series]
    if not external:
        return None
    last, named = last_record(runs), len(runs) > 1
    served = [run for run in external if SERVING in run.series]
    return section(
        "Simulators",
        note("Simulators begin and end the episodes. What they leave unfinished is counted; complete steps are kept."),
        legend_of(runs),
        figures(
            [lines_of(run, "Updates that the acting parameters lag", STALENESS, last, named) for run in external],
            metric_figure(runs, LOGGED, "Share of steps in which the simulator acted itself"),
            count_table(external, "Steps in numbers", STEPS),
            count_table(served, "Clients in numbers", SERVED) if served else None,
        ),
    )
