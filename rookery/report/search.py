"""The report on a search: its result, parallel coordinates, and a table of its trials."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.configuration import plain
from rookery.report.formatting import format_number
from rookery.report.layout import absent, note, section
from rookery.report.markup import Markup, element
from rookery.report.page import make_page
from rookery.report.parallel_coordinates import axes_of, check_values, parallel_coordinates
from rookery.report.sections import card
from rookery.report.tables import settings_by_group, table
from rookery.runs.directory import flat_config
from rookery.runs.files import write_output
from rookery.runs.search_directory import SearchDirectory
from rookery.runs.trial_results import DIVERGED, FAILED, TrialResult, describe, ranked

MAX_LINES, MAX_ROWS = 500, 2000
"""The number of trials that the figure and the table show, the best ones."""


def write_search_report(search: SearchDirectory, path: Path) -> Path:
    """Write the report on a search to `path` and return the path."""
    description, results = search.description, ranked(search.read_results())
    config, space = plain(description.get("config", {}), "config"), plain(description.get("space", {}), "space")
    check_values(space, results)
    agent, env = (plain(config.get(group, {}), group).get("name") for group in ("agent", "env"))
    sections = [
        _cards(results, plain(description.get("tune", {}), "tune"), config),
        _figure(results, space),
        _table(results),
        section("Configuration", settings_by_group(flat_config(config), rest="run")),
    ]
    write_output(path, make_page(f"Search of {agent} on {env}", search.path.name, sections).encode("utf-8", "replace"))
    return path


def _cards(results: Sequence[TrialResult], tune: Mapping[str, Any], config: Mapping[str, Any]) -> Markup:
    best = results[0] if results and results[0].fitness is not None else None
    num_lost = sum(result.status in (DIVERGED, FAILED) for result in results)
    cards = [
        card("Best fitness", format_number(best.fitness), f"trial {best.trial}")
        if best and best.fitness is not None
        else None,
        card("Trials", f"{len(results):,}", f"{num_lost:,} diverged or failed" if num_lost else ""),
        card("Search", str(tune.get("search"))),
        card("Env steps of a trial", _count(config.get("total_timesteps")), "of each seed"),
        card("Seeds of a trial", str(config.get("num_seeds"))),
    ]
    return element("section", element("dl", cards, class_="cards"), aria_label="Results")


def _count(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)


def _figure(results: Sequence[TrialResult], space: Mapping[str, Any]) -> Markup:
    shown = results[:MAX_LINES]
    if not any(result.fitness is not None for result in shown):
        return section("Trials", absent("No trial has a fitness yet."))
    how_to_read = (
        "Each line is a trial: its settings, and its fitness, the mean of the last evaluation over its seeds. The "
        "orange line is the best trial, and darker lines are better. Dashed lines are trials that diverged or failed."
    )
    more = f" The figure shows the best {MAX_LINES} of {len(results):,} trials." if len(results) > MAX_LINES else ""
    return section("Trials", note(how_to_read + more), parallel_coordinates(axes_of(space, shown), shown))


def _table(results: Sequence[TrialResult]) -> Markup | None:
    if not results:
        return None
    keys = list(results[0].values)
    header = ["Trial", "Fitness", "Env steps", *(key.removeprefix("agent.") for key in keys)]
    rows = [
        [
            str(result.trial),
            result.status if result.fitness is None else format_number(result.fitness),
            f"{result.env_steps:,}",
            *(describe(result.values[key]) for key in keys),
        ]
        for result in results[:MAX_ROWS]
    ]
    more = note(f"The best {MAX_ROWS:,} of {len(results):,} trials.") if len(results) > MAX_ROWS else None
    return section("Table of trials", more, table("Trials", header, rows))
