"""Reads all policies of a run, for its evaluation."""

import contextlib
from collections.abc import Mapping

from rookery.agent import Agent
from rookery.api.loading import open_policies, read_policy
from rookery.errors import InvalidInputError, unknown_name
from rookery.registry import build_workflow
from rookery.runs.checkpoint import Checkpoint
from rookery.runs.directory import RunDirectory
from rookery.runs.policy_files import policy_names
from rookery.workflows.evaluation import Team
from rookery.workflows.saved.older_runs import read_older_policies


def read_teams(
    run: RunDirectory,
    step: int | None = None,
    best: bool = False,
    policy: str | None = None,
    individual: str | None = None,
    agent: type[Agent] | None = None,
    network: str | None = None,
) -> tuple[int, Mapping[int, Team]]:
    """Return the env steps of a checkpoint, and its policies, or one of them: by seed and by name.

    `agent` and `network` are own classes of the run that the user names again.
    """
    checkpoint = open_policies(run, step, best)
    if policy_names(checkpoint):
        unsorted = _read_files(run, checkpoint, individual, agent, network)
    else:
        unsorted = _read_older_format(run, checkpoint, individual)
    teams = dict(sorted(unsorted.items()))
    if not teams:
        raise InvalidInputError(f"{run.path} has no individual {individual}: {_known(checkpoint)}.")
    if policy is not None:
        teams = {seed: _only(policy, team) for seed, team in teams.items()}
    return checkpoint.step, teams


def _known(checkpoint: Checkpoint) -> str:
    """Say which individuals there are."""
    names = [name.individual for name in policy_names(checkpoint) if name.individual is not None]
    return f"choose one of {', '.join(dict.fromkeys(names))}" if names else "leave it out"


def _read_files(
    run: RunDirectory,
    checkpoint: Checkpoint,
    individual: str | None,
    agent: type[Agent] | None,
    network: str | None,
) -> dict[int, Team]:
    names = [name for name in policy_names(checkpoint) if name.individual == individual]
    policies = [(name, read_policy(checkpoint, name, agent, network)) for name in names]
    return {
        int(run.config.get("seed", 0) if seed is None else seed): {
            str(name.policy): policy for name, policy in policies if name.seed == seed
        }
        for seed in {name.seed for name in names}
    }


def _read_older_format(run: RunDirectory, checkpoint: Checkpoint, individual: str | None) -> dict[int, Team]:
    config = run.config | {"run_dir": str(run.path), "devices": None}
    with contextlib.closing(build_workflow(config, evaluation_episodes=1)) as workflow:
        return read_older_policies(workflow, run, checkpoint.step, individual is not None)


def _only(policy: str, team: Team) -> Team:
    if policy not in team:
        raise unknown_name("policy", policy, team)
    return {policy: team[policy]}
