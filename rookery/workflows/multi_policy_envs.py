"""Collecting for several policies at once, from host environments in which several agents act."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.metrics import Mean
from rookery.rollout import Experience
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.envs.base_env import AgentID
from rookery.runners.sampling import Sample
from rookery.sample_batch import SampleBatch
from rookery.types import Array, PyTreeData, PyTreeDict
from rookery.workflows.config import TrainConfig
from rookery.workflows.host import HostCollector, HostSource, mean_of, metrics_of, trajectory_of
from rookery.workflows.policies import agents_of, assign_policies


class JointExperience(PyTreeData):
    """What all policies experienced in the same steps of the environments, and how many steps these were."""

    experiences: PyTreeDict
    """An `Experience` for each policy, without metrics."""
    metrics: dict[str, Mean]
    env_steps: Array


class MultiPolicyEnvs(HostCollector):
    """Environments with several agents, each of which has one of the policies.

    The rows of a policy lie in as many lanes as it has agents in all environments together. Where fewer are there, or
    an agent acts less often than others, there are rows that hold nothing (`autoreset`).
    """

    policy_of: Mapping[AgentID, PolicyID]

    def __init__(self, train: TrainConfig, agent: Agent, num_envs: int, rollout_length: int) -> None:
        super().__init__(train, agent, num_envs, rollout_length)
        try:
            self.policy_of = assign_policies(train.env.policies, self.spaces)
        except BaseException:
            self.close()
            raise
        self.policies = list(dict.fromkeys(self.policy_of.values()))
        self._nothing: JointExperience | None = None
        self._last_episodes: dict[PolicyID, np.ndarray] = {}
        """The number of the episode that each lane was in last."""

    def num_lanes(self, policy: PolicyID) -> int:
        """How many agents have this policy in all environments together."""
        return self.num_envs * len(agents_of(policy, self.policy_of))

    def make_source(self, policy: PolicyID, num_lanes: int) -> HostSource:
        """Make the source of one policy, for one device's share of the lanes."""
        obs_space, action_space = self.spaces[agents_of(policy, self.policy_of)[0]]
        return HostSource(
            agent=self._agent,
            obs_space=obs_space,
            action_space=action_space,
            num_envs=num_lanes,
            rollout_length=self._rollout_length,
        )

    def example(self, source: Mapping[PolicyID, HostSource]) -> JointExperience:
        if self._nothing is None:
            experiences = PyTreeDict({policy: self._nothing_of(policy, of_one) for policy, of_one in source.items()})
            names = ["rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/staleness", *map(_return_name, source)]
            metrics = {name: mean_of([]) for name in names}
            self._nothing = JointExperience(experiences=experiences, metrics=metrics, env_steps=jnp.int32(0))
        return self._nothing

    def collect(
        self, source: Mapping[PolicyID, HostSource], agent_state: Mapping[PolicyID, AgentState], staleness: int = 0
    ) -> tuple[JointExperience, int]:
        agents = {policy: (of_one.agent, agent_state[policy]) for policy, of_one in source.items()}
        sample = self.sample(agents, self._rollout_length)
        nothing = self.example(source).experiences
        experience = JointExperience(
            experiences=PyTreeDict({policy: self._experience_of(sample, policy, nothing[policy]) for policy in source}),
            metrics=metrics_of(sample, staleness) | self._returns_of(sample),
            env_steps=np.int32(sample.env_steps),  # type: ignore[arg-type]
        )
        return experience, sample.env_steps

    def close(self) -> None:
        super().close()
        self._last_episodes = {}

    def _nothing_of(self, policy: PolicyID, source: HostSource) -> Experience:
        experience = source.replace(num_envs=self.num_lanes(policy)).init(jax.random.key(0)[None])
        experience = jax.tree.map(np.asarray, experience.replace(metrics={}))
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
