"""Players: who acts in episodes whose rows are not recorded."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.runners.acting.actor import Actor
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.envs.base_env import Actions, AgentID, End, EnvOutputs
from rookery.runners.recording.episode import LiveEpisode
from rookery.types import make_key

Tree = Any


class Players(ABC):
    """Act in environments without keeping what they did."""

    num_policies: int = 1

    @abstractmethod
    def observe(self, outputs: EnvOutputs, episodes: Sequence[LiveEpisode]) -> None:
        """Keep the observations to act on."""

    @abstractmethod
    def act(self, envs: np.ndarray, lengths: np.ndarray) -> Actions:
        """Choose actions in these envs, ascending; `lengths` are the steps so far of all envs."""

    @abstractmethod
    def last_action(self, env: int) -> Any:
        """Return the action that an env was sent last."""

    def policies_of(self, outputs: EnvOutputs, episodes: Sequence[LiveEpisode]) -> np.ndarray:
        """Return the index of the policy of each row."""
        return np.zeros(len(outputs.envs), np.int64)

    def have_acted(self, episode: LiveEpisode) -> np.ndarray:
        """Return whether each policy acted in an episode that ended."""
        return np.ones(self.num_policies, bool)


class ObsTable:
    """The last observation of each environment with one agent; `obs` may be given to begin with."""

    def __init__(self, num_envs: int, obs: Tree = None) -> None:
        self._num_envs = num_envs
        self.obs = obs

    def write(self, outputs: EnvOutputs) -> None:
        """Keep the observations of episodes that go on."""
        rows = np.flatnonzero(outputs.ends == End.RUNNING)
        if not len(rows):
            return
        if self.obs is None:
            self.obs = jax.tree.map(lambda leaf: np.zeros((self._num_envs, *leaf.shape[1:]), leaf.dtype), outputs.obs)
        for table, leaf in zip(jax.tree.leaves(self.obs), jax.tree.leaves(outputs.obs), strict=True):
            table[outputs.envs[rows]] = leaf[rows]


class GreedyPlayers(Players):
    """One agent in each environment, all with the same policy."""

    def __init__(self, agent: Agent) -> None:
        self._actor = Actor(agent, make_key(0), explore=False)

    def begin(self, agent_state: AgentState, num_envs: int) -> None:
        """Act with this state, in `num_envs` environments that begin new episodes."""
        self._actor.set_state(agent_state)
        self._actor.begin(num_envs)
        self._table = ObsTable(num_envs)
        self._last_actions: dict[int, tuple[Tree, int]] = {}

    def observe(self, outputs: EnvOutputs, episodes: Sequence[LiveEpisode]) -> None:
        self._table.write(outputs)

    def act(self, envs: np.ndarray, lengths: np.ndarray) -> Actions:
        obs = jax.tree.map(lambda leaf: leaf[envs], self._table.obs)
        actions = self._actor.act(obs, len(envs), envs, lengths[envs] == 0).actions
        self._last_actions.update((env, (actions, row)) for row, env in enumerate(envs.tolist()))
        return Actions(envs, actions)

    def last_action(self, env: int) -> Any:
        actions, row = self._last_actions[env]
        return jax.tree.map(lambda leaf: leaf[row], actions)


class GreedyTeams(Players):
    """Several agents in each environment, each with the policy that it is assigned for the episode."""

    def __init__(self, agents: Mapping[PolicyID, Agent], assignment: Assignment) -> None:
        self.num_policies = len(assignment.names)
        self._assignment = assignment
        self._agents = {policy: assignment.agents_of(name) for policy, name in assignment.name_of.items()}
        """The agents that may have each acting policy."""
        self._actors: dict[PolicyID, Actor] = {}
        for policy in self._agents:
            self._actors[policy] = Actor(agents[policy], make_key(0), explore=False, others=self._actors.values())

    def begin(self, agent_states: Mapping[PolicyID, AgentState], num_envs: int) -> None:
        """Act with these states, in `num_envs` environments that begin new episodes."""
        for policy, actor in self._actors.items():
            actor.set_state(agent_states[policy])
            actor.begin(num_envs * len(self._agents[policy]))
        self._acted: list[set[AgentID]] = [set() for _ in range(num_envs)]
        """The agents that have acted in the episode of each env."""
        self._waiting: dict[int, list[tuple[AgentID, PolicyID, Tree]]] = {}
        """The agents that act next in each env, their policies and their observations."""
        self._last_actions: dict[int, dict[AgentID, Tree]] = {}

    def observe(self, outputs: EnvOutputs, episodes: Sequence[LiveEpisode]) -> None:
        assert outputs.agents is not None, "outputs of envs with several agents name them"
        for env in outputs.resets:
            self._acted[env].clear()
        for env in (*outputs.resets, *outputs.stepped):
            self._waiting.pop(int(env), None)
        over = set(outputs.over)
        rows = zip(outputs.envs.tolist(), outputs.agents, outputs.obs, outputs.ends.tolist(), strict=True)
        for env, agent, obs, end in rows:
            if env not in over and end == End.RUNNING and obs is not None:
                policy = self._policy_of(agent, episodes[env])
                self._waiting.setdefault(env, []).append((agent, policy, obs))

    def act(self, envs: np.ndarray, lengths: np.ndarray) -> Actions:
        acting = set(envs.tolist())
        groups: dict[PolicyID, list[tuple[int, AgentID, Tree]]] = {}
        for env in [env for env in self._waiting if env in acting]:
            for agent, policy, obs in self._waiting.pop(env):
                groups.setdefault(policy, []).append((env, agent, obs))
        actions: list[Tree] = []
        agents: list[AgentID] = []
        row_envs: list[int] = []
        for policy, group in groups.items():
            actions += self._act_one(policy, group)
            agents += [agent for _, agent, _ in group]
            row_envs += [env for env, _, _ in group]
        self._last_actions.update((env, {}) for env in acting)
        for env, agent, action in zip(row_envs, agents, actions, strict=True):
            self._acted[env].add(agent)
            self._last_actions[env][agent] = action
        return Actions(envs, actions, agents, np.array(row_envs, np.int64))

    def _act_one(self, policy: PolicyID, group: list[tuple[int, AgentID, Tree]]) -> list[Tree]:
        mates = self._agents[policy]
        obs = jax.tree.map(lambda *leaves: np.stack(leaves), *(obs for *_, obs in group))
        columns = np.array([env * len(mates) + mates.index(agent) for env, agent, _ in group])
        starts = np.array([agent not in self._acted[env] for env, agent, _ in group])
        actions = self._actors[policy].act(obs, len(group), columns, starts).actions
        return [jax.tree.map(lambda leaf, row=row: leaf[row], actions) for row in range(len(group))]

    def last_action(self, env: int) -> Any:
        return self._last_actions.get(env)

    def policies_of(self, outputs: EnvOutputs, episodes: Sequence[LiveEpisode]) -> np.ndarray:
        assert outputs.agents is not None, "outputs of envs with several agents name them"
        rows = zip(outputs.agents, outputs.envs.tolist(), strict=True)
        return np.array([self._index_of(self._policy_of(agent, episodes[env])) for agent, env in rows], np.int64)

    def have_acted(self, episode: LiveEpisode) -> np.ndarray:
        acted = np.zeros(self.num_policies, bool)
        acted[[self._index_of(policy) for policy in episode.policies.values()]] = True
        return acted

    def _policy_of(self, agent: AgentID, episode: LiveEpisode) -> PolicyID:
        """Return the acting policy of an agent, for the whole episode."""
        if agent not in episode.policies:
            episode.policies[agent] = self._assignment(agent, episode)
        return episode.policies[agent]

    def _index_of(self, policy: PolicyID) -> int:
        return self._assignment.names.index(self._assignment.name_of[policy])
