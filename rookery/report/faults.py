"""The section on failed environments: numbers, kinds and costs of faults."""

from collections.abc import Sequence

from rookery.report.layout import count_table, figures, legend_of, metric_figure, note, section
from rookery.report.loaded_run import LoadedRun
from rookery.report.markup import Markup

NUM_FAULTS = "faults/total"
KINDS = {
    "faults/raised": "Exceptions raised",
    "faults/invalid": "Invalid values returned",
    "faults/hung": "Timeouts",
    "faults/killed": "Processes killed by a signal",
    "faults/exited": "Processes that exited",
    "faults/unreachable": "Runners that could not be reached",
}
COSTS = {
    "faults/restarts": "Envs restarted",
    "faults/lost_envs": "Envs given up",
    "faults/unfinished_episodes": "Episodes given up, without a fitness",
    "rollout/steps_discarded": "Env steps discarded",
}


def faults(runs: Sequence[LoadedRun]) -> Markup | None:
    """The faults of host environments, if there were any."""
    if not any(run.last(NUM_FAULTS) for run in runs):
        return None
    return section(
        "Faults",
        note("A fault discards its episode. The env is restarted, or given up after too many attempts."),
        legend_of(runs),
        figures(metric_figure(runs, NUM_FAULTS, "Faults so far"), _counts(runs)),
    )


def _counts(runs: Sequence[LoadedRun]) -> Markup:
    """List the kinds that occurred and the recorded costs, one column per run."""
    happened = {name: label for name, label in KINDS.items() if any(run.last(name) for run in runs)}
    recorded = {name: label for name, label in COSTS.items() if any(name in run.series for run in runs)}
    return count_table(runs, "Kinds and costs", {NUM_FAULTS: "Faults", **happened, **recorded})
