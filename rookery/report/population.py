"""The section on evolution: fitness of the generations, path of the search, final population."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rookery.report.curves import Curve, Series, thin_out
from rookery.report.formatting import format_number
from rookery.report.fronts_and_archives import Archive, Front
from rookery.report.heat_maps import archive_figure
from rookery.report.layout import (
    MAX_POINTS,
    MAX_SEED_POINTS,
    absent,
    figures,
    last_record,
    legend_of,
    metric_figure,
    note,
    section,
    small_figures,
)
from rookery.report.loaded_run import LoadedRun
from rookery.report.markup import Markup
from rookery.report.member_history import MemberHistory
from rookery.report.planes import Group, front_figure, path_figure
from rookery.report.plots import NUM_STYLES, Line, line_figure
from rookery.runs.records import ITERATIONS

PREFIX = "evolution/"
QUANTILES = ("min", "q25", "median", "q75", "max")
CENTER = ("evolution/center_0", "evolution/center_1")
GENERATIONS = "generations"


def population(runs: Sequence[LoadedRun]) -> Markup | None:
    """The generations of all runs of evolution."""
    evolved = [over_generations(run) for run in runs if _has_evolved(run)]
    if not evolved:
        return None
    named = len(runs) > 1
    large = [
        figure
        for run in evolved
        for figure in (*_fitness_figures(run, evolved, named), _path_of_center(run, named), _outcome(run, named))
    ]
    drawn_above = {*CENTER, *(f"{name}_{kind}" for run in evolved for name in _quantities(run) for kind in QUANTILES)}
    others = dict.fromkeys(name for run in evolved for name in run.series if name not in drawn_above)

    def small_figure(name: str) -> Markup | None:
        title = name.removeprefix(PREFIX)
        return metric_figure(evolved, name, title, small=True, with_seeds=False, x_label=GENERATIONS)

    how_to_read = (
        "Lines show the median of each generation, bands the middle half of its individuals, and thin lines the "
        "minimum and maximum; over several seeds, each is the interquartile mean. A record of fitness is the mean over "
        "the generations since the previous one; other values are those of the last generation."
    )
    return section(
        "Population",
        note(how_to_read) if any(_quantities(run) for run in evolved) else None,
        legend_of(evolved),
        figures(large),
        small_figures(others, small_figure) if others else None,
    )


def over_generations(run: LoadedRun) -> LoadedRun:
    """Keep only the metrics of the population, over generations instead of env steps."""
    if ITERATIONS not in run.series:
        return replace(run, series={})
    generations = run.series[ITERATIONS]
    series = {name: _at(series, generations) for name, series in run.series.items() if name.startswith(PREFIX)}
    return replace(run, series=series)


def _at(series: Series, generations: Series) -> Series:
    """Place the values of each seed at its own generations."""
    steps = tuple(
        np.rint(np.interp(own, at, number)).astype(int) if len(own) else own
        for own, at, number in zip(series.steps, generations.steps, generations.values, strict=True)
    )
    return replace(series, steps=steps)


def _has_evolved(run: LoadedRun) -> bool:
    if run.populations and isinstance(run.populations[0], MemberHistory):
        return False
    return bool(run.populations or run.population_problem) or any(name.startswith(PREFIX) for name in run.series)


def _quantities(run: LoadedRun) -> list[str]:
    """Return the quantities with quantiles: `evolution/fitness`, or `evolution/objective_<i>` for several."""
    return [name.removesuffix("_median") for name in run.series if name.endswith("_median")]


def _fitness_figures(run: LoadedRun, evolved: Sequence[LoadedRun], named: bool) -> list[Markup]:
    objectives = run.populations[0].axes if run.populations and isinstance(run.populations[0], Front) else ()
    names = {f"{PREFIX}objective_{index}": name for index, name in enumerate(objectives)}
    return [
        line_figure(
            _title(f"{quantity.removeprefix(PREFIX).replace('_', ' ').capitalize()} in the population", run, named),
            _quantile_lines(run, quantity),
            last_record(evolved),
            note=names.get(quantity),
            x_label=GENERATIONS,
        )
        for quantity in _quantities(run)
    ]


def _quantile_lines(run: LoadedRun, quantity: str) -> list[Line]:
    known = {kind: run.series[f"{quantity}_{kind}"] for kind in QUANTILES if f"{quantity}_{kind}" in run.series}
    band = [
        known[kind].center for kind in ("q25", "q75") if kind in known and _same_records(known[kind], known["median"])
    ]
    lines = []
    for kind in ("max", "median", "min"):
        if kind in known:
            series = known[kind]
            kept = thin_out(series.center, MAX_POINTS)
            low, high = (end[kept] for end in band) if kind == "median" and len(band) == 2 else (None, None)
            curve = Curve(series.grid[kept], series.center[kept], low, high)
            lines.append(Line(kind, run.style, curve, is_thin=kind != "median"))
    return lines


def _same_records(first: Series, second: Series) -> bool:
    return np.array_equal(first.grid, second.grid)


def _path_of_center(run: LoadedRun, named: bool) -> Markup | None:
    if not all(name in run.series for name in CENTER):
        return None
    first, second = (run.series[name] for name in CENTER)
    paths = []
    for seed, style in enumerate(_styles_of_seeds(run, first.num_seeds)):
        generations, of_first, of_second = np.intersect1d(first.steps[seed], second.steps[seed], return_indices=True)
        path = np.column_stack([first.values[seed][of_first], second.values[seed][of_second], generations])
        path = path[~np.isnan(path).any(axis=1)]
        if len(path):
            kept = np.unique(np.linspace(0, len(path) - 1, MAX_SEED_POINTS).astype(int))
            paths.append(Group(run.seed_name(seed), style, path[kept]))
    if not paths:
        return None
    how_to_read = (
        "The first two parameters of the center of the search, its mean if it has one: from the ring to the dot."
    )
    return path_figure(
        _title("Path of the center", run, named),
        ("parameter 0", "parameter 1", "generation"),
        paths,
        how_to_read + _which_seeds(first.num_seeds),
    )


def _outcome(run: LoadedRun, named: bool) -> Markup | None:
    """Draw the final population."""
    if run.population_problem:
        return absent(f"{_title('The last population', run, named)} cannot be shown: {run.population_problem}")
    fronts = [population for population in run.populations if isinstance(population, Front)]
    archives = [population for population in run.populations if isinstance(population, Archive)]
    if fronts:
        return _pareto_front(run, fronts, named)
    return _archive(run, archives[0], len(archives), named) if archives else None


def _pareto_front(run: LoadedRun, fronts: Sequence[Front], named: bool) -> Markup:
    styles = _styles_of_seeds(run, len(fronts))
    groups = [Group(run.seed_name(seed), style, fronts[seed].points) for seed, style in enumerate(styles)]
    how_to_read = "Pale dots are dominated: another individual is better in one objective and not worse in any."
    if len(fronts[0].axes) > 2:
        how_to_read += f" The figure shows two of {len(fronts[0].axes)} objectives."
    title = _title("Pareto front", run, named)
    return front_figure(title, groups, fronts[: len(groups)], how_to_read + _which_seeds(len(fronts)))


def _archive(run: LoadedRun, archive: Archive, num_seeds: int, named: bool) -> Markup:
    size = archive.fitness.size
    offset = f" plus {format_number(archive.qd_offset)} each" if archive.qd_offset else ""
    finding = (
        f"The best individual of each cell: {archive.num_filled:,} of {size:,} cells are filled "
        f"({archive.num_filled / size:.0%}), and the QD score, the sum of their fitness{offset}, is "
        f"{format_number(archive.qd_score)}."
    )
    if len(archive.axes) > 2:
        finding += f" The figure shows two of {len(archive.axes)} descriptors."
    if num_seeds > 1:
        finding += f" This is {run.seed_name(0)}, one of {num_seeds}."
    return archive_figure(_title("Archive", run, named), archive, run.style, finding)


def _styles_of_seeds(run: LoadedRun, num_seeds: int) -> list[int]:
    """Return a color for each drawn seed; for a single seed, that of the run."""
    return [run.style] if num_seeds == 1 else list(range(min(num_seeds, NUM_STYLES)))


def _which_seeds(num_seeds: int) -> str:
    return f" The first {NUM_STYLES} of {num_seeds} seeds." if num_seeds > NUM_STYLES else ""


def _title(title: str, run: LoadedRun, named: bool) -> str:
    return f"{title} of {run.name}" if named else title
