"""Policies by name."""

from collections.abc import Collection, Iterator, Mapping

import jax

from rookery.agent import Agent, AgentState
from rookery.errors import InvalidInputError, unknown_name
from rookery.runners.acting.actor import Actor
from rookery.types import Key

PolicyID = str
DEFAULT_POLICY: PolicyID = "default"


class PolicyMap:
    """The policies of a runner. A removed policy acts on in the episodes that use it."""

    def __init__(self, agents: Mapping[PolicyID, Agent], key: Key, explore: bool) -> None:
        if not agents:
            raise InvalidInputError("a runner needs at least one policy: {'default': agent}.")
        self._key = key
        self._explore = explore
        self._num_made = 0
        self._actors: dict[PolicyID, Actor] = {}
        self._removed: dict[PolicyID, Actor] = {}
        for policy, agent in agents.items():
            self.add(policy, agent)

    def add(self, policy: PolicyID, agent: Agent, agent_state: AgentState | None = None) -> None:
        """Add a policy for new episodes."""
        if policy in self._actors or policy in self._removed:
            raise InvalidInputError(f"policy {policy!r} exists already, or is still in use: choose another name.")
        actor = Actor(agent, jax.random.fold_in(self._key, self._num_made), self._explore, self._actors.values())
        self._num_made += 1
        if agent_state is not None:
            actor.set_state(agent_state)
        self._actors[policy] = actor

    def remove(self, policy: PolicyID) -> None:
        """Remove a policy from new episodes."""
        self._removed[policy] = self._actors.pop(self._known(policy))
        if not self._actors:
            self._actors[policy] = self._removed.pop(policy)
            raise InvalidInputError(f"{policy!r} is the only policy: add another before removing it.")

    def forget_unused(self, used: set[PolicyID]) -> list[PolicyID]:
        """Forget the removed policies that no episode uses; return their names."""
        gone = [policy for policy in self._removed if policy not in used]
        for policy in gone:
            del self._removed[policy]
        return gone

    def set_states(self, agent_states: Mapping[PolicyID, AgentState], version: int = 0) -> None:
        """Set the states that policies act with, and their number."""
        for policy, agent_state in agent_states.items():
            self[policy].set_state(agent_state, version)

    def check_may_begin(self, policy: PolicyID, used: Collection[PolicyID]) -> None:
        """Raise unless an agent may get this policy, in an episode that uses the policies `used`."""
        if policy not in self._removed or policy not in used:
            self._known(policy)

    def __getitem__(self, policy: PolicyID) -> Actor:
        return self._removed[policy] if policy in self._removed else self._actors[self._known(policy)]

    def __iter__(self) -> Iterator[PolicyID]:
        """Iterate over the policies of new episodes."""
        return iter(self._actors)

    def __len__(self) -> int:
        return len(self._actors)

    def _known(self, policy: PolicyID) -> PolicyID:
        if policy not in self._actors:
            raise unknown_name("policy", str(policy), self._actors)
        return policy
