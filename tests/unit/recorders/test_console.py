"""What people see: exact plain lines, and a live display that fits its terminal and leaves it clean."""

import io
import os
import pty
import re
import select
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from rookery.recorders import Position, RunDescription
from rookery.recorders.console import ConsoleRecorder, format_eta, format_return

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Terminal]:
    """Make a terminal of the given width."""

    def make(width: int) -> Terminal:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(width))
        return Terminal()

    return make


def describe(num_seeds: int = 1, title: str = "ppo on classic/cartpole", total: int = 500_000) -> RunDescription:
    return RunDescription(title, total, tuple(range(num_seeds)), None, {})


def make_rows(env_steps: int, *returns: float | None, evaluation: float | None = None) -> list[dict[str, float]]:
    metrics = [{"rollout/ep_rew_mean": value, "eval/mean_reward": evaluation} for value in returns]
    return [
        {"seed": seed, "time/total_timesteps": env_steps}
        | {name: value for name, value in row.items() if value is not None}
        for seed, row in enumerate(metrics)
    ]


def visible_lines(text: str) -> list[str]:
    """Return every line that was ever drawn, without colours and cursor movements."""
    return re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))


def test_a_stream_that_is_no_terminal_gets_one_aligned_line_per_record(clock: Clock) -> None:
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe())
    recorder.compiling("training program")
    clock.now += 4.1
    recorder.compiled("training program", 4.1)
    clock.now += 0.5
    recorder.advance(40_000)
    clock.now += 0.5
    recorder.record(make_rows(81_920, 152.34, evaluation=231.0))
    clock.now += 1.0
    recorder.record(make_rows(163_840, 7.0))
    recorder.finish("report: runs/a/report.html")
    recorder.close()
    assert stream.getvalue() == textwrap.dedent(
        """\
        ppo on classic/cartpole: 500,000 steps
        compiling the training program ...
        compiled the training program in 4.1 s
         81,920 / 500,000 steps    16 %       81,920 steps/s   eta 0:00:05   return   152.3   evaluation   231.0
        163,840 / 500,000 steps    32 %       81,920 steps/s   eta 0:00:04   return       7
        report: runs/a/report.html
        """
    )


def test_a_resumed_run_is_measured_by_the_steps_it_did_itself(clock: Clock) -> None:
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe(), Position(num_records=4, env_steps=400_000))
    clock.now += 2.0
    recorder.record(make_rows(450_000, 1.0))
    recorder.close()
    assert "resumed at 400,000" in stream.getvalue()
    assert "25,000 steps/s   eta 0:00:02" in stream.getvalue()


def test_several_seeds_are_shown_by_mean_and_range_and_counted_together(clock: Clock) -> None:
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe(num_seeds=4))
    clock.now += 1.0
    recorder.record(make_rows(100_000, 10.0, 20.0, 60.0, None))
    recorder.close()
    assert "4 seeds shown as mean (min, max)" in stream.getvalue()
    assert "400,000 steps/s   eta 0:00:04   return 30.0 (min 10.0, max 60.0, 3 of 4 seeds)\n" in stream.getvalue()


def test_a_diverged_seed_is_counted_and_left_out_of_the_mean(clock: Clock) -> None:
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe(num_seeds=3))
    rows = make_rows(100_000, 10.0, 20.0, 9.0)
    recorder.record([*rows[:2], {**rows[2], "train/diverged": 1.0}])
    recorder.close()
    assert "return 15.0 (min 10.0, max 20.0)   diverged 1 of 3 seeds\n" in stream.getvalue()


def test_several_policies_are_shown_by_their_own_returns(clock: Clock) -> None:
    """The sum over the players of a zero-sum game says nothing."""
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe())
    of_policies = {f"p{index}/rollout/ep_rew_mean": float(index) for index in range(5)}
    recorder.record([make_rows(10, 0.0, evaluation=0.0)[0] | {"p0/eval/mean_reward": 1, "p1/eval/mean_reward": -1}])
    recorder.record([make_rows(20, 0.0)[0] | of_policies])
    first, second = stream.getvalue().splitlines()[1:]
    assert first.endswith("return       0   evaluation p0 1, p1 -1")
    assert second.endswith("return p0 0, p1 1, p2 2, 2 more")


