"""The sections of the page: functions of the runs that return None if there is nothing to show."""

import base64
from collections.abc import Callable, Sequence

from rookery.report.faults import faults
from rookery.report.formatting import format_duration, format_number
from rookery.report.layout import absent, figures, legend_of, metric_figure, note, run_label, section, small_figures
from rookery.report.loaded_run import (
    BEST_EVALUATION_RETURN,
    EPISODE_LENGTH,
    EVALUATION_RETURN,
    STEPS_PER_SECOND,
    TRAINING_RETURN,
    Estimate,
    LoadedRun,
)
from rookery.report.markup import Content, Markup, element
from rookery.report.members import members
from rookery.report.plots import share_bar
from rookery.report.policies import by_policy, policies
from rookery.report.population import population
from rookery.report.runners import runners
from rookery.report.simulators import simulators
from rookery.report.tables import (
    NOT_KNOWN,
    as_text,
    differing_names,
    flatten,
    settings_by_group,
    settings_side_by_side,
    table,
)
from rookery.runs.divergence import describe_diverged

REPORTED_IN = {"eval/": "evaluation", "rollout/": "training"}
NOT_REPORTED = (
    *("mean_reward", "std_reward", "mean_ep_length", "episodes_left_out", "episodes_cut", "best_"),
    *("ep_rew_mean", "ep_len_mean", "staleness", "obs_clipped", "exploration_rate"),
    *("steps_discarded", "steps_sampled", "steps_queued", "steps_pending", "steps_abandoned"),
    *("episodes_abandoned", "logged_share"),
)
"""Beginnings of the names of our own metrics of episodes; environments report the others."""

Section = Callable[[Sequence[LoadedRun]], Markup | None]

MAX_REASON_LENGTH = 300
MAX_DIFFERENCES = 4
"""The maximum number of settings that the comparison shows per run; the configuration shows all."""


def headline(runs: Sequence[LoadedRun]) -> Markup | None:
    """The main results: cards for one run, a table for several."""
    return _comparison(runs) if len(runs) > 1 else _cards(runs[0])


def left_out(runs: Sequence[LoadedRun]) -> Markup | None:
    """What is damaged in the run directories, and so is not shown."""
    reasons = [element("li", reason[:MAX_REASON_LENGTH]) for run in runs for reason in run.left_out]
    if not reasons:
        return None
    return section("Left out", note("These parts are damaged and not shown."), element("ul", reasons))


def learning_curves(runs: Sequence[LoadedRun]) -> Markup | None:
    """The return in evaluation and in training against env steps."""
    how_seeds_are_drawn = note(
        "Thick lines are the interquartile mean (IQM) over seeds, bands its 95 % bootstrap interval, thin lines single "
        "seeds. Thick lines end where the first seed ends."
    )
    return section(
        "Learning curves",
        how_seeds_are_drawn if any(run.num_seeds > 1 for run in runs) else None,
        [note(_divergences(run, named=len(runs) > 1)) for run in runs if run.diverged],
        legend_of(runs),
        figures(
            metric_figure(runs, EVALUATION_RETURN, "Evaluation return") or absent("No evaluation was recorded."),
            metric_figure(runs, BEST_EVALUATION_RETURN, "Evaluation return of the best individual so far"),
            metric_figure(runs, TRAINING_RETURN, "Training return") or absent("No training episode has ended."),
        ),
    )


def episodes(runs: Sequence[LoadedRun]) -> Markup | None:
    """The length of episodes, what environments report of them, and a recorded episode."""
    recordings = [_recording(run, run.episode, named=len(runs) > 1) for run in runs if run.episode is not None]
    lengths = metric_figure(runs, EPISODE_LENGTH, "Episode length in training")
    shown = figures(lengths, recordings or absent("No episode was recorded."))
    return section("Episodes", legend_of(runs), shown, _reported(runs))


def _reported(runs: Sequence[LoadedRun]) -> list[Markup] | None:
    """Draw the numbers that environments report of their episodes, such as the success rate."""
    titles = {
        f"{prefix}{name}": f"{name.replace('_', ' ')} in {where}"
        for name in dict.fromkeys(name.partition("/")[2] for run in runs for name in run.series)
        for prefix, where in REPORTED_IN.items()
        if not name.startswith(NOT_REPORTED)
    }
    names = [name for name in titles if any(name in run.series for run in runs)]
    return small_figures(names, lambda name: metric_figure(runs, name, titles[name], small=True)) if names else None


