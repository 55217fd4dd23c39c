"""Collecting experience from host environments for training."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from rookery.agent import Agent, AgentState, Carry
from rookery.errors import InvalidInputError
from rookery.learning.experience import Experience, trajectory_shapes
from rookery.metrics import Mean
from rookery.rollout.source import TRAINING_FIELDS, episode_metrics
from rookery.runners.acting.actor import on_one_device
from rookery.runners.acting.policy_map import DEFAULT_POLICY, PolicyID
from rookery.runners.callbacks import FaultNotices
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID, BaseEnv
from rookery.runners.faults import fault_report
from rookery.runners.health import RestartPolicy
from rookery.runners.host_envs import check_one_agent, check_one_host, host_library, make_envs
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import RunnerConfig, Sample
from rookery.runs.log import SECONDS_AHEAD
from rookery.sample_batch import SampleBatch
from rookery.spaces import Shape, Space
from rookery.types import Key, PyTreeData, PyTreeDict, pytree_field
from rookery.workflows.config import TrainConfig
from rookery.workflows.programs import experience_specs

FIELDS = (*TRAINING_FIELDS, "t")
"""The entries of `env_extras` that training looks at; `t` is the step of the episode in which an action was taken."""
PERF_DECAY = 0.99
"""How fast the milliseconds of a runner's step forget: the first one, which compiles, would spoil a mean for long."""


def blank_experience(
    agent: Agent, obs_space: Space, action_space: Space, num_columns: int, rollout_length: int
) -> Experience:
    """Make experience in which nothing happened, without metrics, of the shapes that all experience has."""
    shapes = trajectory_shapes(agent, obs_space, action_space, num_columns, rollout_length)
    floats = shapes.rewards
    integers = jax.ShapeDtypeStruct(floats.shape, np.int32)
    env_extras = dict.fromkeys(FIELDS, floats) | shapes.extras.env_extras | {"steps": integers, "t": integers}
    shapes = shapes.replace(extras=shapes.extras.replace(env_extras=PyTreeDict(env_extras)))
    trajectory = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    first_carry = jax.tree.map(np.asarray, agent.initial_carry((num_columns,)))
    return Experience(trajectory=trajectory, first_carry=first_carry)


class Role(PyTreeData):
    """Which agent acts, and with what."""

    agent: Agent = pytree_field(static=True)
    agent_state: AgentState


