"""The policies of a training, in hand and as files: with them others act, without the training."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax

import rookery
from rookery.agent import Agent, AgentState
from rookery.errors import InvalidInputError
from rookery.learning.counter import Counter
from rookery.policy import Policy
from rookery.runs.policy_files import PolicyName, policy_files
from rookery.spaces import Dict, Space
from rookery.types import index_tree
from rookery.workflows.config import Settings
from rookery.workflows.training import Training, TrainingState


class PolicyPart(NamedTuple):
    """One policy of a training state: one of several policies, seeds and individuals."""

    name: PolicyName
    agent_state: AgentState
    spaces: tuple[Space, Space]
    env_steps: int
    seed: int


def policy_parts(
    settings: Settings, training: Training, individuals: Mapping[str, AgentState], env_steps: Counter
) -> Iterator[PolicyPart]:
    """Iterate over the policies of `Training.individuals` on the host."""
    train = settings.train
    is_one = train.num_seeds == 1
    for individual, of_seeds in individuals.items():
        for index, seed in enumerate(train.seeds):
            agent_state, counter = (of_seeds, env_steps) if is_one else index_tree((of_seeds, env_steps), index)
            for policy, policy_state, spaces in by_policy(agent_state, training.spaces):
                name = PolicyName(policy, None if is_one else seed, individual or None)
                yield PolicyPart(name, policy_state, spaces, int(counter), seed)


def policy_in(parts: Iterable[PolicyPart], agent: Agent, name: PolicyName) -> Policy:
    """Return the policy of a name; of several seeds, that of the first unless `name` has another."""
    of_stems = {part.name.stem: part for part in parts}
    seeds = [part.name.seed for part in of_stems.values() if part.name.seed is not None]
    if name.seed is None and seeds:
        name = replace(name, seed=seeds[0])
    if name.stem not in of_stems:
        raise InvalidInputError(f"there is no policy {name.stem!r}: choose one of {', '.join(of_stems)}.")
    part = of_stems[name.stem]
    acting, agent_state = agent.acting_part(part.agent_state)
    return Policy(acting, agent_state, *part.spaces, part.env_steps)


def saved_policies(
    settings: Settings, training: Training, state: TrainingState, evaluations: Mapping[int, Any]
) -> dict[str, bytes]:
    """Return the policy files of a state on the host by path: one pair for each policy, seed and individual.

    `evaluations` are the last ones by seed; they are those of the center, not of the fittest individual.
    """
    versions = {"rookery": rookery.__version__, "jax": jax.__version__}
    about = {"method": settings.agent_name, "env": settings.train.env.name, "versions": versions}
    files: dict[str, bytes] = {}
    for part in policy_parts(settings, training, training.individuals(state), state.env_steps):
        more = about | {"seed": part.seed}
        if part.name.individual is None and part.seed in evaluations:
            more["evaluation"] = evaluations[part.seed]
        files |= policy_files(part.name, training.agent, part.agent_state, part.spaces, part.env_steps, more)
    return files


def by_policy(
    agent_state: AgentState, spaces: tuple[Space, Space]
) -> Iterator[tuple[str | None, AgentState, tuple[Space, Space]]]:
    """Iterate over the policies: their names, states and spaces; one without a name if there are not several."""
    obs_spaces, action_spaces = spaces
    if not isinstance(agent_state, dict):
        yield None, agent_state, spaces
        return
    assert isinstance(obs_spaces, Dict) and isinstance(action_spaces, Dict), "spaces are by policy, like states"  # noqa: PT018
    for policy, policy_state in agent_state.items():
        yield policy, policy_state, (obs_spaces[policy], action_spaces[policy])
