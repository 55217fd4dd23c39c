"""Evaluation of several policies together, on host environments in which several agents act."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.metrics import EvaluateMetric
from rookery.runners.acting.policy_map import Actor, PolicyID
from rookery.runners.envs.base_env import Actions, AgentID, End, EnvOutputs
from rookery.types import Array, PyTreeDict
from rookery.workflows.config import TrainConfig
from rookery.workflows.host import on_one_device
from rookery.workflows.host_evaluator import EpisodePlayer
from rookery.workflows.policies import agents_of


class MultiPolicyEvaluateMetric(EvaluateMetric):
    """`episode_returns` are those of all agents together; `policy_returns` those of the agents of each policy."""

    policy_returns: PyTreeDict


class MultiPolicyEvaluator(EpisodePlayer):
    """Plays with all policies at once; their states are given by policy."""

    def __init__(self, train: TrainConfig, agent: Agent, num_envs: int, policy_of: Mapping[AgentID, PolicyID]) -> None:
        super().__init__(train, num_envs)
        self.policies = list(dict.fromkeys(policy_of.values()))
        self.num_policies = len(self.policies)
        self._policy_of = policy_of
        self._agents = {policy: agents_of(policy, policy_of) for policy in self.policies}
        self._actors = {policy: Actor(agent, jax.random.key(0), explore=False) for policy in self.policies}
        self._acted: list[set[AgentID]] = []
        """Who has acted in the episode of each env."""

    def begin(self, agent_state: Mapping[PolicyID, AgentState], num_envs: int) -> None:
        for policy, actor in self._actors.items():
            actor.set_state(on_one_device(agent_state[policy]))
            actor.reserve(num_envs * len(self._agents[policy]))
        self._acted = [set() for _ in range(num_envs)]

    def act(self, polled: EnvOutputs) -> Actions:
        assert polled.agents is not None, "envs with several agents tell of each by name"
        for env in polled.resets:
            self._acted[env].clear()
        going_on = {*map(int, polled.resets), *map(int, polled.stepped)} - set(polled.over)
        waiting: dict[PolicyID, list[int]] = {}
        for row, (env, agent) in enumerate(zip(polled.envs.tolist(), polled.agents, strict=True)):
            if env in going_on and polled.ends[row] == End.RUNNING and polled.obs[row] is not None:
                waiting.setdefault(self._policy_of[agent], []).append(row)
        actions, agents, row_envs = [], [], []
        for policy, rows in waiting.items():
            envs, whose = polled.envs[rows].tolist(), [polled.agents[row] for row in rows]
            obs = jax.tree.map(lambda *leaves: np.stack(leaves), *(polled.obs[row] for row in rows))
            mates = self._agents[policy]
            lanes = np.array([env * len(mates) + mates.index(agent) for env, agent in zip(envs, whose, strict=True)])
            starts = np.array([agent not in self._acted[env] for env, agent in zip(envs, whose, strict=True)])
            acts = self._actors[policy].act(obs, len(rows), lanes, starts)
            actions += [jax.tree.map(lambda leaf, row=row: leaf[row], acts.actions) for row in range(len(rows))]
            agents += whose
            row_envs += envs
        for env, agent in zip(row_envs, agents, strict=True):
            self._acted[env].add(agent)
        return Actions(np.array(sorted(going_on), np.int64), actions, agents, np.array(row_envs, np.int64))

    def policies_of(self, polled: EnvOutputs) -> np.ndarray:
        assert polled.agents is not None, "envs with several agents tell of each by name"
        return np.array([self.policies.index(self._policy_of[agent]) for agent in polled.agents], np.int64)

    def result_of(self, returns: np.ndarray, lengths: np.ndarray) -> MultiPolicyEvaluateMetric:
        def as_array(numbers: np.ndarray) -> Array:
            return jnp.asarray(numbers, jnp.float32)

        by_policy = {policy: as_array(returns[:, index]) for index, policy in enumerate(self.policies)}
        return MultiPolicyEvaluateMetric(
            episode_returns=as_array(returns.sum(axis=1)),
            episode_lengths=jnp.asarray(lengths),
            policy_returns=PyTreeDict(by_policy),
        )
