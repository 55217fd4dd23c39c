"""Collecting for several policies at once, from host environments in which several agents act."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.distributed import SAME
from rookery.learning.experience import Experience, JointExperience
from rookery.metrics import Mean
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.envs.base_env import AgentID
from rookery.runners.sampling import Sample
from rookery.sample_batch import SampleBatch
from rookery.spaces import Dict
from rookery.types import PyTreeDict
from rookery.workflows.config import TrainConfig
from rookery.workflows.host import HostCollector, blank_experience, mean_of, metrics_of, trajectory_of
from rookery.workflows.policies import agents_of, assign_policies
from rookery.workflows.programs import experience_specs


class MultiPolicyEnvs(HostCollector):
    """Environments with several agents, each of which has one of the policies.

    The rows of a policy lie in as many lanes as it has agents in all environments together. Where fewer are there, or
    an agent acts less often than others, there are rows that hold nothing (`autoreset`).
    """

    obs_space: Dict
    action_space: Dict
    policy_of: Mapping[AgentID, PolicyID]

    def __init__(self, train: TrainConfig, agent: Agent, num_envs: int, rollout_length: int) -> None:
        super().__init__(train, agent, num_envs, rollout_length)
        try:
            self.policy_of = assign_policies(train.env.policies, self.spaces)
        except BaseException:
            self.close()
            raise
        self.policies = list(dict.fromkeys(self.policy_of.values()))
        spaces = {policy: self.spaces[agents_of(policy, self.policy_of)[0]] for policy in self.policies}
        self.obs_space = Dict({policy: obs_space for policy, (obs_space, _) in spaces.items()})
        self.action_space = Dict({policy: action_space for policy, (_, action_space) in spaces.items()})
        self._nothing: JointExperience | None = None
        self._last_episodes: dict[PolicyID, np.ndarray] = {}
        """The number of the episode that each lane was in last."""

    def num_lanes(self, policy: PolicyID) -> int:
        """How many agents have this policy in all environments together."""
        return self.num_envs * len(agents_of(policy, self.policy_of))

    def example(self) -> JointExperience:
        if self._nothing is None:
            experiences = PyTreeDict({policy: self._nothing_of(policy) for policy in self.policies})
            names = [
                "rollout/ep_rew_mean",
                "rollout/ep_len_mean",
                "rollout/staleness",
                *map(_return_name, self.policies),
            ]
            metrics = {name: mean_of([]) for name in names}
            self._nothing = JointExperience(experiences=experiences, metrics=metrics, env_steps=np.int32(0))  # type: ignore[arg-type]
        return self._nothing

    def experience_specs(self) -> JointExperience:
        experiences = PyTreeDict({policy: experience_specs() for policy in self.policies})
        return JointExperience(experiences=experiences, metrics=SAME, env_steps=SAME)  # type: ignore[arg-type]

    def collect(
        self, agent: Agent, agent_state: Mapping[PolicyID, AgentState], rollout_length: int, staleness: int = 0
    ) -> tuple[JointExperience, int]:
        sample = self.sample({policy: (agent, agent_state[policy]) for policy in self.policies}, rollout_length)
        nothing = self.example().experiences
        experience = JointExperience(
            experiences=PyTreeDict(
                {policy: self._experience_of(sample, policy, nothing[policy]) for policy in self.policies}
            ),
            metrics=metrics_of(sample, staleness) | self._returns_of(sample),
            env_steps=np.int32(sample.env_steps),  # type: ignore[arg-type]
        )
        return experience, sample.env_steps

    def close(self) -> None:
        super().close()
        self._last_episodes = {}

    def _nothing_of(self, policy: PolicyID) -> Experience:
        num_columns, rollout_length = self.num_lanes(policy), self._rollout_length
        experience = blank_experience(
            self._agent, self.obs_space[policy], self.action_space[policy], num_columns, rollout_length
        )
        env_extras = experience.trajectory.extras.env_extras
        env_extras.autoreset = np.ones_like(env_extras.autoreset)
        return experience

    def _experience_of(self, sample: Sample, policy: PolicyID, nothing: Experience) -> Experience:
        """Take the rows of a policy out of a sample; lanes in which nobody ever was are filled up."""
        if policy not in sample.batch.batches:
            return nothing
        batch: SampleBatch = sample.batch.batches[policy]
        trajectory = trajectory_of(batch)
        trajectory.extras.env_extras.t = self._times_of(policy, batch)
        num_rows, num_lanes = trajectory.rewards.shape
        shape = nothing.trajectory.rewards.shape
        assert num_rows == shape[0], f"a runner sampled {num_rows} rows for {shape[0]}"
        assert num_lanes <= shape[1], f"a runner sampled {num_lanes} lanes for {shape[1]}"
        experience = Experience(trajectory=trajectory, first_carry=sample.first_carries[policy])
        if num_lanes == shape[1]:
            return experience

        def fill_up(axis: int, tree: Any, nothing: Any) -> Any:
            absent = (slice(None),) * axis + (slice(num_lanes, None),)
            return jax.tree.map(lambda leaf, empty: np.concatenate([leaf, empty[absent]], axis), tree, nothing)

        return experience.replace(
            trajectory=fill_up(1, trajectory, nothing.trajectory),
            first_carry=fill_up(0, experience.first_carry, nothing.first_carry),
        )

    def _times_of(self, policy: PolicyID, batch: SampleBatch) -> np.ndarray:
        """Return the steps of the episodes `[T, lanes]`; 0 in the first row of a lane that is in another episode now.

        An agent may join an episode late, and an env that failed may have begun another one without any row that says
        so: learning is told by this that nothing goes on.
        """
        env_extras = batch.extras.env_extras
        num_rows = np.sum(env_extras.autoreset == 0, axis=0)
        lanes, episodes = np.arange(len(num_rows)), env_extras.episode
        before = np.full(len(num_rows), -1, np.int64)
        known = self._last_episodes.get(policy, before[:0])
        before[: len(known)] = known
        times = env_extras.t.copy()
        times[0, episodes[0] != before] = 0
        last = episodes[np.maximum(num_rows - 1, 0), lanes]
        self._last_episodes[policy] = np.where(num_rows > 0, last, before)
        return times

    def _returns_of(self, sample: Sample) -> dict[str, Mean]:
        """Average over the episodes what all agents of each policy got together."""
        episodes = [episode.agent_returns for episode in sample.episodes if not episode.is_faulty]
        returns = {policy: [0.0] * len(episodes) for policy in self.policies}
        for index, agent_returns in enumerate(episodes):
            for agent, agent_return in agent_returns.items():
                returns[self.policy_of[agent]][index] += agent_return
        return {_return_name(policy): mean_of(values) for policy, values in returns.items()}


def _return_name(policy: PolicyID) -> str:
    return f"{policy}/rollout/ep_rew_mean"
