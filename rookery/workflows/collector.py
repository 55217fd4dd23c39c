"""Collects experience for training from host environments."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError
from rookery.learning.experience import Experience, JointExperience, trajectory_shapes
from rookery.metrics import Mean
from rookery.rollout.source import TRAINING_FIELDS, episode_metrics
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.policy_map import DEFAULT_POLICY, PolicyID
from rookery.runners.acting.roles import TRAIN, RoleID
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.faults import fault_report
from rookery.runners.group import (
    ActingSpec,
    FragmentRequest,
    Reply,
    RunnerFailed,
    RunnerGroup,
    RunnerReport,
    RunnerState,
    check_one_agent,
    merge_columns,
)
from rookery.runners.host_envs import clips_rewards
from rookery.runners.recording.episode import EpisodeMeans
from rookery.runners.sampling import Sample
from rookery.runs.log import SECONDS_AHEAD
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import PyTree, PyTreeDict
from rookery.workflows.programs import experience_specs

FIELDS = (*TRAINING_FIELDS, "t")
"""The entries of `env_extras` that training uses; `t` is the step of the episode."""


def blank_experience(
    agent: Agent, obs_space: Space, action_space: Space, num_columns: int, rollout_length: int
) -> Experience:
    """Make experience of zeros, without metrics."""
    shapes = trajectory_shapes(agent, obs_space, action_space, num_columns, rollout_length)
    floats = shapes.rewards
    integers = jax.ShapeDtypeStruct(floats.shape, np.int32)
    env_extras = dict.fromkeys(FIELDS, floats) | shapes.extras.env_extras | {"steps": integers, "t": integers}
    shapes = shapes.replace(extras=shapes.extras.replace(env_extras=PyTreeDict(env_extras)))
    trajectory = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    first_carry = jax.tree.map(np.asarray, agent.initial_carry((num_columns,)))
    return Experience(trajectory=trajectory, first_carry=first_carry)


class Collector(ABC):
    """Collects experience for training from a group of runners.

    Environments start with the first `collect`. They restart after `close` or `set_state`, because simulators cannot be
    saved.
    """

    obs_space: Space
    action_space: Space
    assignment: Assignment | None = None
    """The policies of the agents; None if there is one agent."""

    def __init__(self, group: RunnerGroup, env: EnvConfig, agent: Agent, num_envs: int, rollout_length: int) -> None:
        self.num_envs = num_envs
        self.group = group
        self._env = env
        self._agent = agent
        self._rollout_length = rollout_length
        self._agents: Mapping[RoleID, Agent] = {TRAIN: agent}
        self._is_started = False
        self._states: list[RunnerState] = []
        """The last state of each runner."""
        self._reports: dict[int, RunnerReport] = {}
        """The last report of each runner since the group was started."""
        self._counts: Counter[str] = Counter()
        """The counts before the group was started."""
        self._means = EpisodeMeans()
        """Of the episodes since the last record."""
        self.seconds_ahead = 0.0
        """With `overlap`, the collecting time of `steps_ahead`."""
        self.steps_ahead = 0
        """With `overlap`, the number of env steps that are collected but not yet learned from."""
        self.spaces = group.describe().spaces
        self._clips_rewards = clips_rewards(env)

    @property
    def env_name(self) -> str:
        return self._env.name

    def set_agents(self, agents: Mapping[RoleID, Agent]) -> None:
        """Set the agents by role. Call it before the first step."""
        self._agents = agents

    @abstractmethod
    def example(self) -> Experience | JointExperience:
        """Make experience of zeros with the shapes of collected experience."""

    @abstractmethod
    def experience_specs(self) -> Experience | JointExperience:
        """Return the partition specs of experience."""

    @abstractmethod
    def collect(
        self, role: RoleID, agent_state: PyTree, rollout_length: int, staleness: int = 0
    ) -> tuple[Experience | JointExperience, int]:
        """Act in all environments for `rollout_length` steps; return the experience and its number of env steps."""

    def sample(self, role: RoleID, agent_states: Mapping[PolicyID, AgentState], rollout_length: int) -> list[Sample]:
        """Act with the agents of a role for `rollout_length` steps of each env; return the sample of each runner."""
        self._start()
        request = FragmentRequest(role, agent_states, rollout_length)
        for index in range(self.group.num_runners):
            self.group.send(index, request)
        replies: dict[int, Reply] = {}
        while len(replies) < self.group.num_runners:
            replies |= self.group.receive()
        self._reports |= {index: reply.report for index, reply in replies.items()}
        self._states = [self._reports[index].state for index in range(self.group.num_runners)]
        samples = [sample_of(replies[index]) for index in range(self.group.num_runners)]
        for sample in samples:
            for episode in sample.episodes:
                self._means.add(episode.metrics)
        return list(map(with_clipped_rewards, samples)) if self._clips_rewards else samples

    def discard(self, num_steps: int) -> None:
        """Count env steps that were collected and are discarded."""
        self._counts["steps_discarded"] += num_steps

    def report(self) -> dict[str, float]:
        """Return fault counts, the time of each phase of a step, and episode metrics since the last call."""
        reports = list(self._reports.values())
        report = fault_report(self._counted(), sum(report.num_lost_envs for report in reports))
        report |= {f"rollout/{name}": mean for name, mean in self._means.take().items()}
        if self._env.runner.overlap:
            report[SECONDS_AHEAD] = self.seconds_ahead
        phases = reports[0].milliseconds if reports else ()
        return report | {
            f"time/{phase}_ms": float(np.mean([report.milliseconds[phase] for report in reports])) for phase in phases
        }

    def get_state(self) -> dict[str, Any]:
        """Return runner states and counts as JSON data; a resumed run discards the steps ahead."""
        return {
            "runners": jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), self._states),
            "counts": self._counted() + Counter(steps_discarded=self.steps_ahead),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from `get_state`, with new episodes."""
        if self._is_started:
            self.close()
        self._states = state["runners"]
        self.steps_ahead, self.seconds_ahead = 0, 0.0
        self._counts = Counter(state["counts"])

    def describe_restart(self) -> str:
        return f"{self.env_name} restarts with new episodes and new seeds: simulator state is not checkpointed"

    def close(self) -> None:
        """Close the environments. May be called twice."""
        self.group.close()
        self._counts, self._reports = self._counted(), {}
        self._is_started = False

    def _start(self) -> None:
        if not self._is_started:
            self.group.start(ActingSpec(self._agents, self.assignment), self._states)
            self._is_started = True

    def _counted(self) -> Counter[str]:
        counts = Counter(self._counts)
        for report in self._reports.values():
            counts.update(report.counts)
        return counts


