"""Assignment: which policy each agent has in each episode."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rookery.errors import InvalidInputError
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.envs.base_env import AgentID
from rookery.runners.recording.episode import LiveEpisode

PolicyMappingFn = Callable[[AgentID, LiveEpisode], PolicyID]


@dataclass(frozen=True)
class Assignment:
    """Gives each agent a policy for an episode: the only one of its choices, a drawn one, or that of `mapping_fn`.

    Random numbers follow from `seeds` and the number of the episode alone, so it does not matter which environment is
    ready first. If all agents draw frozen policies, one of them gets a trained policy, so that every episode has rows
    to learn from.

    A pool is a choice with several members, the acting policies `past_0`, `past_1`, ... An agent that has the pool
    plays one of them, drawn for the episode.
    """

    choices: Mapping[AgentID, tuple[PolicyID, ...]]
    """A policy that is listed twice is drawn twice as often."""
    frozen: frozenset[PolicyID] = frozenset()
    pool_sizes: Mapping[PolicyID, int] = field(default_factory=dict)
    mapping_fn: PolicyMappingFn | None = None
    seeds: tuple[int, ...] = ()

    @classmethod
    def fixed(cls, policy_of: Mapping[AgentID, PolicyID]) -> "Assignment":
        """Make the assignment with one policy for each agent."""
        return cls({agent: (policy,) for agent, policy in policy_of.items()})

    def with_seeds(self, *seeds: int) -> "Assignment":
        """Return the assignment with other random numbers."""
        return replace(self, seeds=seeds)

    @functools.cached_property
    def names(self) -> list[PolicyID]:
        """The policies that agents may have, each once, in the order of the agents; a pool is one of them."""
        return list(dict.fromkeys(policy for choices in self.choices.values() for policy in choices))

    @property
    def trained(self) -> list[PolicyID]:
        """The policies that are not frozen."""
        return [name for name in self.names if name not in self.frozen]

    @functools.cached_property
    def name_of(self) -> dict[PolicyID, PolicyID]:
        """The acting policies, with the name under which agents have them: `past_0` belongs to `past`."""
        return {member: name for name in self.names for member in self.members_of(name)}

    def members_of(self, name: PolicyID) -> list[PolicyID]:
        """Return the acting policies of a name: itself, or the members of a pool."""
        return member_names(name, self.pool_sizes.get(name, 1))

    def agents_of(self, name: PolicyID) -> list[AgentID]:
        """Return the agents that may have a policy."""
        return [agent for agent, choices in self.choices.items() if name in choices]

    def __call__(self, agent: AgentID, episode: LiveEpisode) -> PolicyID:
        """Return the acting policy of an agent in an episode."""
        if self._is_fixed:
            return self.choices[agent][0]
        random = np.random.default_rng((*self.seeds, episode.number))
        shares = dict(zip(self.choices, random.random(len(self.choices)), strict=True))
        name = self._drawn(random)[agent] if self.mapping_fn is None else self._mapped(agent, episode)
        members = self.members_of(name)
        return members[int(shares[agent] * len(members))]

    @functools.cached_property
    def _is_fixed(self) -> bool:
        return not self.pool_sizes and self.mapping_fn is None and all(len(c) == 1 for c in self.choices.values())

    def _drawn(self, random: np.random.Generator) -> dict[AgentID, PolicyID]:
        """Draw a policy for each agent."""
        team = {agent: choices[random.integers(len(choices))] for agent, choices in self.choices.items()}
        if self.frozen.issuperset(team.values()):
            trained = {
                agent: [name for name in names if name not in self.frozen] for agent, names in self.choices.items()
            }
            able = [agent for agent, names in trained.items() if names]
            if able:
                agent = able[random.integers(len(able))]
                team[agent] = trained[agent][random.integers(len(trained[agent]))]
        return team

    def _mapped(self, agent: AgentID, episode: LiveEpisode) -> PolicyID:
        """Return the policy that `mapping_fn` gives to an agent."""
        assert self.mapping_fn is not None, "there is a mapping"
        name, choices = self.mapping_fn(agent, episode), self.choices[agent]
        if name not in choices:
            listed = ", ".join(dict.fromkeys(choices))
            raise InvalidInputError(
                f"env.mapping returned {name!r} for agent {agent!r}; expected one of those in env.policies: {listed}."
            )
        return name


def member_names(name: PolicyID, size: int) -> list[PolicyID]:
    """Return the names of the members of a pool; a pool of one member is a policy like others."""
    return [name] if size == 1 else [f"{name}_{index}" for index in range(size)]
