"""`rookery report`: an HTML page about one or several runs."""

import argparse
from pathlib import Path

from rookery.cli.console import make_console, print_line
from rookery.cli.exit_codes import SUCCESS


def add_report(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser("report", help="write an HTML page with curves and figures of runs")
    command.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run directories; several are compared; or a search"
    )
    command.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default: RUN/report.html, for several runs ./report.html"
    )
    command.set_defaults(run_fn=run_report)


def run_report(arguments: argparse.Namespace) -> int:
    from rookery.report import write_report
    from rookery.report.search import write_search_report
    from rookery.runs.directory import RunDirectory
    from rookery.runs.search_directory import SearchDirectory, is_search

    if len(arguments.runs) == 1 and is_search(arguments.runs[0]):
        search = SearchDirectory.open(arguments.runs[0])
        print_line(make_console(), str(write_search_report(search, arguments.output or search.report_path)))
        return SUCCESS
    runs = [RunDirectory.open(path) for path in arguments.runs]
    default = runs[0].report_path if len(runs) == 1 else Path("report.html")
    path = write_report(runs, arguments.output or default)
    print_line(make_console(), str(path))
    return SUCCESS
