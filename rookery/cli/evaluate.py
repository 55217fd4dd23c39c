"""`rookery evaluate`: returns of the greedy policy of a run, and a video of it."""

import argparse
import contextlib
from pathlib import Path
from typing import Any

from rookery.cli.console import make_console, print_line, print_table
from rookery.cli.exit_codes import SUCCESS
from rookery.cli.run_argument import add_trust

HEADER = ("seed", "return", "std", "min", "max", "length", "shortest", "longest")
POLICY_HEADER = ("policy", "return", "std", "min", "max")


def add_evaluate(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser("evaluate", help="play episodes with the greedy policy of a run")
    command.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    command.add_argument(
        "--episodes", type=int, default=32, metavar="N", help="number of episodes per seed (default: 32)"
    )
    command.add_argument("--video", type=Path, metavar="FILE", help="also record one episode: .gif, .webp, .png")
    command.add_argument("--step", type=int, metavar="N", help="the checkpoint at this env step (default: the last)")
    command.add_argument(
        "--best", action="store_true", help="evolution: evaluate the fittest individual instead of the center"
    )
    command.add_argument("--seed", type=int, default=0, metavar="K", help="seed of the episodes (default: 0)")
    add_trust(command)
    command.set_defaults(run_fn=run_evaluate)


def run_evaluate(arguments: argparse.Namespace) -> int:
    from rookery.cli.training import build_from_run, describe_returns, record_episode
    from rookery.errors import InvalidInputError, check_count
    from rookery.evaluators.host import MultiPolicyEvaluateMetric
    from rookery.report.video import FORMATS
    from rookery.runs.directory import RunDirectory
    from rookery.runs.load_agent import load_agent
    from rookery.types import all_finite, make_key

    check_count("--episodes", arguments.episodes)
    if arguments.video is not None and arguments.video.suffix.lower() not in FORMATS:
        raise InvalidInputError(f"--video={arguments.video}: the name must end in {', '.join(FORMATS)}.")
    console = make_console()
    run = RunDirectory.open(arguments.run)
    with contextlib.closing(build_from_run(run, arguments.episodes, devices=None)) as workflow:
        train, training = workflow.settings.train, workflow.training
        if arguments.best and not training.has_best:
            raise InvalidInputError(f"--best: {workflow.agent_name} has no best individual.")
        loaded = load_agent(run, training.agent_shape(), train.num_seeds, arguments.step, arguments.best)
        key = make_key(arguments.seed)
        results = [
            workflow.evaluator.evaluate(agent_state, key, arguments.episodes) for agent_state in loaded.agent_states
        ]
        print_line(
            console,
            f"{workflow.settings.agent_name} on {train.env.name} after {loaded.env_steps:,} env steps, "
            f"{arguments.episodes:,} greedy episodes",
        )
        print_table(console, HEADER, [row(seed, result) for seed, result in zip(train.seeds, results, strict=True)])
        if isinstance(results[0], MultiPolicyEvaluateMetric):
            rows = [(policy, *figures_of(returns)) for policy, returns in results[0].policy_returns.items()]
            print_table(console, POLICY_HEADER, rows)
        is_finite = [all_finite(agent_state) for agent_state in loaded.agent_states]
        finite = [result for result, is_known in zip(results, is_finite, strict=True) if is_known]
        if train.num_seeds > 1 or not finite:
            means = [float(result.episode_returns.mean()) for result in finite if len(result.episode_returns)]
            print_line(console, describe_returns(means, len(results) - len(finite)))
        if arguments.video is not None:
            record_episode(workflow, loaded.agent_states[0], key, arguments.video)
            print_line(console, str(arguments.video))
    return SUCCESS


def row(seed: int, result: Any) -> tuple[str, ...]:
    """Return the figures of one seed as text; dashes without a finished episode."""
    lengths = result.episode_lengths
    if not len(lengths):
        return (str(seed), *["-"] * (len(HEADER) - 1))
    return (
        str(seed),
        *figures_of(result.episode_returns),
        f"{float(lengths.mean()):.1f}",
        str(int(lengths.min())),
        str(int(lengths.max())),
    )


def figures_of(returns: Any) -> tuple[str, ...]:
    """Return mean, standard deviation, minimum and maximum as text; dashes if there are none."""
    if not len(returns):
        return ("-",) * 4
    figures = (returns.mean(), returns.std(), returns.min(), returns.max())
    return tuple(f"{float(figure):.2f}" for figure in figures)
