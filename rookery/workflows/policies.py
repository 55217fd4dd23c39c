"""Assigns policies to the agents of an environment, as `env.policies`, `env.frozen` and `env.mapping` declare."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from rookery.envs.config import EnvConfig, check_policy_name, policies_in
from rookery.errors import InvalidInputError, unknown_name
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.envs.base_env import AgentID
from rookery.spaces import Space, alike
from rookery.trust import import_object
from rookery.workflows.config import SnapshotConfig

SHARED, PER_AGENT = "shared", "per_agent"

Spaces = tuple[Space, Space]
"""The observation space and the action space."""


Choices = Mapping[AgentID, tuple[PolicyID, ...]]
"""The policies of which each agent has one in an episode."""


def assign_policies(
    env: EnvConfig, spaces: Mapping[AgentID, Spaces], pool_sizes: Mapping[PolicyID, int] = MappingProxyType({})
) -> Assignment:
    """Return the policies of each agent; raise if agents that may have the same policy have different spaces.

    `pool_sizes` has the number of snapshots of each policy that consists of some.
    """
    policies = env.policies
    if policies is None:
        choices = _by_spaces(spaces)
    elif isinstance(policies, Mapping):
        choices = _by_patterns(policies, spaces)
    else:
        choices = {agent: (SHARED if policies == SHARED else str(agent),) for agent in spaces}
    for agent, names in choices.items():
        for name in names:
            check_policy_name(f"the policy of agent {agent!r}", name)
    mapping_fn = None if env.mapping is None else import_object(str(env.mapping), f"env.mapping={env.mapping}")
    assignment = Assignment(choices, frozenset(env.frozen), dict(pool_sizes), mapping_fn)
    _check_spaces(assignment, spaces)
    return assignment


def differing_spaces(one: Spaces, other: Spaces) -> tuple[str, Space, Space] | None:
    """Return which spaces are not alike, `observations` or `actions`, and both of them; None if all are alike."""
    for what, ours, theirs in zip(("observations", "actions"), one, other, strict=True):
        if not alike(ours, theirs):
            return what, ours, theirs
    return None


def check_training(assignment: Assignment, snapshot: SnapshotConfig, spaces: Mapping[AgentID, Spaces]) -> None:
    """Raise if frozen policies or snapshots do not fit the policies of a training."""
    for name in sorted(assignment.frozen):
        if name not in assignment.names:
            raise unknown_name("policy in env.frozen", name, assignment.names)
    if not assignment.trained:
        raise InvalidInputError(f"env.frozen={assignment.names}: all policies are frozen, nothing would be trained.")
    if snapshot.of is None:
        return
    if snapshot.of not in assignment.trained:
        raise unknown_name("policy in snapshot.of", snapshot.of, assignment.trained)
    of, into = (spaces[assignment.agents_of(name)[0]] for name in (snapshot.of, snapshot.into))
    if of != into:
        raise InvalidInputError(
            f"snapshot.of={snapshot.of} cannot be copied into {snapshot.into}: their agents have different spaces."
        )
    taken = sorted(set(assignment.members_of(snapshot.into)) & set(assignment.names) - {snapshot.into})
    if taken:
        raise InvalidInputError(f"{taken[0]!r} is the name of a snapshot in {snapshot.into!r}: rename that policy.")


def _by_spaces(spaces: Mapping[AgentID, Spaces]) -> Choices:
    """Return one policy for all agents with the same spaces, named after them: `adversary` for `adversary_0`."""
    kinds: list[list[AgentID]] = []
    for agent in spaces:
        kind = next((kind for kind in kinds if spaces[kind[0]] == spaces[agent]), None)
        if kind is None:
            kinds.append([agent])
        else:
            kind.append(agent)
    if len(kinds) == 1:
        return dict.fromkeys(spaces, (SHARED,))
    names = [re.sub(r"_?\d+$", "", str(kind[0])) for kind in kinds]
    if "" in names or len(set(names)) < len(names):
        names = [str(kind[0]) for kind in kinds]
    named = {agent: (name,) for name, kind in zip(names, kinds, strict=True) for agent in kind}
    return {agent: named[agent] for agent in spaces}


def _by_patterns(policies: Mapping[str, Any], spaces: Mapping[AgentID, Spaces]) -> Choices:
    policies = {str(pattern): policy for pattern, policy in policies.items()}
    names = [str(agent) for agent in spaces]
    for pattern in policies:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise unknown_name("agent in env.policies", pattern, names)
    choices = {}
    for agent, name in zip(spaces, names, strict=True):
        matching = [value for pattern, value in policies.items() if fnmatchcase(name, pattern)]
        if not matching:
            raise InvalidInputError(
                f"env.policies={policies} has no policy for agent {name!r}: add it, or '*' for all others."
            )
        choices[agent] = policies_in(matching[0])
    return choices


def _check_spaces(assignment: Assignment, spaces: Mapping[AgentID, Spaces]) -> None:
    for policy in assignment.names:
        first, *others = assignment.agents_of(policy)
        for other in others:
            for what, one, another in zip(("observations", "actions"), spaces[first], spaces[other], strict=True):
                if one != another:
                    raise InvalidInputError(
                        f"agents {first!r} and {other!r} cannot share the policy {policy!r}: their {what} differ "
                        f"({one} and {another}). Set env.policies to per_agent, or to null: then agents with the same "
                        "spaces share one."
                    )
