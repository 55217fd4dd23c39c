"""The section on runs with several policies: each policy is drawn like a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rookery.report.curves import Series
from rookery.report.layout import figures, legend_of, metric_figure, note, section
from rookery.report.loaded_run import EVALUATION_RETURN, TRAINING_RETURN, LoadedRun
from rookery.report.markup import Markup

GROUPS = ("train/", "rollout/", "eval/")
"""Prefixes of metrics after the name of their policy: `leader/train/loss`."""


def policies(runs: Sequence[LoadedRun]) -> Markup | None:
    """The returns of each policy of runs with several policies."""
    parts = by_policy(runs)
    if len(parts) == len(runs):
        return None
    return section(
        "Policies",
        note("The return of a policy is the sum over its agents in an episode."),
        legend_of(parts, "Policies"),
        figures(
            metric_figure(parts, EVALUATION_RETURN, "Evaluation return of each policy"),
            metric_figure(parts, TRAINING_RETURN, "Training return of each policy"),
        ),
    )


def by_policy(runs: Sequence[LoadedRun]) -> list[LoadedRun]:
    """Split runs with several policies into one run per policy, each with its own color."""
    parts: list[LoadedRun] = []
    for run in runs:
        of_policies = _series_of_policies(run)
        names = {policy: f"{run.name}: {policy}" if len(runs) > 1 else policy for policy in of_policies}
        parts += [replace(run, name=names[policy], series=series) for policy, series in of_policies.items()] or [run]
    return [replace(part, style=style) for style, part in enumerate(parts)]


def _series_of_policies(run: LoadedRun) -> Mapping[str, Mapping[str, Series]]:
    found: dict[str, dict[str, Series]] = {}
    for name, series in run.series.items():
        policy, _, metric = name.partition("/")
        if metric.startswith(GROUPS):
            found.setdefault(policy, {})[metric] = series
    return found