class SingleAgentCollector(Collector):
    """Collects from environments with one agent."""

    def __init__(self, group: RunnerGroup, env: EnvConfig, agent: Agent, num_envs: int, rollout_length: int) -> None:
        super().__init__(group, env, agent, num_envs, rollout_length)
        check_one_agent(env, group.describe())
        self.obs_space, self.action_space = self.spaces[SINGLE_AGENT]

    def example(self) -> Experience:
        experience = blank_experience(
            self._agent, self.obs_space, self.action_space, self.num_envs, self._rollout_length
        )
        return experience.replace(
            metrics=episode_metrics(mean_of([]), mean_of([])) | {"rollout/staleness": mean_of([])}
        )

    def experience_specs(self) -> Experience:
        return experience_specs()

    def collect(
        self, role: RoleID, agent_state: AgentState, rollout_length: int, staleness: int = 0
    ) -> tuple[Experience, int]:
        samples = self.sample(role, {DEFAULT_POLICY: agent_state}, rollout_length)
        trajectory, first_carry = merge_columns(
            [(sample.batch.batches[DEFAULT_POLICY], sample.first_carries[DEFAULT_POLICY]) for sample in samples]
        )
        experience = Experience(
            trajectory=trajectory_of(trajectory), first_carry=first_carry, metrics=metrics_of(samples, staleness)
        )
        shape = experience.trajectory.rewards.shape
        assert shape == (rollout_length, self.num_envs), f"runners sampled {shape} rows and columns"
        return experience, sum(sample.env_steps for sample in samples)


def sample_of(reply: Reply) -> Sample:
    """Return the sample of a reply; raise the error of a runner that failed."""
    if isinstance(reply, RunnerFailed):
        raise reply.error()
    return reply.sample


def check_not_traced(env_name: str, tree: PyTree) -> None:
    """Raise if the tree has tracers: host environments cannot be stepped inside a compiled program."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        raise InvalidInputError(
            f"{env_name} is on the host: a step of training on it cannot be part of a compiled program."
        )


def trajectory_of(batch: SampleBatch) -> SampleBatch:
    """Return the fields of a policy's rows that training uses."""
    env_extras = {name: batch.extras.env_extras[name] for name in FIELDS}
    return batch.replace(next_obs=None, extras=batch.extras.replace(env_extras=PyTreeDict(env_extras)))


def with_clipped_rewards(sample: Sample) -> Sample:
    """Replace rewards by their signs for training (Mnih et al., 2015); episode returns stay unclipped."""
    clipped = {policy: batch.replace(rewards=np.sign(batch.rewards)) for policy, batch in sample.batch.batches.items()}
    return replace(sample, batch=sample.batch.replace(batches=PyTreeDict(clipped)))


def metrics_of(samples: Sequence[Sample], staleness: int) -> dict[str, Mean]:
    """Return the mean return and the mean length of the episodes that did not fail."""
    episodes = [episode for sample in samples for episode in sample.episodes if not episode.is_faulty]
    returns = mean_of([episode.episode_return for episode in episodes])
    lengths = mean_of([episode.episode_length for episode in episodes])
    return episode_metrics(returns, lengths) | {"rollout/staleness": mean_of([staleness])}


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of Python or NumPy numbers."""
    return Mean(total=np.float32(np.sum(values)), weight=np.float32(len(values)))  # type: ignore[arg-type]
