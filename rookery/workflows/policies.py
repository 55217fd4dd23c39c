"""Maps the agents of an environment to policies, as `env.policies` declares."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from rookery.envs.config import check_policy_name
from rookery.errors import InvalidInputError, unknown_name
from rookery.runners.acting.policy_map import PolicyID, distinct_policies
from rookery.runners.envs.base_env import AgentID
from rookery.spaces import Space, alike

SHARED, PER_AGENT = "shared", "per_agent"

Spaces = tuple[Space, Space]
"""The observation space and the action space."""


def assign_policies(
    policies: str | Mapping[str, PolicyID] | None, spaces: Mapping[AgentID, Spaces]
) -> dict[AgentID, PolicyID]:
    """Return the policy of each agent by `EnvConfig.policies`; raise if agents of one policy have different spaces."""
    if policies is None:
        policy_of = _by_spaces(spaces)
    elif isinstance(policies, Mapping):
        policy_of = _by_patterns(policies, spaces)
    else:
        policy_of = {agent: SHARED if policies == SHARED else str(agent) for agent in spaces}
    for agent, policy in policy_of.items():
        check_policy_name(f"the policy of agent {agent!r}", policy)
    _check_spaces(policy_of, spaces)
    return policy_of


def differing_spaces(one: Spaces, other: Spaces) -> tuple[str, Space, Space] | None:
    """Return which spaces are not alike, `observations` or `actions`, and both of them; None if all are alike."""
    for what, ours, theirs in zip(("observations", "actions"), one, other, strict=True):
        if not alike(ours, theirs):
            return what, ours, theirs
    return None


def agents_of(policy: PolicyID, policy_of: Mapping[AgentID, PolicyID]) -> list[AgentID]:
    """Return the agents that share a policy."""
    return [agent for agent, its_policy in policy_of.items() if its_policy == policy]


def _by_spaces(spaces: Mapping[AgentID, Spaces]) -> dict[AgentID, PolicyID]:
    """Return one policy for all agents with the same spaces, named after them: `adversary` for `adversary_0`."""
    kinds: list[list[AgentID]] = []
    for agent in spaces:
        kind = next((kind for kind in kinds if spaces[kind[0]] == spaces[agent]), None)
        if kind is None:
            kinds.append([agent])
        else:
            kind.append(agent)
    if len(kinds) == 1:
        return dict.fromkeys(spaces, SHARED)
    names = [re.sub(r"_?\d+$", "", str(kind[0])) for kind in kinds]
    if "" in names or len(set(names)) < len(names):
        names = [str(kind[0]) for kind in kinds]
    named = {agent: name for name, kind in zip(names, kinds, strict=True) for agent in kind}
    return {agent: named[agent] for agent in spaces}


def _by_patterns(policies: Mapping[str, PolicyID], spaces: Mapping[AgentID, Spaces]) -> dict[AgentID, PolicyID]:
    policies = {str(pattern): policy for pattern, policy in policies.items()}
    names = [str(agent) for agent in spaces]
    for pattern in policies:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise unknown_name("agent in env.policies", pattern, names)
    policy_of = {}
    for agent, name in zip(spaces, names, strict=True):
        matching = [policy for pattern, policy in policies.items() if fnmatchcase(name, pattern)]
        if not matching:
            raise InvalidInputError(
                f"env.policies={policies} has no policy for agent {name!r}: add it, or '*' for all others."
            )
        policy_of[agent] = matching[0]
    return policy_of


def _check_spaces(policy_of: Mapping[AgentID, PolicyID], spaces: Mapping[AgentID, Spaces]) -> None:
    for policy in distinct_policies(policy_of):
        first, *others = agents_of(policy, policy_of)
        for other in others:
            for what, one, another in zip(("observations", "actions"), spaces[first], spaces[other], strict=True):
                if one != another:
                    raise InvalidInputError(
                        f"agents {first!r} and {other!r} cannot share the policy {policy!r}: their {what} differ "
                        f"({one} and {another}). Set env.policies to per_agent, or to null: then agents with the same "
                        "spaces share one."
                    )