def updates(runs: Sequence[LoadedRun]) -> Markup | None:
    """Losses and other metrics of updates, one small figure each, with a curve per policy."""
    parts = by_policy(runs)
    names = dict.fromkeys(name for part in parts for name in part.series if name.startswith("train/"))
    if not names:
        return None

    def figure(name: str) -> Markup | None:
        return metric_figure(parts, name, name.removeprefix("train/"), small=True, with_seeds=False)

    legend = legend_of(parts, "Runs" if len(parts) == len(runs) else "Policies")
    return section("Updates", legend, small_figures(names, figure))


def throughput(runs: Sequence[LoadedRun]) -> Markup | None:
    """Speed of training and durations of its parts."""
    figure = metric_figure(runs, STEPS_PER_SECOND, "Env steps per second, all seeds together", with_seeds=False)
    if figure is None and all(run.timing is None for run in runs):
        return None
    return section("Throughput", legend_of(runs), figures(figure, _time_spent(runs)))


def configuration(runs: Sequence[LoadedRun]) -> Markup | None:
    """The resolved config; for several runs, settings that differ come first."""
    if len(runs) == 1:
        return section("Configuration", settings_by_group(flatten(runs[0].config), rest="run"))
    configs = [flatten(run.config) for run in runs]
    return section("Configuration", settings_side_by_side("Configuration", list(map(run_label, runs)), configs))


def versions(runs: Sequence[LoadedRun]) -> Markup | None:
    """Versions, machine and command line."""
    if len(runs) == 1:
        return section("Versions and machine", settings_by_group(flatten(runs[0].manifest), rest="machine"))
    manifests = [flatten(run.manifest) for run in runs]
    return section("Versions and machine", settings_side_by_side("Versions", list(map(run_label, runs)), manifests))


SECTIONS: tuple[Section, ...] = (
    headline,
    left_out,
    learning_curves,
    policies,
    episodes,
    population,
    members,
    updates,
    throughput,
    runners,
    simulators,
    faults,
    configuration,
    versions,
)


def _cards(run: LoadedRun) -> Markup:
    kind = "evaluation" if run.return_metric == EVALUATION_RETURN else "training"
    final, best = run.final_return(), run.best_return()
    cards = []
    if final is not None:
        value = format_number(final.value) if final.num_seeds else NOT_KNOWN
        cards.append(card(f"Final {kind} return", value, _interval(final, run)))
    if best is not None:
        cards.append(card(f"Best {kind} return", format_number(best.value), f"at {best.steps:,} steps"))
    cards.append(card("Env steps" if run.num_seeds == 1 else "Env steps per seed", _env_steps(run), _goal(run)))
    if run.seconds is not None:
        compiling = run.seconds_by_part.get("compile")
        detail = "" if compiling is None else f"of which compilation {format_duration(compiling)}"
        cards.append(card("Wall time", format_duration(run.seconds), detail))
    if run.steps_per_second is not None:
        cards.append(card("Steps per second", format_number(run.steps_per_second)))
    cards.append(card("Seeds", str(run.num_seeds), describe_diverged(len(run.diverged), run.num_seeds)))
    return element("section", element("dl", cards, class_="cards"), aria_label="Results")


def card(label: str, value: str, detail: str = "") -> Markup:
    """Make a card with one main result."""
    details = element("dd", detail) if detail else None
    return element("div", element("dt", label), element("dd", value, class_="value"), details)


def _interval(estimate: Estimate, run: LoadedRun) -> str:
    """Describe the interval of the return, and the seeds without a return."""
    num_seeds, num_diverged = run.num_seeds, len(run.diverged)
    parts = [describe_diverged(num_diverged, num_seeds)]
    if estimate.num_seeds + num_diverged < num_seeds:
        parts.append(f"finite in {estimate.num_seeds} of {num_seeds} seeds")
    interval = "no interval"
    if estimate.has_interval:
        interval = f"IQM, 95 % interval {_ends(estimate)}"
    elif num_seeds == 1:
        interval = "one seed: no interval"
    return "; ".join(filter(None, [interval, *parts]))


