"""Pipelines: the connectors of each policy, bound to their spaces."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rookery.runners.acting.connectors import ActionConnector, ObsConnector, Rows
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.envs.base_env import AgentID
from rookery.spaces import Space

Tree = Any
ObsConnectorsFn = Callable[[PolicyID], Sequence[ObsConnector]]
ActionConnectorsFn = Callable[[PolicyID], Sequence[ActionConnector]]


class Pipeline:
    """All connectors of one policy, each kind in its order."""

    def __init__(
        self,
        obs: Sequence[ObsConnector],
        actions: Sequence[ActionConnector],
        obs_space: Space,
        action_space: Space,
    ) -> None:
        self.obs, self.actions = tuple(obs), tuple(actions)
        self.action_space = action_space
        for action_connector in reversed(self.actions):
            self.action_space = action_connector.bind(self.action_space)
        self.obs_space = obs_space
        for obs_connector in self.obs:
            self.obs_space = obs_connector.bind(self.obs_space, self.action_space)

    def reserve(self, num_columns: int) -> None:
        for connector in self.obs:
            connector.reserve(num_columns)

    def to_policy(self, obs: Tree, rows: Rows) -> Tree:
        for connector in self.obs:
            obs = connector(obs, rows)
        return obs

    def to_env(self, actions: Tree) -> Tree:
        for connector in self.actions:
            actions = connector(actions)
        return actions

    def get_state(self) -> list[dict[str, np.ndarray]]:
        return [connector.get_state() for connector in self.obs]

    def set_state(self, states: Sequence[Mapping[str, np.ndarray]]) -> None:
        for connector, state in zip(self.obs, states, strict=True):
            connector.set_state(state)


class PipelineMap:
    """The pipelines of a runner by policy, made when they are first needed."""

    def __init__(
        self,
        spaces: Mapping[AgentID, tuple[Space, Space]],
        obs_connectors: ObsConnectorsFn | None,
        action_connectors: ActionConnectorsFn | None,
    ) -> None:
        self._spaces = spaces
        self._obs_connectors, self._action_connectors = obs_connectors, action_connectors
        self._pipelines: dict[PolicyID, Pipeline] = {}
        self._states: dict[PolicyID, Any] = {}
        """The states of pipelines that are not made yet."""

    def of(self, policy: PolicyID, agent: AgentID) -> Pipeline | None:
        """Return the pipeline of a policy, for the spaces of its first agent; None without connectors."""
        if policy not in self._pipelines:
            obs = self._obs_connectors(policy) if self._obs_connectors else ()
            actions = self._action_connectors(policy) if self._action_connectors else ()
            if not obs and not actions:
                return None
            pipeline = self._pipelines[policy] = Pipeline(obs, actions, *self._spaces[agent])
            if policy in self._states:
                pipeline.set_state(self._states.pop(policy))
        return self._pipelines[policy]

    def forget(self, policy: PolicyID) -> None:
        """Remove the pipeline of a policy that is not used any more."""
        self._pipelines.pop(policy, None)

    def get_state(self) -> dict[PolicyID, Any]:
        return self._states | {policy: pipeline.get_state() for policy, pipeline in self._pipelines.items()}

    def set_state(self, states: Mapping[PolicyID, Any]) -> None:
        self._states = dict(states)
        for policy in self._pipelines.keys() & self._states.keys():
            self._pipelines[policy].set_state(self._states.pop(policy))
