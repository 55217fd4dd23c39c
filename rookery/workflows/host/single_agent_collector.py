"""Collects experience from host environments with one agent."""

import time
from collections.abc import Callable, Mapping

from rookery.agent import Agent, AgentState
from rookery.envs.config import EnvConfig
from rookery.learning.experience import Experience
from rookery.metrics import Mean
from rookery.rollout.source import episode_metrics
from rookery.runners.acting.policy_map import DEFAULT_POLICY, PolicyID
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.groups.group import RunnerGroup, check_one_agent, merge_columns
from rookery.runners.sampling import Sample
from rookery.workflows.host.collector import Collector, RoundSettings, blank_experience, mean_of, metrics_of
from rookery.workflows.host.external import without_origin
from rookery.workflows.programs import experience_specs


class SingleAgentCollector(Collector):
    """Collects from environments with one agent."""

    def __init__(
        self,
        group: RunnerGroup,
        env: EnvConfig,
        agent: Agent,
        num_envs: int,
        rollout_length: int,
        settings: RoundSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(group, env, agent, num_envs, rollout_length, settings, clock)
        check_one_agent(env, group.describe())
        self.obs_space, self.action_space = self.spaces[SINGLE_AGENT]
        self._nothing = self._blank(num_envs // group.num_runners)

    def example(self) -> Experience:
        return self._blank(self.num_envs).replace(
            metrics=episode_metrics(mean_of([]), mean_of([])) | {"rollout/staleness": mean_of([])}
        )

    def experience_specs(self) -> Experience:
        return experience_specs()

    def by_policy(self, agent_state: AgentState) -> Mapping[PolicyID, AgentState]:
        return {DEFAULT_POLICY: agent_state}

    def merge(self, samples: Mapping[int, Sample], staleness: Mean) -> Experience:
        nothing = self._nothing.trajectory, self._nothing.first_carry
        samples = {index: without_origin(sample) for index, sample in samples.items()}
        trajectory, first_carry = merge_columns(
            [
                (samples[index].batch.batches[DEFAULT_POLICY], samples[index].first_carries[DEFAULT_POLICY])
                if index in samples
                else nothing
                for index in range(self.group.num_runners)
            ]
        )
        shape = trajectory.rewards.shape
        assert shape == (self._rollout_length, self.num_envs), f"runners sampled {shape} rows and columns"
        metrics = metrics_of(samples.values()) | {"rollout/staleness": staleness}
        return Experience(trajectory=trajectory, first_carry=first_carry, metrics=metrics)

    def _blank(self, num_columns: int) -> Experience:
        return blank_experience(self._agent, self.obs_space, self.action_space, num_columns, self._rollout_length)
