"""Loading the policy of a run from its files."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from rookery.agent import Agent
from rookery.errors import InvalidInputError
from rookery.policy import Policy
from rookery.registry import acting_agent
from rookery.runs.checkpoint import Checkpoint, Checkpoints, open_checkpoint
from rookery.runs.directory import RunDirectory
from rookery.runs.files import CONFIG_NAME, is_there
from rookery.runs.policy_files import (
    FOLDER,
    PolicyError,
    PolicyName,
    policy_names,
    read_agent_state,
    read_description,
)
from rookery.runs.verification import MANIFEST
from rookery.trust import UntrustedError, strangers_config


def load(
    path: str | os.PathLike[str],
    step: int | None = None,
    *,
    best: bool = False,
    policy: str | None = None,
    seed: int | None = None,
    individual: str | None = None,
    member: int | None = None,
    agent: type[Agent] | Agent | None = None,
    network: type | None = None,
    warm_up: tuple[int, ...] = (),
    trust: bool = False,
) -> Policy:
    """Load the policy of a run: from its last checkpoint, from the one at `step`, or from the best.

    `path` is the run directory, or the folder of one checkpoint, in its run or copied. No environment is built, and no
    module that the run names is imported. A run with several policies needs the name of one; `seed` chooses one of
    several seeds, by default the first. `individual="best"` is the fittest individual of evolution, "rl" the
    learner's actor of a hybrid; `member=3` is a member of a population, whose policy is otherwise that of the best. A
    policy of own classes needs them, `agent=MyAgent` and `network=MyEncoder`, or your `trust`, with which the modules
    that the run names are imported. `warm_up` compiles `predict` for batches of these sizes.
    """
    checkpoint = _opened(Path(path), step, best)
    name = _chosen(checkpoint, PolicyName(policy, seed, individual_of(individual, member)))
    try:
        with contextlib.nullcontext() if trust else strangers_config():
            result = read_policy(checkpoint, name, agent, network)
    except UntrustedError as error:
        key, _, own_class = error.setting.removeprefix("agent.").partition("=")
        raise InvalidInputError(
            f"the policy in {path} has the {key} {own_class}, which is not a class of Rookery: name the class again, "
            f"rookery.load(path, {key}={own_class.rpartition(':')[2]}), or add trust=True if you trust the run."
        ) from error
    result.warm_up(*warm_up)
    return result


def load_team(
    path: Path, step: int | None = None, best: bool = False, individual: str | None = None
) -> tuple[int, dict[str, Policy]]:
    """Load all policies of a checkpoint, of the first seed; return its env steps and the policies by name.

    `individual` chooses as in `load`. Own classes of a run are imported if they are trusted.
    """
    checkpoint = _opened(path, step, best)
    policies = {name.policy or "policy" for name in policy_names(checkpoint)}
    chosen = {policy: _chosen(checkpoint, PolicyName(policy, None, individual)) for policy in sorted(policies)}
    return checkpoint.step, {policy: read_policy(checkpoint, name) for policy, name in chosen.items()}


def individual_of(individual: str | None, member: int | None) -> str | None:
    """Return the name of the individual that is a member of a population, or the given one."""
    if member is None:
        return individual
    if individual is not None:
        raise InvalidInputError(f"individual={individual} and member={member}: choose one.")
    if member < 0:
        raise InvalidInputError(f"member={member} must be an integer of at least 0.")
    return str(member)


def _opened(path: Path, step: int | None, best: bool) -> Checkpoint:
    """Open a checkpoint of a run directory, or the one in a folder of its own, and verify its policy files."""
    if is_there(path, CONFIG_NAME) or not is_there(path, MANIFEST):
        return open_policies(RunDirectory.open(path), step, best)
    if step is not None or best:
        raise InvalidInputError(f"{path} is one checkpoint: leave out step and best, or give the run directory.")
    return open_checkpoint(path, part=f"{FOLDER}/")


def open_policies(run: RunDirectory, step: int | None = None, best: bool = False) -> Checkpoint:
    """Open the last checkpoint of a run, the one at `step` or the best, and verify its policy files."""
    checkpoints = Checkpoints(run.checkpoints_path)
    if best:
        if step is not None:
            raise InvalidInputError(f"step={step} and best: choose one checkpoint.")
        step = checkpoints.best_step()
        if step is None:
            raise InvalidInputError(
                f"{run.path} has no best checkpoint: it made no evaluation yet, or did not keep it "
                "(checkpoint.keep_best); leave out --best."
            )
    return checkpoints.open(step, part=f"{FOLDER}/")


def read_policy(
    checkpoint: Checkpoint,
    name: PolicyName,
    agent: type[Agent] | Agent | None = None,
    network: type | str | None = None,
) -> Policy:
    """Read one policy of a checkpoint. Own classes that it names are imported if they are trusted and not given."""
    description = read_description(checkpoint.path, name.stem)
    loaded = description.make_agent(acting_agent(description.agent) if agent is None else agent, network)
    agent_state = read_agent_state(checkpoint.path, name.stem, description, loaded)
    checkpoint.check_unchanged()
    return Policy(loaded, agent_state, description.obs_space, description.action_space, description.env_steps)


def _chosen(checkpoint: Checkpoint, name: PolicyName) -> PolicyName:
    """Return the policy of a checkpoint with this name; without a seed, of the first seed."""
    names = {known.stem: known for known in policy_names(checkpoint)}
    if name.stem in names:
        return name
    if not names:
        raise PolicyError(
            f"{checkpoint.path} has no policy files: it was written by an older Rookery. Evaluate it with `rookery "
            "evaluate`."
        )
    seeds = [
        known for known in names.values() if known.seed is not None and replace(known, seed=None).stem == name.stem
    ]
    if not seeds:
        raise InvalidInputError(
            f"{checkpoint.path} has no policy {name.stem!r}: choose one of {', '.join(sorted(names))}."
        )
    return min(seeds, key=lambda known: known.seed or 0)
