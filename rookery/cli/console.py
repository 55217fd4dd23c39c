"""Output of the commands: aligned and colored on a terminal, plain elsewhere."""

import contextlib
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rookery.errors import RookeryError, place_of
from rookery.recorders.lasting_stream import LastingStream, discard_output
from rookery.runners.faults import EnvFaultError

if TYPE_CHECKING:  # imported when something is printed: it takes long
    from rich.console import Console


def make_console() -> "Console":
    """Make the console for standard output."""
    from rich.console import Console

    return Console(highlight=False)


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Ignore a standard output that is closed, full or gone while a command trains."""
    stream: Any = LastingStream(sys.stdout)
    try:
        with contextlib.redirect_stdout(stream):
            yield
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            discard_output(sys.stdout)


def print_line(console: "Console", text: str, style: str = "") -> None:
    """Print a line without markup; styled on a terminal.

    It is written to standard output, which the live display of a run replaces, so that the line appears above it.
    """
    if console.is_terminal:
        with console.capture() as captured:
            console.print(text, style=style, markup=False, soft_wrap=True, end="")
        text = captured.get()
    print(text, flush=True)


def print_heading(console: "Console", name: str, remark: str) -> None:
    """Print the name of a group and a remark."""
    if console.is_terminal:
        from rich.text import Text

        console.print(Text.assemble((name, "bold cyan"), "  ", (remark, "dim")))
    else:
        print(f"{name}  {remark}".rstrip())


def print_columns(console: "Console", names: list[str]) -> None:
    """Print names in columns; one per line without a terminal."""
    if console.is_terminal:
        from rich.columns import Columns
        from rich.padding import Padding

        console.print(Padding(Columns(names, padding=(0, 3), column_first=True), (0, 0, 1, 2)))
    else:
        for name in names:
            print(f"  {name}")


def print_rows(console: "Console", rows: Iterable[tuple[str, str]], width: int = 0, more: bool = False) -> None:
    """Print aligned pairs of name and text, the names at least `width` wide; `more` rows will follow."""
    rows = list(rows)
    width = max(width, *(len(name) for name, _ in rows))
    for name, text in rows:
        print_line(console, f"  {name:<{width}}  {text}")
    if console.is_terminal and not more:
        console.print()


def print_table(console: "Console", header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table: first column left-aligned, others right-aligned."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for number, row in enumerate(table):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print_line(console, printable("  ".join(cells).rstrip()), style="bold" if number == 0 else "")


def install_command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'rookery[{extra}]'"


def printable(text: str) -> str:
    """Return a text without commands to the terminal, which a stranger's run may contain."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def one_line(error: Exception) -> str:
    """Return the message of an error in one line; with its type unless it is a `RookeryError`."""
    message = printable(" ".join(str(error).removesuffix(env_traceback(error)).split()))
    if isinstance(error, RookeryError):
        return message
    return f"{type(error).__name__}: {message}" if message else f"{type(error).__name__} in {place_of(error)}"


def indented_traceback(error: Exception) -> str:
    """Return the traceback of a failed environment, indented; empty for other errors."""
    return textwrap.indent(env_traceback(error), "  ")


def env_traceback(error: Exception) -> str:
    """Return the traceback of the environment at the end of the message of an error."""
    from rookery.runners.transports.transport import EnvCallError

    match error:
        case EnvFaultError():
            return error.fault.failed.traceback
        case EnvCallError():
            return str(error).partition("\n")[2]
    return ""
