"""Guests: episodes of external simulators that nobody learns from, played while a policy trains."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rookery.runners.acting.assignment import PolicyMappingFn
from rookery.runners.acting.policy_map import PolicyID, PolicyMap
from rookery.runners.envs.base_env import AgentID, End
from rookery.runners.envs.episode_messages import Acted, Mode, Row
from rookery.runners.envs.vector_env import rows_of, split_actions
from rookery.runners.recording.episode import EpisodeMetric, LiveEpisode
from rookery.spaces import Space

Tree = Any
NO_ENV = -1


class Guests:
    """Acts in the episodes of guests, and keeps the returns of those that evaluate.

    An evaluated episode is greedy. One that is watched explores if it asks for that.
    """

    def __init__(
        self, policies: PolicyMap, policy_of: PolicyMappingFn, spaces: Mapping[AgentID, tuple[Space, Space]]
    ) -> None:
        self._policies, self._policy_of, self._spaces = policies, policy_of, spaces
        self._episodes: dict[str, LiveEpisode] = {}
        self._carries: dict[str, dict[AgentID, Tree]] = {}
        self._num_begun = 0
        self._evaluated: list[EpisodeMetric] = []

    def act(self, rows: Sequence[Row]) -> dict[str, Acted]:
        """Take in steps; return the actions of those that wait for some, by episode."""
        groups: dict[tuple[PolicyID, bool], list[tuple[str, AgentID, Tree]]] = {}
        answers = {}
        for row in rows:
            self._note(row)
            if not row.is_over and not row.is_abandoned:
                answers[row.id] = Acted({}, 0)
                for agent, policy in self._acting(row):
                    explores = row.request.explore and row.request.mode is Mode.WATCH
                    groups.setdefault((policy, explores), []).append((row.id, agent, row.reports[agent].obs))
            else:
                self._end(row)
        for (policy, explores), group in groups.items():
            for (episode, agent, _), action in zip(group, self._actions(policy, explores, group), strict=True):
                answers[episode].actions[agent] = action  # type: ignore[index]
                answers[episode].version = self._policies[policy].version
        return answers

    def take_evaluated(self) -> list[EpisodeMetric]:
        """Return the evaluated episodes that have ended since the last call."""
        evaluated, self._evaluated = self._evaluated, []
        return evaluated

    def _note(self, row: Row) -> None:
        """Count a step and its rewards."""
        if row.id not in self._episodes:
            self._episodes[row.id] = LiveEpisode(self._num_begun, NO_ENV, None)
            self._carries[row.id] = {}
            self._num_begun += 1
        episode = self._episodes[row.id]
        episode.length += row.is_step and not row.is_reset
        for agent, report in row.reports.items():
            episode.agent_returns[agent] = episode.agent_returns.get(agent, 0.0) + report.reward

    def _acting(self, row: Row) -> list[tuple[AgentID, PolicyID]]:
        """Return the agents that act next, with their policies."""
        policies = self._episodes[row.id].policies
        for agent in row.acting:
            if agent not in policies:
                policies[agent] = self._policy_of(agent, self._episodes[row.id])
        return [(agent, policies[agent]) for agent in row.acting]

    def _actions(self, policy: PolicyID, explores: bool, group: Sequence[tuple[str, AgentID, Tree]]) -> list[Any]:
        """Return the actions of a policy in the form of Gymnasium."""
        actor, num_rows = self._policies[policy], len(group)
        fresh, before = actor.agent.initial_carry(), [self._carries[episode].get(agent) for episode, agent, _ in group]
        starts = np.array([carry is None for carry in before], np.float32)
        carry = jax.tree.map(lambda *leaves: np.stack(leaves), *(fresh if carry is None else carry for carry in before))
        actions, carry = actor.answer(rows_of([obs for *_, obs in group]), num_rows, carry, starts, explores)
        for index, (episode, agent, _) in enumerate(group):
            self._carries[episode][agent] = jax.tree.map(lambda leaf, index=index: leaf[index], carry)
        return split_actions(self._spaces[group[0][1]][1], actions, num_rows)

    def _end(self, row: Row) -> None:
        episode = self._episodes.pop(row.id)
        del self._carries[row.id]
        if row.is_over and row.request.mode is Mode.EVALUATE:
            ends = [report.end for report in row.reports.values()]
            self._evaluated.append(EpisodeMetric.of(episode, max(ends, default=End.TERMINATED)))
