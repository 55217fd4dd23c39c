"""`rookery check-env`: check that an environment follows its interface."""

import argparse
from typing import TYPE_CHECKING

from rookery.cli.console import make_console, print_line
from rookery.cli.exit_codes import NOT_GOOD, SUCCESS

if TYPE_CHECKING:  # imported when the command runs: both take long
    from rich.console import Console

    from rookery.testing.check_report import Check, CheckReport, ShowFn


def add_check_env(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser("check-env", help="check that an environment follows its interface")
    command.add_argument("name", metavar="NAME", help="like classic/cartpole, gymnasium/CartPole-v1 or ale/Pong-v5")
    command.set_defaults(run_fn=run_check_env, trust=True)


def run_check_env(arguments: argparse.Namespace) -> int:
    console = make_console()
    with console.status(f"checking {arguments.name}"):
        report = check_by_name(arguments.name, show_fn=lambda check: print_check(console, check))
    print_line(console, report.verdict, style="bold green" if report.passed else "bold red")
    return SUCCESS if report.passed else NOT_GOOD


def check_by_name(name: str, show_fn: "ShowFn") -> "CheckReport":
    """Check a device or host environment."""
    from rookery.envs.libraries import is_on_host
    from rookery.envs.registration import check_env_name
    from rookery.testing.check_env import check_env_by_name

    check_env_name(name)
    if not is_on_host(name):
        return check_env_by_name(name, show_fn)
    from rookery.runners.envs.check import check_host_env_by_name

    return check_host_env_by_name(name, show_fn)


def print_check(console: "Console", check: "Check") -> None:
    """Print one check; on a terminal in columns and colors."""
    from rookery.testing.check_report import NAME_WIDTH, Outcome

    if not console.is_terminal:
        print(check, flush=True)
        return
    from rich.table import Table
    from rich.text import Text

    styles = {Outcome.PASSED: "green", Outcome.WARNING: "yellow", Outcome.FAILED: "bold red", Outcome.SKIPPED: "dim"}
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=7)
    row.add_column(width=NAME_WIDTH)
    row.add_column(overflow="fold")
    finding_style = "dim" if check.outcome in (Outcome.PASSED, Outcome.SKIPPED) else ""
    row.add_row(Text(check.outcome.value, styles[check.outcome]), Text(check.name), Text(check.finding, finding_style))
    console.print(row)
