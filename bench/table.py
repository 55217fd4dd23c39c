"""The table that `rookery bench` prints."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One comparison; `ratio` is the time of the other divided by ours, None without a comparison."""

    name: str
    ours: str
    other: str
    ratio: float | None = None


def print_table(rows: Iterable[Row]) -> None:
    """Print the rows, aligned for a file as for a terminal."""
    table = Table(
        "benchmark", "rookery", "against", "times faster", caption="without compilation unless a row says otherwise"
    )
    table.columns[3].justify = "right"
    for row in rows:
        table.add_row(row.name, row.ours, row.other, "" if row.ratio is None else f"{row.ratio:.2f}")
    console = Console()
    Console(width=console.width if console.is_terminal else 120).print(table)
