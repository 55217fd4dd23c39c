"""`rookery list`: available environments and agents."""

import argparse
from typing import TYPE_CHECKING

from rookery.cli.console import install_command, make_console, one_line, print_columns, print_heading, print_rows
from rookery.cli.exit_codes import SUCCESS
from rookery.errors import InvalidInputError, unknown_name

if TYPE_CHECKING:  # imported when something is printed: it takes long
    from rich.console import Console


def add_list(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser("list", help="list environments and agents")
    command.add_argument("kind", nargs="?", choices=("envs", "agents"), help="what to list (default: both)")
    command.add_argument("libraries", nargs="*", metavar="LIBRARY", help="only the environments of these libraries")
    command.set_defaults(run_fn=run_list)


def run_list(arguments: argparse.Namespace) -> int:
    if arguments.libraries and arguments.kind != "envs":
        raise InvalidInputError(f"libraries apply only to environments: rookery list envs {arguments.libraries[0]}")
    console = make_console()
    if arguments.kind != "agents":
        list_envs(console, arguments.libraries)
    if arguments.kind != "envs":
        list_agents(console)
    return SUCCESS


def list_envs(console: "Console", libraries: list[str]) -> None:
    """Print the names of the environments by library."""
    from rookery.envs.libraries import LIBRARIES
    from rookery.envs.registration import all_library_names, env_names, is_installed

    known = all_library_names()
    for library in libraries:
        if library not in known:
            raise unknown_name("environment library", library, known)
    for library in libraries or known:
        if not is_installed(library):
            print_heading(console, library, f"not installed: {install_command(str(LIBRARIES[library].extra))}")
            continue
        try:
            with console.status(f"importing {library}"):
                names = env_names(library)
        except Exception as error:
            print_heading(console, library, f"cannot be imported: {one_line(error)}")
            continue
        print_heading(console, library, f"{len(names)} environments")
        print_columns(console, names)


def list_agents(console: "Console") -> None:
    """Print the methods with the first line of their docstrings."""
    from rookery.registry import agent_names

    print_heading(console, "agents", "")
    print_rows(console, [(name, describe_agent(name)) for name in agent_names()])


def describe_agent(name: str) -> str:
    """Return the first line of the docstring of a method; that of another package may fail to import."""
    from rookery.registry import workflow_class

    try:
        return (workflow_class(name).__doc__ or "").partition("\n")[0]
    except Exception as error:
        return f"cannot be imported: {one_line(error)}"
