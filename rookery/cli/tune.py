"""`rookery tune`: search the best setting of an agent on an environment."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rookery.cli.console import lasting_output, make_console, print_line, print_rows, print_table
from rookery.cli.exit_codes import NOT_GOOD, SUCCESS
from rookery.cli.garbage import CollectAsUsual
from rookery.cli.run_argument import add_trust
from rookery.configuration import declarations
from rookery.errors import InvalidInputError
from rookery.runs.trial_results import TrialResult, describe
from rookery.tuning.config import TuneConfig

if TYPE_CHECKING:
    from rookery.runs.search_directory import SearchDirectory
    from rookery.tuning.search import Search

DESCRIPTION = """\
Search the best setting of an agent on an environment. An override is key=value, as in `rookery train`. A range
{low: 1e-5, high: 1e-2, scale: log} of a hyper-parameter and a list of choices of any other setting are searched.
"""

EPILOG = """\
examples:
  rookery tune 'agent.learning_rate={low: 1e-5, high: 1e-2, scale: log}' trials=64
  rookery tune 'agent.discount={low: 0.9, high: 0.999, scale: complement}' num_seeds=3
  rookery tune 'agent.num_minibatches=[2,4,8]' 'agent.network.hidden_sizes=[[64,64],[256,256]]'
  rookery tune 'agent.learning_rate=[1e-4,1e-3]' search=halving rungs=4
  rookery tune 'agent.learning_rate={low: 1e-5, high: 1e-2, scale: log}' search=optuna trials=100
  rookery tune --resume searches/ppo-classic-cartpole-20260102-030405
  rookery train --preset searches/ppo-classic-cartpole-20260102-030405/best.yaml

keys of a search:
"""
MAX_ROWS = 20
"""The number of trials that the table at the end shows; `trials.jsonl` has all."""


def add_tune(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser(
        "tune",
        help="search the best setting",
        description=DESCRIPTION,
        epilog=EPILOG + "\n".join(_key_lines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("overrides", nargs="*", default=[], metavar="OVERRIDE", help="key=value, range or choices")
    command.add_argument("--resume", type=Path, metavar="DIR", help="continue the search in this directory")
    add_trust(command)
    command.set_defaults(run_fn=run_tune)


def run_tune(arguments: argparse.Namespace) -> int:
    from rookery.configs import split_overrides as split_ray
    from rookery.runs.search_directory import SearchDirectory
    from rookery.tuning.overrides import split_overrides
    from rookery.tuning.search import Search

    overrides, ray = split_ray(arguments.overrides)
    if arguments.resume is None:
        base, space, config = split_overrides(overrides)
        search = Search(base, space, config, ray)
        directory = None
    elif overrides:
        raise InvalidInputError(f"{overrides[0]}: a search continues as it began; only ray.* can change.")
    else:
        directory = SearchDirectory.open(arguments.resume)
        search = Search.reopened(directory, ray)
    with lasting_output():
        return _run(search, directory)


def _run(search: "Search", directory: "SearchDirectory | None") -> int:
    from rookery.cli.multirun import shared_ray
    from rookery.cli.training import new_run_directory, prepare_jax, warnings_shown
    from rookery.report.search import write_search_report
    from rookery.runs.search_directory import SearchDirectory

    console = make_console()
    with shared_ray([search.base], search.ray), warnings_shown(console):
        prepare_jax(search.base)
        search.check()
        CollectAsUsual()(None)
        if directory is None:
            directory = SearchDirectory.create(
                search.config.search_dir or new_run_directory(search.base, "searches"), search.description
            )
        print_line(console, f"search directory {directory.path}")
        results = search.run(directory, lambda text: print_line(console, text))
    print_table(console, *_table(results))
    write_search_report(directory, directory.report_path)
    files = [("trials", str(directory.trials_path)), ("report", str(directory.report_path))]
    if results[0].fitness is None:
        print_rows(console, files)
        return NOT_GOOD
    print_rows(console, [*files, ("preset", str(directory.best_path)), ("next", directory.train_command)])
    return SUCCESS


def _table(results: Sequence[TrialResult]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows of the table of trials, the best first."""
    keys = list(results[0].values)
    header = ("trial", "fitness", "env steps", *(key.removeprefix("agent.") for key in keys))
    return header, [
        (str(result.trial), _outcome(result), f"{result.env_steps:,}", *(describe(result.values[key]) for key in keys))
        for result in results[:MAX_ROWS]
    ]


def _outcome(result: TrialResult) -> str:
    return result.status if result.fitness is None else f"{result.fitness:.2f}"


def _key_lines() -> Iterator[str]:
    for name, declaration in declarations(TuneConfig).items():
        default = getattr(TuneConfig(), name)
        yield f"  {name + '=' + ('null' if default is None else str(default)):<20} {declaration.describe()}"