def runners(ready: int, starting: int = 0, lost: int = 0, restarts: int = 0) -> dict[str, float]:
    counts = {"ready": ready, "starting": starting, "lost": lost, "restarts": restarts}
    return {f"runners/{name}": count for name, count in counts.items()}


def test_runners_are_shown_until_all_of_them_are_ready(clock: Clock) -> None:
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe())
    for env_steps, of_runners in [(1, runners(4)), (2, runners(2, 1, 1)), (3, runners(4))]:
        recorder.record([make_rows(env_steps, 7.0)[0] | of_runners])
        clock.now += 30.0
        recorder.advance(env_steps)
    lines = [line.partition("eta ")[2].split("   ", 1)[1:] for line in stream.getvalue().splitlines()[1:]]
    assert lines == [
        ["return       7"],
        [],
        ["runners 2/4: 1 starting, 1 lost   return       7"],
        ["runners 2/4: 1 starting, 1 lost"],
        ["return       7"],
        [],
    ]


def test_restarts_of_runners_are_shown_once_and_staleness_and_waiting_while_there_is_some(clock: Clock) -> None:
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe())
    stale: dict[str, float] = {"rollout/staleness": 1.5, "time/wait_ms": 250.0}
    for env_steps, of_runners in [
        (1, runners(4, restarts=1)),
        (2, runners(3, starting=1, restarts=3) | stale),
        (3, runners(4, restarts=3) | stale),
        (4, runners(4, restarts=3) | {"rollout/staleness": 0.0, "time/wait_ms": 99.0}),
    ]:
        recorder.record([make_rows(env_steps, 7.0)[0] | of_runners])
    lines = [line.partition("eta ")[2].split("   ")[1] for line in stream.getvalue().splitlines()[1:]]
    assert lines == [
        "runners 4/4: 1 restart",
        "runners 3/4: 1 starting, 2 restarts, staleness 1.5, waiting 250 ms",
        "runners 4/4: staleness 1.5, waiting 250 ms",
        "return",
    ]


def test_the_live_display_shows_runners_until_all_of_them_are_ready(
    terminal: Callable[[int], Terminal], clock: Clock
) -> None:
    stream = terminal(100)
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe())
    clock.now += 1.0
    recorder.record([make_rows(100_000, 20.5)[0] | runners(3, 1)])
    recorder.record([make_rows(200_000, 40.5)[0] | runners(4)])
    recorder.close()
    lines = [line.rstrip() for line in visible_lines(stream.getvalue())]
    shown = [line for line in lines if "runners" in line]
    assert shown
    assert all("20 %" in line and line.endswith("runners 3/4: 1 starting") for line in shown)
    assert any("40 %" in line for line in lines)


def test_a_plain_run_writes_at_least_every_thirty_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe())
    said = []
    for second in range(1, 91):
        clock.now += 1.0
        if second == 45:
            recorder.record(make_rows(4500, 10.0))
        recorder.advance(100 * second)
        said.append(len(stream.getvalue().splitlines()))
    assert [second + 1 for second in range(1, 90) if said[second] > said[second - 1]] == [30, 45, 75]
    assert " ".join(stream.getvalue().splitlines()[1].split()) == "3,000 / 500,000 steps 0 % 100 steps/s eta 1:22:50"


def test_a_record_before_any_time_has_passed_has_no_rate(clock: Clock) -> None:
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe())
    recorder.record(make_rows(100, None))
    recorder.close()
    assert "- steps/s   eta -:--:--\n" in stream.getvalue()


