"""`rookery resume`: continue a stopped or killed run."""

import argparse
from pathlib import Path

from rookery.cli.console import lasting_output, make_console
from rookery.cli.exit_codes import SUCCESS
from rookery.cli.multi_host import add_multi_host, join_hosts
from rookery.cli.run_argument import add_trust
from rookery.errors import InvalidInputError


def add_resume(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser("resume", help="continue a stopped run")
    command.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    command.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="change settings from here on: total_timesteps=2e6, agent.learning_rate=1e-4, evaluation.interval=...; "
        "name own classes and a cluster again: agent=my_module:MyWorkflow, ray.address=auto",
    )
    command.add_argument(
        "--step", type=int, metavar="N", help="start from the checkpoint at this env step (default: the last)"
    )
    command.add_argument("--yes", action="store_true", help="with --step: delete the checkpoints after step N")
    add_multi_host(command)
    add_trust(command)
    command.set_defaults(run_fn=run_resume)


def run_resume(arguments: argparse.Namespace) -> int:
    from rookery.cli.training import resume
    from rookery.configs import split_overrides
    from rookery.runs.search_directory import SearchDirectory, is_search

    if is_search(arguments.run):
        command = SearchDirectory(arguments.run).resume_command
        raise InvalidInputError(f"{arguments.run} is a search: continue it with `{command}`.")
    overrides, ray = split_overrides(arguments.overrides)
    with lasting_output():
        resume(
            arguments.run,
            arguments.step,
            make_console(),
            join_hosts(arguments),
            overrides,
            discard_later=arguments.yes,
            ray=ray,
        )
    return SUCCESS
