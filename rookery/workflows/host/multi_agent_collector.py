"""Collects experience for several policies from multi-agent host environments."""

from collections.abc import Iterable, Mapping

import jax
import numpy as np

from rookery.agent import Agent, AgentState, Carry
from rookery.distributed import SAME
from rookery.envs.config import EnvConfig
from rookery.learning.experience import Experience, JointExperience
from rookery.metrics import Mean
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.groups.group import RunnerGroup, merge_columns
from rookery.runners.sampling import Sample
from rookery.sample_batch import SampleBatch
from rookery.spaces import Dict
from rookery.types import PyTreeDict, Tree
from rookery.workflows.host.collector import FIELDS, Collector, RoundSettings, blank_experience, mean_of, metrics_of
from rookery.workflows.programs import experience_specs, specs_of


class MultiAgentCollector(Collector):
    """Collects from environments with several agents; each agent has one of the policies in an episode.

    A trained policy has one column for each agent that may have it, in each environment. Columns of agents that are
    absent, act less often or have another policy have dead rows (`autoreset`). Rows of frozen policies are left out.
    """

    obs_space: Dict
    action_space: Dict
    assignment: Assignment

    def __init__(
        self,
        group: RunnerGroup,
        env: EnvConfig,
        agent: Agent,
        num_envs: int,
        rollout_length: int,
        assignment: Assignment,
        settings: RoundSettings | None = None,
    ) -> None:
        super().__init__(group, env, agent, num_envs, rollout_length, settings)
        self.assignment = assignment
        self.policies = assignment.trained
        spaces = {policy: self.spaces[assignment.agents_of(name)[0]] for policy, name in assignment.name_of.items()}
        self.obs_space = Dict({policy: obs_space for policy, (obs_space, _) in spaces.items()})
        self.action_space = Dict({policy: action_space for policy, (_, action_space) in spaces.items()})
        self._nothing: JointExperience | None = None
        self._last_episodes: dict[tuple[int, PolicyID], np.ndarray] = {}
        """The last episode number of each column, by runner and policy."""

    def num_columns(self, policy: PolicyID) -> int:
        """Return the number of agents that may have this policy in all environments."""
        return self.num_envs * len(self.assignment.agents_of(policy))

    def example(self) -> JointExperience:
        if self._nothing is None:
            experiences = PyTreeDict({policy: self._nothing_of(policy) for policy in self.policies})
            names = [
                "rollout/ep_rew_mean",
                "rollout/ep_len_mean",
                "rollout/staleness",
                *map(_return_name, self.assignment.names),
            ]
            metrics = {name: mean_of([]) for name in names}
            self._nothing = JointExperience(experiences=experiences, metrics=metrics, env_steps=np.int32(0))  # type: ignore[arg-type]
        return self._nothing

    def experience_specs(self) -> JointExperience:
        experiences = PyTreeDict({policy: experience_specs() for policy in self.policies})
        return specs_of(JointExperience, experiences=experiences, metrics=SAME, env_steps=SAME)

    def by_policy(self, agent_state: Mapping[PolicyID, AgentState]) -> Mapping[PolicyID, AgentState]:
        return agent_state

    def merge(self, samples: Mapping[int, Sample], staleness: Mean) -> JointExperience:
        metrics = metrics_of(samples.values()) | self._returns_of(samples.values())
        return JointExperience(
            experiences=PyTreeDict({policy: self._experience_of(samples, policy) for policy in self.policies}),
            metrics=metrics | {"rollout/staleness": staleness},
            env_steps=np.int32(sum(sample.env_steps for sample in samples.values())),  # type: ignore[arg-type]
        )

    def close(self) -> None:
        super().close()
        self._last_episodes = {}

    def _nothing_of(self, policy: PolicyID) -> Experience:
        num_columns, rollout_length = self.num_columns(policy), self._rollout_length
        return blank_experience(
            self._agent, self.obs_space[policy], self.action_space[policy], num_columns, rollout_length
        )

    def _experience_of(self, samples: Mapping[int, Sample], policy: PolicyID) -> Experience:
        """Merge the rows of a policy in the samples of all runners."""
        nothing = self.example().experiences[policy]
        parts = [self._part_of(index, samples.get(index), policy, nothing) for index in range(self.group.num_runners)]
        trajectory, first_carry = merge_columns(parts)
        return Experience(trajectory=trajectory, first_carry=first_carry)

    def _part_of(
        self, runner: int, sample: Sample | None, policy: PolicyID, nothing: Experience
    ) -> tuple[SampleBatch, Carry]:
        """Return the rows of a policy in one sample; columns without an agent have dead rows."""
        num_rows, num_columns = nothing.trajectory.rewards.shape
        num_columns //= self.group.num_runners
        nothing_here = _columns(nothing.trajectory, 1, 0, num_columns), _columns(nothing.first_carry, 0, 0, num_columns)
        if sample is None or policy not in sample.batch.batches:
            return nothing_here
        batch: SampleBatch = sample.batch.batches[policy]
        env_extras = {name: batch.extras.env_extras[name] for name in FIELDS}
        env_extras["t"] = self._times_of(runner, policy, batch)
        trajectory = batch.replace(extras=batch.extras.replace(env_extras=PyTreeDict(env_extras)))
        first_carry = sample.first_carries[policy]
        num_sampled = trajectory.rewards.shape[1]
        assert len(trajectory.rewards) == num_rows, f"a runner sampled {len(trajectory.rewards)} rows for {num_rows}"
        assert num_sampled <= num_columns, f"a runner sampled {num_sampled} columns for {num_columns}"
        if num_sampled == num_columns:
            return trajectory, first_carry
        absent = _columns(nothing_here[0], 1, num_sampled), _columns(nothing_here[1], 0, num_sampled)
        return merge_columns([(trajectory, first_carry), absent])

    def _times_of(self, runner: int, policy: PolicyID, batch: SampleBatch) -> np.ndarray:
        """Return the episode step `[T, columns]` of each row, with 0 in the first row of a column in a new episode.

        An agent may join an episode late, and a failed env may start an episode without a row that marks it. The 0
        marks that the column does not continue the previous trajectory.
        """
        env_extras = batch.extras.env_extras
        num_rows = np.sum(env_extras.autoreset == 0, axis=0)
        columns, episodes = np.arange(len(num_rows)), env_extras.episode
        before = np.full(len(num_rows), -1, np.int64)
        known = self._last_episodes.get((runner, policy), before[:0])
        before[: len(known)] = known
        times = env_extras.t.copy()
        times[0, episodes[0] != before] = 0
        last = episodes[np.maximum(num_rows - 1, 0), columns]
        self._last_episodes[runner, policy] = np.where(num_rows > 0, last, before)
        return times

    def _returns_of(self, samples: Iterable[Sample]) -> dict[str, Mean]:
        """Return the mean return of each policy, summed over its agents, in the episodes in which it acted."""
        finished = [episode for sample in samples for episode in sample.episodes if episode.is_finished]
        returns: dict[PolicyID, list[float]] = {name: [] for name in self.assignment.names}
        for episode in finished:
            totals: dict[PolicyID, float] = {}
            for agent, policy in episode.policies.items():
                name = self.assignment.name_of[policy]
                totals[name] = totals.get(name, 0.0) + episode.agent_returns[agent]
            for name, total in totals.items():
                returns[name].append(total)
        return {_return_name(name): mean_of(values) for name, values in returns.items()}


def _columns(tree: Tree, axis: int, start: int, stop: int | None = None) -> Tree:
    """Return some columns of a tree of arrays."""
    index = (slice(None),) * axis + (slice(start, stop),)
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _return_name(policy: PolicyID) -> str:
    return f"{policy}/rollout/ep_rew_mean"