def _ends(estimate: Estimate) -> str:
    return f"{format_number(estimate.low)} to {format_number(estimate.high)}"


def _env_steps(run: LoadedRun) -> str:
    """Return the env steps of one seed, as a range if seeds differ."""
    low, high = run.env_steps
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _divergences(run: LoadedRun, named: bool) -> str:
    """Say which seeds diverged, and what becomes of them in figures."""
    where = ", ".join(f"seed {seed} at {steps:,} env steps" for seed, steps in run.diverged.items())
    return (
        f"{f'{run.name}: ' if named else ''}{describe_diverged(len(run.diverged), run.num_seeds)}, with parameters or "
        f"losses that are NaN or infinite: {where}. Squares mark their last values before that; thick lines and "
        "results leave them out."
    )


def _goal(run: LoadedRun) -> str:
    """Return the configured number of env steps if training is not complete."""
    return "" if run.timing is not None or run.total_timesteps is None else f"of {run.total_timesteps:,}"


def _comparison(runs: Sequence[LoadedRun]) -> Markup:
    differing = set(differing_names([flatten(run.config) for run in runs])) - {"run_dir"}
    header = (
        "Run",
        "Return",
        "95 % interval",
        "Best return",
        "Env steps",
        "Seeds",
        "Wall time",
        "Steps/s",
        "Differs in",
    )
    rows = []
    for run in runs:
        final, best = run.final_return(), run.best_return()
        rows.append(
            [
                run_label(run),
                format_number(final.value) if final and final.num_seeds else NOT_KNOWN,
                _ends(final) if final and final.has_interval else NOT_KNOWN,
                format_number(best.value) if best else NOT_KNOWN,
                f"{_env_steps(run)} {_goal(run)}",
                f"{run.num_seeds}, {len(run.diverged)} diverged" if run.diverged else str(run.num_seeds),
                format_duration(run.seconds) if run.seconds is not None else NOT_KNOWN,
                format_number(run.steps_per_second) if run.steps_per_second is not None else NOT_KNOWN,
                _differences(run, differing),
            ]
        )
    all_evaluated = all(run.return_metric == EVALUATION_RETURN for run in runs)
    source = "the last evaluation" if all_evaluated else "the last evaluation, or of training without evaluations"
    how_to_read = (
        f"Return is that of {source}; several seeds are averaged by the interquartile mean, without those that "
        "diverged. Env steps are per seed."
    )
    return section("Comparison", table("Comparison", header, rows, class_="comparison"), note(how_to_read))


def _differences(run: LoadedRun, differing: set[str]) -> str:
    own = [f"{name}={as_text(value)}" for name, value in flatten(run.config).items() if name in differing]
    return ", ".join(own if len(own) <= MAX_DIFFERENCES else [*own[:MAX_DIFFERENCES], "…"])


def _time_spent(runs: Sequence[LoadedRun]) -> Markup:
    timed = [run for run in runs if sum(run.seconds_by_part.values()) > 0]
    if not timed:
        return absent("Durations are available when training is complete.")
    bars = (_time_bar(run, named=len(runs) > 1) for run in timed)
    return element("figure", element("figcaption", element("h3", "Where the time went")), bars, class_="time-spent")


def _time_bar(run: LoadedRun, named: bool) -> list[Content]:
    parts = (
        element("li", element("i", class_=f"part-{part}"), f"{part} {format_duration(seconds)}")
        for part, seconds in run.seconds_by_part.items()
    )
    return [
        element("p", run_label(run)) if named else None,
        share_bar(f"Time of {run.name}", run.seconds_by_part),
        element("ul", parts, class_="legend"),
    ]


def _recording(run: LoadedRun, episode: bytes, named: bool) -> Markup:
    """Show the recorded episode with a pause button."""
    source = f"data:image/gif;base64,{base64.b64encode(episode).decode()}"
    title = f"Recorded episode of {run.name}" if named else "Recorded episode"
    screen = element(
        "div",
        element("img", src=source, alt=f"An episode of {run.title}, played by the trained agent"),
        element("canvas", hidden=True, aria_hidden="true"),
        class_="screen",
    )
    return element(
        "figure",
        element("figcaption", element("h3", title)),
        screen,
        element("button", "Pause", type="button"),
        class_="episode",
    )
