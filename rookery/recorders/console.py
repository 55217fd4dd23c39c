"""Progress of a run for people: a live display on a terminal, one plain line per record elsewhere."""

import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rookery.recorders.lasting_stream import LastingStream
from rookery.recorders.rows import ENV_STEPS, as_number, by_policy
from rookery.runs.divergence import DIVERGED
from rookery.runs.recorder import Position, Recorder, RunDescription

SHOWN_METRICS = {"return": "rollout/ep_rew_mean", "evaluation": "eval/mean_reward"}
MAX_POLICIES = 3
"""The number of policies whose returns are shown."""
MAX_SILENCE = 30.0
"""Seconds after which a plain line is due, also if the next record is far."""
BAR_WIDTHS = (40, 20, 10)
SHOWN_WAITING = 100.0
"""Milliseconds from which on the learner's waiting for runners is shown."""
OPTIONAL_FIELDS = ("rate", "steps")
"""Fields that a narrow terminal omits, in this order."""

PLAIN_WIDTHS = {"rate": 18, "eta": 11}

Clock = Callable[[], float]


class ConsoleRecorder(Recorder):
    """Shows progress, speed, remaining time and returns of a run.

    Several seeds are shown by their mean and range: `152.3 (min 98.0, max 211.4)`. Seeds that diverged are counted and
    left out. Steps per second are summed over seeds and exclude compilation time. Several policies are shown by their
    own returns, because the sum is 0 in every zero-sum game: `leader 3.5, chaser -3.5`.
    """

    def __init__(self, stream: TextIO | None = None, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._opened_display: Display | None = None
        self._num_restarts = 0.0
        """The restarts of runners up to the last record."""

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        stream: Any = LastingStream(self._stream or sys.stdout)
        start = 0 if resumed_from is None else resumed_from.env_steps
        progress = Progress(run.total_timesteps, len(run.seeds), start, self._clock)
        console = Console(file=stream, markup=False, highlight=False, emoji=False)
        is_live = stream.isatty() and console.is_interactive
        self._opened_display = LiveDisplay(progress, console) if is_live else PlainDisplay(progress, stream)
        seeds = f", {len(run.seeds)} seeds shown as mean (min, max)" if len(run.seeds) > 1 else ""
        resumed = "" if resumed_from is None else f", resumed at {start:,}"
        self._display.say(f"{run.title}: {run.total_timesteps:,} steps{seeds}{resumed}")

    def compiling(self, what: str) -> None:
        self._display.compiling(what)

    def compiled(self, what: str, seconds: float) -> None:
        self._display.compiled(what, seconds)

    def advance(self, env_steps: int) -> None:
        self._display.advance(env_steps)

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        finite = [row for row in rows if DIVERGED not in row]
        self._display.progress.advance(int(min(row[ENV_STEPS] for row in rows)))
        returns = {label: format_returns(metric, finite) for label, metric in SHOWN_METRICS.items()}
        shown = {label: text for label, text in returns.items() if text}
        self._display.progress.runners = format_runners(rows[0], self._num_restarts)
        self._num_restarts = rows[0].get("runners/restarts", 0.0)
        if len(finite) < len(rows):
            shown["diverged"] = f"{len(rows) - len(finite)} of {len(rows)} seeds"
        self._display.record(shown)

    def finish(self, message: str) -> None:
        self._display.close()
        self._display.say(message)

    def close(self) -> None:
        if self._opened_display is not None:
            self._opened_display.close()
            self._opened_display = None

    @property
    def _display(self) -> "Display":
        assert self._opened_display is not None, "open() comes before all other calls"
        return self._opened_display


class Progress:
    """Env steps and speed of a run, without compilation time."""

    def __init__(self, total_timesteps: int, num_seeds: int, start: int, clock: Clock) -> None:
        self.total_timesteps = total_timesteps
        self.env_steps = start
        self.runners = ""
        """The runners on Ray, unless there is nothing to say of them."""
        self._num_seeds = num_seeds
        self._start = start
        self.clock = clock
        self._opened_at = clock()
        self._excluded_seconds = 0.0
        self._seconds = 0.0

    def exclude(self, seconds: float) -> None:
        """Do not count these seconds as training time."""
        self._excluded_seconds += seconds

    def advance(self, env_steps: int) -> None:
        """Set the env steps reached."""
        self.env_steps = env_steps
        self._seconds = self.clock() - self._opened_at - self._excluded_seconds

    @property
    def steps_per_second(self) -> float | None:
        """Env steps of one seed per second; None before the first step."""
        done = self.env_steps - self._start
        return done / self._seconds if done > 0 and self._seconds > 0 else None

    def fields(self) -> dict[str, str]:
        """Return the fields of a progress line by name, in order."""
        total = f"{self.total_timesteps:,}"
        percent = min(100, 100 * self.env_steps // self.total_timesteps)
        speed = self.steps_per_second
        rate = "-" if speed is None else f"{speed * self._num_seeds:,.0f}"
        missing = max(0, self.total_timesteps - self.env_steps)
        fields = {
            "steps": f"{self.env_steps:>{len(total)},} / {total} steps",
            "percent": f"{percent:3} %",
            "rate": f"{rate} steps/s",
            "eta": f"eta {'-:--:--' if speed is None else format_eta(missing / speed)}",
            "runners": self.runners,
        }
        return {name: text for name, text in fields.items() if text}


class Display(ABC):
    """A way to show progress."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    @abstractmethod
    def say(self, text: str) -> None:
        """Print a permanent line."""

    @abstractmethod
    def compiling(self, what: str) -> None:
        """Show that a program is being compiled."""

    def compiled(self, what: str, seconds: float) -> None:
        """Show the compilation time."""
        self.progress.exclude(seconds)
        self.say(f"compiled the {what} in {seconds:.1f} s")

    def advance(self, env_steps: int) -> None:
        """Note the env steps reached between two records."""
        self.progress.advance(env_steps)

    @abstractmethod
    def record(self, values: Mapping[str, str]) -> None:
        """Show the progress with the values of a record, by label."""

    @abstractmethod
    def close(self) -> None:
        """Stop the display; `say` still works."""


class PlainDisplay(Display):
    """One aligned line per record and at least every `MAX_SILENCE` seconds, for files, pipes and notebooks."""

    def __init__(self, progress: Progress, stream: TextIO) -> None:
        super().__init__(progress)
        self._stream = stream
        self._said_at = progress.clock()

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)
        self._said_at = self.progress.clock()

    def advance(self, env_steps: int) -> None:
        super().advance(env_steps)
        if self.progress.clock() - self._said_at >= MAX_SILENCE:
            self.record({})

    def compiling(self, what: str) -> None:
        self.say(f"compiling the {what} ...")

    def record(self, values: Mapping[str, str]) -> None:
        fields = [text.rjust(PLAIN_WIDTHS.get(name, 0)) for name, text in self.progress.fields().items()]
        self.say("   ".join(fields + [f"{label} {value:>7}" for label, value in values.items()]))

    def close(self) -> None:
        pass


class LiveDisplay(Display):
    """Two lines updated in place, progress and returns; other output appears above them.

    What Python writes to the terminal meanwhile goes through the same console, also what log handlers write that hold
    on to the stream: a line in between would tear the display.
    """

    def __init__(self, progress: Progress, console: Console) -> None:
        super().__init__(progress)
        self._console = console
        self._compiling: tuple[str, float] | None = None
        self._values: dict[str, str] = {}
        stdout, stderr = sys.stdout, sys.stderr
        self._live = Live(console=console, get_renderable=self._lines, redirect_stderr=stderr.isatty())
        self._live.start(refresh=True)
        self._redirected = redirect_handlers({stdout: sys.stdout, stderr: sys.stderr})

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def compiling(self, what: str) -> None:
        self._compiling = what, self.progress.clock()
        self._live.refresh()

    def compiled(self, what: str, seconds: float) -> None:
        self._compiling = None
        super().compiled(what, seconds)

    def record(self, values: Mapping[str, str]) -> None:
        # Replace the dict instead of changing it: the refresh thread may be reading it.
        self._values = {**self._values, **values}
        self._live.refresh()

    def close(self) -> None:
        self._live.stop()
        for handler, stream in self._redirected.items():
            handler.setStream(stream)
        self._redirected = {}

    def _lines(self) -> RenderableType:
        if (compiling := self._compiling) is not None:
            what, since = compiling
            return one_line(f"compiling the {what} ... {self.progress.clock() - since:.0f} s")
        bar_width, text = fit_line(self.progress.fields(), self._console.width)
        bar = ProgressBar(self.progress.total_timesteps, self.progress.env_steps, bar_width, complete_style="cyan")
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(bar, one_line(text))
        if not self._values:
            return line
        return Group(line, one_line("  ".join(f"{label} {value}" for label, value in self._values.items()), "bold"))


def redirect_handlers(streams: Mapping[Any, Any]) -> dict[logging.StreamHandler, Any]:
    """Let all log handlers that write to one of these streams write to another; return them with their streams."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {handler for logger in loggers for handler in getattr(logger, "handlers", ())}
    found = {
        handler: handler.stream
        for handler in handlers
        if isinstance(handler, logging.StreamHandler) and any(handler.stream is stream for stream in streams)
    }
    for handler, stream in found.items():
        handler.setStream(streams[stream])
    return found


def one_line(text: str, style: str = "") -> Text:
    """Return a text that is truncated at the border, not wrapped."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def fit_line(fields: Mapping[str, str], width: int) -> tuple[int, str]:
    """Return the width of the bar and the text next to it, both as long as `width` allows."""
    for num_dropped in range(len(OPTIONAL_FIELDS) + 1):
        dropped = OPTIONAL_FIELDS[:num_dropped]
        text = "  ".join(part for name, part in fields.items() if name not in dropped)
        for bar_width in BAR_WIDTHS:
            if bar_width + 2 + len(text) <= width:
                return bar_width, text
    return BAR_WIDTHS[-1], text


def format_returns(metric: str, rows: Sequence[Mapping[str, float]]) -> str:
    """Format a return of all seeds, of each policy if there are several; empty without values."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for policy, value in by_policy(row, metric).items():
            values.setdefault(policy, []).append(value)
    if len(values) < 2:
        sums = [as_number(metric, row[metric]) for row in rows if metric in row]
        return format_values(sums, len(rows)) if sums else ""
    texts = [f"{policy} {format_values(returns, len(rows))}" for policy, returns in values.items()]
    more = [f"{len(texts) - MAX_POLICIES} more"] if len(texts) > MAX_POLICIES else []
    return ", ".join(texts[:MAX_POLICIES] + more)


def format_runners(row: Mapping[str, float], num_restarts_before: float = 0) -> str:
    """Format the runners on Ray: `runners 3/4: 1 starting, 2 restarts, staleness 1.5, waiting 250 ms`.

    Only what is not as it should be is shown, and restarts only in the record after them; empty if there is nothing.
    """
    if "runners/ready" not in row:
        return ""
    num_starting, num_lost = row.get("runners/starting", 0), row.get("runners/lost", 0)
    num_restarts = row.get("runners/restarts", 0) - num_restarts_before
    staleness, waiting = row.get("rollout/staleness", 0), row.get("time/wait_ms", 0)
    num_ready = row["runners/ready"]
    shown = {
        f"{num_starting:.0f} starting": num_starting,
        f"{num_lost:.0f} lost": num_lost,
        f"{num_restarts:.0f} restart{'' if num_restarts == 1 else 's'}": num_restarts,
        f"staleness {staleness:.1f}": staleness,
        f"waiting {waiting:.0f} ms": waiting >= SHOWN_WAITING,
    }
    details = ", ".join(text for text, is_shown in shown.items() if is_shown)
    return f"runners {num_ready:.0f}/{num_ready + num_starting + num_lost:.0f}: {details}" if details else ""


def format_values(values: Sequence[float], num_seeds: int = 1) -> str:
    """Format the value of one seed, or several as mean (min, max), and say if some of `num_seeds` have none."""
    details = []
    if len(values) > 1:
        details += [f"min {format_return(min(values))}", f"max {format_return(max(values))}"]
    if len(values) < num_seeds:
        details += [f"{len(values)} of {num_seeds} seeds"]
    mean = format_return(sum(values) / len(values))
    return f"{mean} ({', '.join(details)})" if details else mean


def format_return(value: float) -> str:
    """Format a return: -1,024.5 or 0.031."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def format_eta(seconds: float) -> str:
    """Format a duration as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