def test_a_run_that_overshoots_its_total_is_at_100_percent(clock: Clock) -> None:
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe())
    clock.now += 1.0
    recorder.record(make_rows(501_760, 1.0))
    recorder.close()
    assert "501,760 / 500,000 steps   100 %" in stream.getvalue()
    assert "eta 0:00:00" in stream.getvalue()


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_INTERACTIVE"])
def test_a_file_gets_plain_lines_even_where_colour_is_forced(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    stream = io.StringIO()
    recorder = ConsoleRecorder(stream)
    recorder.open(describe())
    recorder.record(make_rows(100, 1.0))
    recorder.close()
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(
    terminal: Callable[[int], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = terminal(80)
    monkeypatch.setenv("TERM", "dumb")
    recorder = ConsoleRecorder(stream)
    recorder.open(describe())
    for env_steps in (100, 200):
        recorder.record(make_rows(env_steps, 1.0))
    recorder.close()
    assert [line.split(" / ")[0].strip() for line in stream.getvalue().splitlines()[1:]] == ["100", "200"]


@pytest.mark.parametrize("width", [200, 80, 60, 40, 20])
@pytest.mark.parametrize("num_seeds", [1, 16])
def test_no_line_of_the_live_display_is_wider_than_the_terminal(
    terminal: Callable[[int], Terminal], clock: Clock, width: int, num_seeds: int
) -> None:
    stream = terminal(width)
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe(num_seeds, title="ppo", total=10**10))
    introduction = len(stream.getvalue())
    recorder.compiling("training program")
    recorder.compiled("training program", 0.0)
    clock.now += 1.0
    recorder.record(make_rows(10**9 + 7, *[-12_345.6 - seed for seed in range(num_seeds)], evaluation=-9_999.9))
    recorder.close()
    lines = visible_lines(stream.getvalue()[introduction:])
    lines.remove("compiled the training program in 0.0 s")  # not redrawn: the terminal may wrap it
    assert max(len(line) for line in lines) <= width
    assert any(" 10 %" in line for line in lines)
    assert any(line.startswith("return") for line in lines)


def test_a_usual_terminal_shows_everything(terminal: Callable[[int], Terminal], clock: Clock) -> None:
    stream = terminal(80)
    recorder = ConsoleRecorder(stream, clock)
    recorder.open(describe())
    recorder.compiling("training program")
    clock.now += 3.0
    recorder.compiled("training program", 3.0)
    clock.now += 2.0
    recorder.record(make_rows(100_000, 20.5, evaluation=30.25))
    clock.now += 2.0
    recorder.record(make_rows(200_000, 40.5))
    recorder.finish("report: runs/a/report.html")
    recorder.close()
    lines = [line.rstrip() for line in visible_lines(stream.getvalue())]
    assert any("compiling the training program ... 0 s" in line for line in lines)
    assert "compiled the training program in 3.0 s" in lines
    assert any(line.endswith("━  200,000 / 500,000 steps   40 %  50,000 steps/s  eta 0:00:06") for line in lines)
    assert "return 40.5  evaluation 30.2" in lines
    assert lines[-2] == "report: runs/a/report.html"


def test_brackets_in_a_title_are_shown_as_they_are(terminal: Callable[[int], Terminal]) -> None:
    stream = terminal(80)
    recorder = ConsoleRecorder(stream)
    recorder.open(describe(title="ppo on [bold]env[/bold] :smile: [x]"))
    recorder.close()
    assert "ppo on [bold]env[/bold] :smile: [x]: 500,000 steps" in stream.getvalue()


def test_no_color_means_no_colour(terminal: Callable[[int], Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    def colours(stream: Terminal) -> list[str]:
        recorder = ConsoleRecorder(stream)
        recorder.open(describe())
        recorder.record(make_rows(100_000, 1.0))
        recorder.close()
        return re.findall(r"\x1b\[[0-9;]*3[0-9][0-9;]*m", stream.getvalue())

    assert colours(terminal(80))
    stream = terminal(80)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours(stream)


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals belong to POSIX")
def test_control_c_leaves_the_terminal_as_it_was() -> None:
    program = """
        import signal
        from rookery.recorders import RunDescription
        from rookery.recorders.console import ConsoleRecorder

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
        recorder = ConsoleRecorder()
        recorder.open(RunDescription("a run", 1000, (0,), None, {}))
        try:
            recorder.record([{"seed": 0, "time/total_timesteps": 10, "rollout/ep_rew_mean": 1.0}])
            print("READY")
            signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            recorder.close()
        print("AFTER")
    """
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "import os; os.setsid(); os.open(os.ttyname(0), 0)\n" + textwrap.dedent(program)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(terminal)
    output = read_until(controller, "READY")
    os.write(controller, b"\x03")
    output += read_until(controller, None)
    os.close(controller)
    assert process.wait(timeout=60) == 0
    assert output.rindex(SHOW_CURSOR) > output.rindex(HIDE_CURSOR)
    assert visible_lines(output)[-3:] == ["AFTER", "", ""], "what follows begins on a line of its own"


def read_until(controller: int, mark: str | None) -> str:
    """Read what a program writes to its terminal until a mark, or until the program has ended."""
    output = ""
    while mark is None or mark not in output:
        assert select.select([controller], [], [], 60.0)[0], f"nothing more was written after {output!r}"
        try:
            data = os.read(controller, 4096)
        except OSError:  # how Linux says that nobody has the other end
            return output
        if not data:
            return output
        output += data.decode()
    return output


@pytest.mark.parametrize(
    ("value", "text"),
    [(152.34, "152.3"), (-1024.5, "-1,024.5"), (0.0312, "0.0312"), (-1.5, "-1.5"), (0.0, "0"), (float("nan"), "nan")],
)
def test_numbers_are_written_for_reading(value: float, text: str) -> None:
    assert format_return(value) == text


def test_durations_are_hours_minutes_and_seconds() -> None:
    assert [format_eta(seconds) for seconds in (0.4, 59.6, 3_725, 360_000)] == [
        "0:00:00",
        "0:01:00",
        "1:02:05",
        "100:00:00",
    ]


class BrokenStream(io.StringIO):
    """A stream that takes nothing."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


class BrokenTerminal(BrokenStream, Terminal):
    """A terminal that was closed."""


def closed_stream() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("make_stream", [BrokenStream, BrokenTerminal, closed_stream])
def test_output_that_nobody_takes_ends_nothing(make_stream: Callable[[], io.StringIO]) -> None:
    recorder = ConsoleRecorder(make_stream())
    recorder.open(describe())
    recorder.compiling("training program")
    recorder.compiled("training program", 1.0)
    recorder.record(make_rows(10, 1.0))
    recorder.finish("")
    recorder.close()


class Screen:
    """What a terminal shows: enough of one for lines that are erased and written again."""

    def __init__(self, output: str) -> None:
        self.lines = [""]
        row = column = 0
        for number, command, control, text in re.findall(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)", output):
            if command == "A":
                row -= int(number or 1)
            elif command == "K":
                self.lines[row] = ""
            elif control == "\r":
                column = 0
            elif control == "\n":
                row, column = row + 1, 0
                self.lines += [""] * (row + 1 - len(self.lines))
            elif text:
                line = self.lines[row].ljust(column)
                self.lines[row] = line[:column] + text + line[column + len(text) :]
                column += len(text)


@pytest.mark.parametrize("has_handlers", [False, True], ids=["no log handlers", "log handlers of the user"])
def test_warnings_and_faults_appear_above_the_live_display_and_do_not_tear_it(has_handlers: bool) -> None:
    program = f"""
        import logging, sys, warnings
        from rookery.cli.console import make_console
        from rookery.cli.training import warnings_shown
        from rookery.recorders import RunDescription
        from rookery.recorders.console import ConsoleRecorder

        if {has_handlers}:
            logging.basicConfig(format="%(message)s")
        recorder = ConsoleRecorder()
        recorder.open(RunDescription("a run", 1000, (0,), None, {{}}))
        for step in range(1, 6):
            recorder.record([{{"seed": 0, "time/total_timesteps": 100 * step, "rollout/ep_rew_mean": 1.0}}])
            if step == 1:
                logging.getLogger("rookery.runners").warning("a fault from Python")
            if step == 2:
                with warnings_shown(make_console()):
                    logging.getLogger("rookery.runners").warning("a fault from a command")
            if step == 3:
                warnings.warn_explicit("a warning", UserWarning, "environment.py", 7)
            if step == 4:
                print("a print of an environment")
        recorder.finish("done")
        recorder.close()
    """
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(terminal)
    shown = [line.rstrip() for line in Screen(read_until(controller, None)).lines]
    os.close(controller)
    assert process.wait(timeout=60) == 0
    assert shown[:5] == [
        "a run: 1,000 steps",
        "a fault from Python",
        "a fault from a command",
        "environment.py:7: UserWarning: a warning",
        "a print of an environment",
    ]
    assert "500 / 1,000 steps" in shown[5]
    assert shown[6:] == ["return 1", "done", ""]
