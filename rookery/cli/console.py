"""What the commands print: aligned on a terminal with colors, plain elsewhere."""

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rookery.errors import RookeryError
from rookery.runners.faults import EnvFaultError

if TYPE_CHECKING:
    from rich.console import Console


def make_console() -> "Console":
    """Make the terminal, which knows whether it is one."""
    from rich.console import Console

    return Console(highlight=False)


def print_line(console: "Console", text: str, style: str = "") -> None:
    """Print a line as it is, in a style if there is a terminal."""
    if console.is_terminal:
        console.print(text, style=style, markup=False, soft_wrap=True)
    else:
        print(text, flush=True)


def print_heading(console: "Console", name: str, remark: str) -> None:
    """Print the name of a group and a remark on it."""
    if console.is_terminal:
        from rich.text import Text

        console.print(Text.assemble((name, "bold cyan"), "  ", (remark, "dim")))
    else:
        print(f"{name}  {remark}".rstrip())


def print_columns(console: "Console", names: list[str]) -> None:
    """Print names side by side, one per line where no terminal tells the width."""
    if console.is_terminal:
        from rich.columns import Columns
        from rich.padding import Padding

        console.print(Padding(Columns(names, padding=(0, 3), column_first=True), (0, 0, 1, 2)))
    else:
        for name in names:
            print(f"  {name}")


def print_rows(console: "Console", rows: Iterable[tuple[str, str]]) -> None:
    """Print names and what there is to say about each, aligned."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print_line(console, f"  {name:<{width}}  {text}")
    if console.is_terminal:
        console.print()


def print_table(console: "Console", header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table: the first column to the left, numbers in the others to the right."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for number, row in enumerate(table):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print_line(console, "  ".join(cells).rstrip(), style="bold" if number == 0 else "")


def install_command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'rookery[{extra}]'"


def one_line(error: Exception) -> str:
    """Return the message of an error in one line; an error that was not raised on purpose is named."""
    message = " ".join(str(error).removesuffix(env_traceback(error)).split())
    return message if isinstance(error, RookeryError) else f"{type(error).__name__}: {message}"


def indented_traceback(error: Exception) -> str:
    """Return the lines to print below the message of an error: where an environment failed, if it was one."""
    return textwrap.indent(env_traceback(error), "  ")


def env_traceback(error: Exception) -> str:
    """Return the traceback of an environment that the message of an error ends with."""
    from rookery.runners.transports.transport import EnvCallError

    match error:
        case EnvFaultError():
            return error.fault.failed.traceback
        case EnvCallError():
            return str(error).partition("\n")[2]
    return ""