class Player(Agent):
    """Acts as the agent that its state names, so that within an episode another one can take over."""

    agent: Agent

    def init(self, obs_space: Space, action_space: Space, key: Key) -> Any:
        return Role(agent=self.agent, agent_state=self.agent.init(obs_space, action_space, key))

    def compute_actions(self, agent_state: Any, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return agent_state.agent.compute_actions(agent_state.agent_state, sample_batch, key)

    def evaluate_actions(self, agent_state: Any, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return agent_state.agent.evaluate_actions(agent_state.agent_state, sample_batch, key)

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        return self.agent.initial_carry(batch_shape)


class HostCollector(ABC):
    """The environments that a workflow trains on, and the runner that collects from them.

    Their episodes start when they are needed, and anew after `close` or `set_state`: simulators cannot be saved.
    """

    obs_space: Space
    action_space: Space
    policy_of: Mapping[AgentID, PolicyID] | None = None
    """The policy of each agent; None where there is one agent."""

    def __init__(self, train: TrainConfig, agent: Agent, num_envs: int, rollout_length: int) -> None:
        self.num_envs = num_envs
        self._train = train
        self._agent = agent
        self._rollout_length = rollout_length
        check_one_host(train.env)
        self._base_env: BaseEnv | None = make_envs(train.env, num_envs)
        self._runner: EnvRunner | None = None
        self._runner_state: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()
        """What runners before the present one counted."""
        self._told: dict[str, Mean] = {}
        """What environments and callbacks told of the episodes that ended since the last record."""
        self._fault_notices = FaultNotices()
        self.seconds_ahead = 0.0
        """How long it took to collect the steps that no state has seen yet, with `overlap`."""
        self.spaces = self._base_env.spaces
        self._clips_rewards = host_library(train.env).clips_rewards(train.env.kwargs)

    @property
    def env_name(self) -> str:
        return self._train.env.name

    @abstractmethod
    def example(self) -> Any:
        """Make experience in which nothing happened, of the shapes that all experience has."""

    @abstractmethod
    def experience_specs(self) -> Any:
        """Return how experience is split over the devices."""

    @abstractmethod
    def collect(self, agent: Agent, agent_state: Any, rollout_length: int, staleness: int = 0) -> tuple[Any, int]:
        """Act in all environments for `rollout_length` steps; return the experience and its env steps."""

    def sample(self, agents: Mapping[PolicyID, tuple[Agent, AgentState]], rollout_length: int) -> Sample:
        """Let agents act for their policies, for so many steps of each environment."""
        check_not_traced(self._train.env.name, dict(agents))
        runner = self._running()
        roles: Any = {
            policy: Role(agent=agent, agent_state=on_one_device(state)) for policy, (agent, state) in agents.items()
        }
        runner.set_agent_states(roles)
        if rollout_length == self._rollout_length:
            sample = runner.sample()
        else:
            sample = runner.sample(num_steps=rollout_length * self.num_envs)
        for episode in sample.episodes:
            for name, value in episode.metrics.items():
                self._told[name] = jax.tree.map(np.add, self._told.get(name, mean_of([])), mean_of([value]))
        return with_clipped_rewards(sample) if self._clips_rewards else sample

    def discard(self, num_steps: int) -> None:
        """Count steps that were collected and are not learned from."""
        self._counts["steps_discarded"] += num_steps

    def pop_episode_metrics(self) -> dict[str, float]:
        """Average what was told of the episodes since this was last called, such as `rollout/game_return` of Atari."""
        told, self._told = self._told, {}
        return {f"rollout/{name}": float(mean.value) for name, mean in told.items()}

    def report(self) -> dict[str, float]:
        """What a record tells of the environments: faults, lost steps, and the milliseconds of a runner's step."""
        report = fault_report(self._counted(), 0 if self._runner is None else self._runner.num_lost_envs)
        phases = {} if self._runner is None else self._runner.perf.milliseconds()
        if self._train.env.runner.overlap:
            report[SECONDS_AHEAD] = self.seconds_ahead
        return report | {f"time/{phase}_ms": milliseconds for phase, milliseconds in phases.items()}

    def get_state(self, steps_ahead: int = 0) -> dict[str, Any]:
        """Return all but the simulators, as JSON can hold it.

        `steps_ahead` were collected for training that goes on: one that goes on from here will discard them.
        """
        runner_state = self._runner_state if self._runner is None else self._runner.get_state()
        return {
            "runner": jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), runner_state),
            "counts": self._counted() + Counter(steps_discarded=steps_ahead),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `get_state`, with environments that start anew."""
        if self._runner is not None:
            self.close()
        self._runner_state, self._counts = state["runner"], Counter(state["counts"])

    def close(self) -> None:
        """Close the environments; calling it twice does no harm."""
        if self._base_env is not None:
            self._runner_state, self._counts = self.get_state()["runner"], self._counted()
            self._base_env.close()
        self._base_env = self._runner = None

    def _counted(self) -> Counter[str]:
        counts = Counter(self._counts)
        if self._runner is not None:
            counts.update(self._runner.fault_counts)
            counts["steps_discarded"] += self._runner.ledger.env_steps.discarded
        return counts

    def _running(self) -> EnvRunner:
        if self._runner is None:
            settings = self._train.env.runner
            config = RunnerConfig(
                rollout_fragment_length=self._rollout_length,
                on_invalid=settings.on_invalid,
                restart=RestartPolicy(max_restarts=settings.max_restarts),
                perf_decay=PERF_DECAY,
            )
            self._base_env = self._base_env or make_envs(self._train.env, self.num_envs)
            policy_of, mapping_fn = self.policy_of, None
            if policy_of is not None:
                mapping_fn = lambda agent, episode: policy_of[agent]  # noqa: E731
            names = [DEFAULT_POLICY] if policy_of is None else dict.fromkeys(policy_of.values())
            players = {policy: Player(agent=self._agent) for policy in names}
            self._runner = EnvRunner(
                self._base_env, players, mapping_fn, config, callbacks=self._fault_notices, seed=self._train.seed
            )
            if self._runner_state:
                self._runner.set_state(self._runner_state)
        return self._runner


class HostEnvs(HostCollector):
    """Environments with one agent."""

    def __init__(self, train: TrainConfig, agent: Agent, num_envs: int, rollout_length: int) -> None:
        super().__init__(train, agent, num_envs, rollout_length)
        assert self._base_env is not None, "it has just been made"
        check_one_agent(train.env, self._base_env)
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
        self, agent: Agent, agent_state: AgentState, rollout_length: int, staleness: int = 0
    ) -> tuple[Experience, int]:
        sample = self.sample({DEFAULT_POLICY: (agent, agent_state)}, rollout_length)
        experience = Experience(
            trajectory=trajectory_of(sample.batch.batches[DEFAULT_POLICY]),
            first_carry=sample.first_carries[DEFAULT_POLICY],
            metrics=metrics_of(sample, staleness),
        )
        shape = experience.trajectory.rewards.shape
        assert shape == (rollout_length, self.num_envs), f"a runner sampled {shape} rows and columns"
        return experience, sample.env_steps


def check_not_traced(env_name: str, tree: Any) -> None:
    """Raise if what is to be played with is not there yet, but part of a program that is being compiled."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        raise InvalidInputError(
            f"{env_name} is on the host: a step of training on it cannot be part of a compiled program."
        )


def trajectory_of(batch: SampleBatch) -> SampleBatch:
    """Leave out of the rows of a policy what training does not look at."""
    env_extras = {name: batch.extras.env_extras[name] for name in FIELDS}
    return batch.replace(next_obs=None, extras=batch.extras.replace(env_extras=PyTreeDict(env_extras)))


def with_clipped_rewards(sample: Sample) -> Sample:
    """Replace the rewards to learn from by their signs (Mnih et al., 2015); the figures of the episodes stay raw."""
    clipped = {policy: batch.replace(rewards=np.sign(batch.rewards)) for policy, batch in sample.batch.batches.items()}
    return replace(sample, batch=sample.batch.replace(batches=PyTreeDict(clipped)))


def metrics_of(sample: Sample, staleness: int) -> dict[str, Mean]:
    """Say what became of the episodes of a sample; those that failed are not averaged in."""
    episodes = [episode for episode in sample.episodes if not episode.is_faulty]
    returns = mean_of([episode.episode_return for episode in episodes])
    lengths = mean_of([episode.episode_length for episode in episodes])
    return episode_metrics(returns, lengths) | {"rollout/staleness": mean_of([staleness])}


def mean_of(values: list[Any]) -> Mean:
    """Average numbers of the host."""
    total: Any = np.float32(np.sum(values))
    weight: Any = np.float32(len(values))
    return Mean(total=total, weight=weight)
