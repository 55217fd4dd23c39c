"""`rookery evaluate`: returns of the greedy policy of a run, and a video of it."""

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.cli.console import make_console, print_line, print_table, printable
from rookery.cli.exit_codes import SUCCESS
from rookery.cli.run_argument import add_trust

if TYPE_CHECKING:  # imported when the command runs: they take long
    from rich.console import Console

    from rookery.evaluators import EvaluateMetric
    from rookery.workflows.evaluation import Team

HEADER = ("seed", "return", "std", "min", "max", "length", "shortest", "longest")
POLICY_HEADER = ("policy", "return", "std", "min", "max")


def add_evaluate(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser("evaluate", help="play episodes with the greedy policy of a run")
    command.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    command.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="change the environment, like env.kwargs.gravity=5, or take another with the same spaces, env=NAME; name "
        "own classes of the run again: agent=my_module:MyWorkflow",
    )
    command.add_argument(
        "--episodes", type=int, default=32, metavar="N", help="number of episodes per seed (default: 32)"
    )
    command.add_argument("--video", type=Path, metavar="FILE", help="also record one episode: .gif, .webp, .png")
    command.add_argument("--step", type=int, metavar="N", help="the checkpoint at this env step (default: the last)")
    command.add_argument("--best", action="store_true", help="the best checkpoint of all evaluations in training")
    command.add_argument("--policy", metavar="NAME", help="one of several policies, which then acts for all agents")
    command.add_argument(
        "--individual",
        choices=["best", "rl"],
        help="evolution: evaluate the fittest individual instead of the center; rl: the learner's actor of a hybrid",
    )
    command.add_argument(
        "--member", type=int, metavar="N", help="population: evaluate member N, from 0, instead of the best"
    )
    command.add_argument("--seed", type=int, default=0, metavar="K", help="seed of the episodes (default: 0)")
    add_trust(command)
    command.set_defaults(run_fn=run_evaluate)


def run_evaluate(arguments: argparse.Namespace) -> int:
    from rookery.api.loading import individual_of
    from rookery.api.teams import read_teams
    from rookery.cli.training import prepare_jax
    from rookery.configs.evaluation import evaluated_env, split_overrides
    from rookery.configuration import plain
    from rookery.errors import InvalidInputError, check_count
    from rookery.registry import own_agent
    from rookery.report.video import FORMATS, write_video
    from rookery.runs.directory import RunDirectory
    from rookery.types import make_key
    from rookery.workflows.evaluation import TeamEvaluator, num_envs_of, pool_sizes_of

    num_episodes, video = arguments.episodes, arguments.video
    check_count("--episodes", num_episodes)
    if video is not None and video.suffix.lower() not in FORMATS:
        raise InvalidInputError(f"--video={video}: the name must end in {', '.join(FORMATS)}.")
    console = make_console()
    run = RunDirectory.open(arguments.run)
    config = run.config
    agent_name = plain(config.get("agent", {}), "agent").get("name")
    own, overrides = split_overrides(config, arguments.overrides)
    env = evaluated_env(config, overrides)
    prepare_jax({"env": {"name": env.name}})
    agent = own_agent(own["agent"]) if "agent" in own else None
    individual = individual_of(arguments.individual, arguments.member)
    choice = (arguments.step, arguments.best, arguments.policy, individual)
    step, teams = read_teams(run, *choice, agent, own.get("network"))
    first_team, key = next(iter(teams.values())), make_key(arguments.seed)
    num_envs, pool_sizes = num_envs_of(config, env), pool_sizes_of(config)
    with contextlib.closing(TeamEvaluator(env, first_team, num_envs, num_episodes, pool_sizes)) as evaluator:
        results = {seed: evaluator.evaluate(team, key, num_episodes) for seed, team in teams.items()}
        title = f"{agent_name} on {env.name} after {step:,} env steps, {num_episodes:,} greedy episodes"
        print_line(console, printable(title))
        print_results(console, teams, results)
        if video is not None:
            write_video(video, evaluator.frames(first_team, key))
            print_line(console, str(video))
    return SUCCESS


def print_results(console: "Console", teams: "Mapping[int, Team]", results: "Mapping[int, EvaluateMetric]") -> None:
    """Print the figures of each seed, of each policy if there are several, and of all seeds."""
    from rookery.cli.training import describe_returns
    from rookery.evaluators.host import MultiPolicyEvaluateMetric
    from rookery.types import all_finite

    print_table(console, HEADER, [row(seed, result) for seed, result in results.items()])
    first_result = next(iter(results.values()))
    if isinstance(first_result, MultiPolicyEvaluateMetric):
        rows = [(policy, *figures_of(returns)) for policy, returns in first_result.policy_returns.items()]
        print_table(console, POLICY_HEADER, rows)
    is_finite = {seed: all(all_finite(policy.agent_state) for policy in team.values()) for seed, team in teams.items()}
    finite = [result.episode_returns for seed, result in results.items() if is_finite[seed]]
    if len(results) > 1 or not finite:
        means = [float(returns.mean()) for returns in finite if len(returns)]
        print_line(console, describe_returns(means, len(results) - len(finite)))


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
