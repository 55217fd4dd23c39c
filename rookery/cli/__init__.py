"""The command line `rookery`.

Exit codes: 0 success, 1 failed check, 2 error, 130 and 143 interrupted. Each command has a file with a function that
declares its arguments and one that runs it. A command imports what it needs when it runs, so `rookery --help` is fast.
"""

import argparse
import contextlib
import os
import re
import sys
import traceback
from typing import NoReturn

import rookery
from rookery.cli.bench import add_bench
from rookery.cli.check_env import add_check_env
from rookery.cli.client import add_client
from rookery.cli.compilation_cache import enable_compilation_cache
from rookery.cli.console import indented_traceback, one_line
from rookery.cli.doctor import add_doctor
from rookery.cli.evaluate import add_evaluate
from rookery.cli.exit_codes import ERROR, INTERRUPTED
from rookery.cli.garbage import collect_rarely
from rookery.cli.listing import add_list
from rookery.cli.report import add_report
from rookery.cli.resume import add_resume
from rookery.cli.serve import add_serve
from rookery.cli.train import add_train
from rookery.cli.tune import add_tune
from rookery.errors import RookeryError, shortened
from rookery.recorders.lasting_stream import discard_output
from rookery.trust import strangers_config

COMMANDS = (
    add_train,
    add_tune,
    add_resume,
    add_evaluate,
    add_report,
    add_list,
    add_check_env,
    add_serve,
    add_client,
    add_bench,
    add_doctor,
)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; `argv=None` is the command line."""
    open_closed_streams()
    collect_rarely()
    parser = make_parser()
    arguments = parse_arguments(parser, argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return ERROR
    try:
        enable_compilation_cache()
        with trust_in(arguments):
            exit_code: int = arguments.run_fn(arguments)
        sys.stdout.flush()
        return exit_code
    except BrokenPipeError:
        # The reader of a pipe (`| head`) is gone: discard all further output, also when Python closes stdout.
        discard_output(sys.stdout)
        return ERROR
    except KeyboardInterrupt as stopped:  # a run that saved before it stopped says so
        print(f"rookery: {str(stopped) or 'interrupted'}", file=sys.stderr)
        return getattr(stopped, "exit_code", INTERRUPTED)
    except Exception as error:
        exit_code = getattr(error, "exit_code", ERROR)
        if arguments.debug:
            traceback.print_exc()
        else:
            kind = "error: " if exit_code == ERROR else ""
            hint = "" if isinstance(error, RookeryError) else " (--debug shows the traceback)"
            print(f"rookery: {kind}{one_line(error)}{hint}", file=sys.stderr)
            print(indented_traceback(error), end="", file=sys.stderr)
        return exit_code


def open_closed_streams() -> None:
    """Connect closed standard streams (`>&-`) to nothing; otherwise the next file that opens receives the output."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode))


def trust_in(arguments: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Import modules that the command line names; those of a run directory only with `--trust`."""
    if getattr(arguments, "trust", False):
        return contextlib.nullcontext()
    values = (text.partition("=")[2] for text in getattr(arguments, "overrides", ()))
    return strangers_config({name for value in values for name in re.split(r"[\[\],\s'\"]+", value)})


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, like all errors of the command."""

    def error(self, message: str) -> NoReturn:
        self.exit(ERROR, f"rookery: error: {shortened(message, 300)}; see `{self.prog} --help`.\n")


def make_parser() -> argparse.ArgumentParser:
    """Declare all commands."""
    parser = Parser(prog="rookery", description=rookery.__doc__)
    parser.add_argument("-V", "--version", action="version", version=f"rookery {rookery.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for add_command in COMMANDS:
        add_command(commands)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def parse_arguments(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """Parse a command line with overrides and options in any order, which argparse alone does not support."""
    arguments, rest = parser.parse_known_args(argv)
    if rest and ("overrides" not in arguments or any(text.startswith("-") for text in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides += rest
    return arguments
