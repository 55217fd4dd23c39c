"""Collects experience for training from host environments."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError, RookeryError
from rookery.evaluators.evaluation_player import EvaluationSpec, joined
from rookery.learning.experience import Experience, JointExperience, trajectory_shapes
from rookery.metrics import Mean
from rookery.rollout.source import TRAINING_FIELDS, episode_metrics
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.acting.roles import TRAIN, RoleID
from rookery.runners.callbacks import FaultNotices
from rookery.runners.envs.base_env import End
from rookery.runners.faults import FaultKind, fault_report
from rookery.runners.groups.counts import GroupCounts
from rookery.runners.groups.episodes import Evaluated, EvaluationRequest
from rookery.runners.groups.evaluations import EpisodeDeal
from rookery.runners.groups.group import (
    PATIENCE,
    ActingSpec,
    Delivery,
    FragmentRequest,
    Ready,
    Reply,
    RunnerFailed,
    RunnerGroup,
    RunnerReport,
)
from rookery.runners.groups.jobs import default_chunk_size
from rookery.runners.groups.rounds import Rounds
from rookery.runners.groups.slots import SlotStatus
from rookery.runners.groups.starts import RunnerStarts
from rookery.runners.groups.supervision import Supervisor
from rookery.runners.recording.episode import EpisodeMeans, EpisodeMetric
from rookery.runners.sampling import Sample
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import PyTree, PyTreeDict
from rookery.workflows.host.external import ages_of, num_logged

FIELDS = (*TRAINING_FIELDS, "t")
"""The entries of `env_extras` that training uses; `t` is the step of the episode."""


def blank_experience(
    agent: Agent, obs_space: Space, action_space: Space, num_columns: int, rollout_length: int
) -> Experience:
    """Make experience of dead rows, without metrics."""
    shapes = trajectory_shapes(agent, obs_space, action_space, num_columns, rollout_length)
    floats = shapes.rewards
    integers = jax.ShapeDtypeStruct(floats.shape, np.int32)
    env_extras = dict.fromkeys(FIELDS, floats) | shapes.extras.env_extras | {"steps": integers, "t": integers}
    shapes = shapes.replace(extras=shapes.extras.replace(env_extras=PyTreeDict(env_extras)))
    trajectory = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    trajectory.extras.env_extras.autoreset[:] = 1.0
    first_carry = jax.tree.map(np.asarray, agent.initial_carry((num_columns,)))
    return Experience(trajectory=trajectory, first_carry=first_carry)


@dataclass(frozen=True)
class RoundSettings:
    """How the fragments of runners become batches; see `Rounds`."""

    max_staleness: int = 0
    min_ready: float = 1.0
    min_runners: int = 1
    wait_timeout: float = 600.0
    """Seconds with fewer than `min_runners` after which a run ends."""
    num_unsaved_fragments: int = 1
    """The number of fragments whose seeds a resumed run leaves out; see `RunnerStarts`."""


class Collector(ABC):
    """Collects experience for training from a group of runners, in rounds.

    Environments start with the first request. They restart after `close` or `set_state`, because simulators cannot be
    saved. A slot of the group owns its columns of every batch. Without a fragment they have dead rows (`autoreset`),
    so that batches keep their shape.
    """

    obs_space: Space
    action_space: Space
    assignment: Assignment | None = None
    """The policies of the agents; None if there is one agent."""

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
        self.num_envs = num_envs
        self.group = group
        self.carried_steps = 0
        """Env steps that were stored since the last update, with a replay buffer."""
        self._env = env
        self._agent = agent
        self._rollout_length = rollout_length
        self._settings = settings or RoundSettings()
        self._clock = clock
        self._agents: Mapping[RoleID, Agent] = {TRAIN: agent}
        self.is_started = False
        self._request: FragmentRequest | None = None
        self._have_gaps: set[int] = set()
        """The slots whose last fragment was discarded."""
        self._rounds, self._supervisor = self._make_rounds()
        self._starts = RunnerStarts(group.num_runners, self._settings.num_unsaved_fragments)
        self._counts: GroupCounts[RunnerReport] = GroupCounts()
        self._means = EpisodeMeans()
        """Of the episodes since the last record."""
        self._evaluated: list[EpisodeMetric] = []
        """The episodes that external simulators have played to evaluate, since the last evaluation."""
        self._deal: EpisodeDeal | None = None
        """The episodes of the evaluation that runners play."""
        self._notices = FaultNotices()
        self._max_staleness = 0
        """The largest staleness since the last record."""
        self._num_rows = self._num_logged = 0
        """Rows since the last record, and those in which an external simulator acted itself."""
        self.seconds_waited = 0.0
        """The time that the learner has waited for rounds since the last record."""
        self._num_rounds = 0
        """The number of rounds since the last record."""
        self.spaces = group.describe().spaces

    @property
    def env_name(self) -> str:
        return self._env.name

    @property
    def failure(self) -> RookeryError | None:
        """Why no runner will deliver again, if that is so."""
        return self._supervisor.failure

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
    def by_policy(self, agent_state: PyTree) -> Mapping[PolicyID, AgentState]:
        """Return the agent states by policy."""

    @abstractmethod
    def merge(self, samples: Mapping[int, Sample], staleness: Mean) -> Experience | JointExperience:
        """Merge the samples of some slots, in slot order."""

    # Rounds.

    def publish(self, role: RoleID, agent_state: PyTree) -> None:
        """Let the agents of a role act with this state in the fragments that are asked for from now on."""
        version = self._rounds.publish()
        self._request = FragmentRequest(role, self.group.put(self.by_policy(agent_state)), version)
        if not self.is_started:
            starts = [self._starts[index] for index in range(self.group.num_runners)]
            self.group.start(self._acting(), self._request, starts)
            self.is_started = True

    def _acting(self) -> ActingSpec:
        num_envs = self.num_envs // self.group.num_runners
        evaluator = EvaluationSpec(self._env, self._agent, num_envs, self.assignment)
        return ActingSpec(self._agents, self.assignment, evaluator=evaluator)

    def ask(self, is_updating: bool = False, is_ahead: bool = True) -> None:
        """Ask all runners for a fragment that may be asked; during an update, its parameters will be stale.

        Without `is_ahead`, runners are asked for the next round alone.
        """
        assert self._request is not None, "parameters are published first"
        for index in self._rounds.to_send(is_updating, self._clock(), is_ahead):
            self.group.send(index, self._request)
            self._rounds.send(index)
            self._starts.begin(index)

    def receive(self, timeout: float | None = None) -> bool:
        """Note the replies that have arrived, and rebuild runners that failed; return whether there were any."""
        now = self._clock()
        for index in self._rounds.due(now):
            assert self._request is not None, "parameters are published first"
            self._counts.forget(index)
            self.group.rebuild(index, self._starts[index], self._request)
            self._rounds.restart(index)
        if timeout is not None:
            timeout = min(timeout, self._rounds.seconds_to_restart(now)) if self.is_waiting else 0.0
        replies = self.group.receive(timeout)
        for index, reply in replies.items():
            self._note(index, reply)
        self._supervisor.check(self._clock())
        return bool(replies)

    def take(self, is_asking: bool = True) -> tuple[Experience | JointExperience, int] | None:
        """Return the experience of a round and its number of env steps; None if there is none yet.

        With `is_asking=False` the caller asks nobody any more, and runners that were not asked are not waited for.
        """
        if not self._rounds.may_take(is_asking):
            return None
        round_ = self._rounds.take()
        self._num_rounds += 1
        samples = {index: self._marked(index, queued.fragment) for index, queued in round_.items()}
        ages: Sequence[int] | np.ndarray = [self._rounds.version - queued.version for queued in round_.values()]
        if self._env.is_external:
            ages = ages_of(samples.values(), self._rounds.version)
        self._max_staleness = max(self._max_staleness, int(np.max(ages, initial=0)))
        return self.merge(samples, mean_of(ages)), sum(sample.env_steps for sample in samples.values())

    def collect(self, role: RoleID, agent_state: PyTree) -> tuple[Experience | JointExperience, int]:
        """Collect one batch with this state; wait for it."""
        self.discard()
        self.publish(role, agent_state)
        while (batch := self.take()) is None or batch[1] == 0:
            if self.failure is not None:
                raise self.failure
            self.ask(is_ahead=False)
            self.receive(PATIENCE)
        return batch

    def evaluate(self, agent_state: PyTree, seed: int, num_episodes: int) -> Evaluated:
        """Let the runners play episodes of an evaluation, once their fragments under way have arrived."""
        if not self.is_started:
            self.publish(TRAIN, agent_state)
        num_runners = self.group.num_runners
        chunk_size = default_chunk_size(num_episodes, num_runners, self.num_envs // num_runners)
        deal = self._deal = EpisodeDeal(num_episodes, chunk_size, self.group.restart)
        handle = self.group.put(agent_state)
        while not deal.is_finished and self.failure is None:
            for index in self._rounds.ready[: deal.num_waiting]:
                self._rounds.occupy(index)
                self.group.send(index, EvaluationRequest(handle, seed, num_episodes, deal.send(index)))
            self.receive(PATIENCE)
        self._deal = None
        num_policies = 1 if self.assignment is None else len(self.assignment.names)
        return joined(deal.evaluated, num_episodes, num_policies, "their runners were lost")

    def take_evaluated(self) -> list[EpisodeMetric]:
        """Return the episodes that external simulators have played to evaluate since the last call."""
        evaluated, self._evaluated = self._evaluated, []
        return evaluated

    def _marked(self, index: int, sample: Sample) -> Sample:
        """Return a sample; its first rows continue nothing (`t` is 0) if the one before it was discarded.

        The fragments of external simulators never continue each other.
        """
        if index not in self._have_gaps and not self._env.is_external:
            return sample
        self._have_gaps.discard(index)
        return without_past(sample)

    def has_full_batch(self, num_steps: int) -> bool:
        """Return whether stored steps, with `num_steps` more, are those of a full batch, which are then counted off.

        With a replay buffer, an iteration makes the updates of a full batch; columns may be empty.
        """
        num_steps_of_batch = self.num_envs * self._rollout_length
        self.carried_steps += num_steps
        is_full = self.carried_steps >= num_steps_of_batch
        self.carried_steps -= num_steps_of_batch * is_full
        return is_full

    @property
    def num_steps_under_way(self) -> int:
        """The number of env steps that are queued, or that runners were asked for."""
        num_out = self._rounds.count(SlotStatus.OUT)
        return self.num_steps_queued + num_out * self._rollout_length * self.num_envs // self.group.num_runners

    @property
    def num_steps_queued(self) -> int:
        return sum(queued.fragment.env_steps for slot in self._rounds.slots for queued in slot.queue)

    @property
    def is_waiting(self) -> bool:
        """Whether a reply is to come."""
        return any(slot.status not in (SlotStatus.READY, SlotStatus.LOST) for slot in self._rounds.slots)

    def discard(self) -> None:
        """Discard the fragments that are queued or under way, and count their steps."""
        while self._rounds.count(SlotStatus.OUT) and self.failure is None:
            self.receive(PATIENCE)
        self._have_gaps.update(index for index, slot in enumerate(self._rounds.slots) if slot.queue)
        self._counts.own["steps_discarded"] += sum(sample.env_steps for sample in self._rounds.discard())

    # Records and checkpoints.

    def report(self) -> dict[str, float]:
        """Return fault counts, the time of each phase of a step, and episode metrics since the last call."""
        report = fault_report(self._counts.total(), self._counts.num_lost_envs)
        report |= {f"rollout/{name}": mean for name, mean in self._means.take().items()}
        report["rollout/staleness_max"], self._max_staleness = self._max_staleness, 0
        report["rollout/steps_sampled"] = self._counts.own["steps_sampled"]
        if self._env.is_external:
            report |= self._report_of_simulators()
        if not self.group.works_in_receive:
            report |= self._runner_report()
        times = [report.milliseconds for report in self._counts.last.values()]
        phases = times[0] if times else ()
        return report | {
            f"time/{phase}_ms": float(np.mean([of_runner[phase] for of_runner in times])) for phase in phases
        }

    def _runner_report(self) -> dict[str, float]:
        own, rounds = self._counts.own, self._rounds
        return rounds.report(own["runner_restarts"]) | {
            "runners/fragments_lost": own["fragments_lost"] + rounds.num_fragments_lost,
            "rollout/steps_queued": self.num_steps_queued,
            "time/wait_ms": 1e3 * self._take_waiting(),
        }

    def _take_waiting(self) -> float:
        """Return the seconds that the learner has waited for a round since the last call, on average."""
        mean = self.seconds_waited / max(self._num_rounds, 1)
        self.seconds_waited, self._num_rounds = 0.0, 0
        return mean

    @property
    def is_checkpoint_due(self) -> bool:
        return self._starts.is_checkpoint_due

    def get_state(self) -> dict[str, Any]:
        """Return runner states and counts as JSON data; a resumed run discards the steps that are queued."""
        counts = self._counts.total() + Counter(steps_discarded=self.num_steps_queued)
        counts["runner_restarts"] += self._rounds.num_restarts
        counts["fragments_lost"] += self._rounds.num_fragments_lost
        return {"runners": self._starts.save(), "counts": counts, "carried_steps": self.carried_steps}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from `get_state`, with new episodes."""
        self._starts.restore(state["runners"])
        if self.is_started:
            self.close()
        self._counts.own = Counter(state["counts"])
        self.carried_steps = state.get("carried_steps", 0)

    def describe_restart(self) -> str:
        return f"{self.env_name} restarts with new episodes and new seeds: simulator state is not checkpointed"

    def close(self) -> None:
        """Close the environments. May be called twice."""
        self.group.close()
        self._counts.own["runner_restarts"] += self._rounds.num_restarts
        self._counts.own["fragments_lost"] += self._rounds.num_fragments_lost
        self._counts.own["steps_discarded"] += self.num_steps_queued
        self._counts.forget_all()
        self._rounds, self._supervisor = self._make_rounds()
        self.is_started = False

    # Runners.

    def _make_rounds(self) -> tuple[Rounds[Sample], Supervisor]:
        settings, group = self._settings, self.group
        rounds: Rounds[Sample] = Rounds(
            group.num_runners, settings.max_staleness, settings.min_ready, group.restart, settings.min_runners
        )
        return rounds, Supervisor(rounds, settings.wait_timeout, "Its columns stay empty.")

    def _note(self, index: int, reply: Reply) -> None:
        match reply:
            case Ready():
                self._rounds.start(index, self._clock())
            case Delivery(sample, report):
                self._note_report(index, report)
                self._counts.own["steps_sampled"] += sample.env_steps
                if self._env.is_external:
                    self._note_origin(sample)
                for episode in sample.episodes:
                    self._means.add(episode.metrics)
                for fault in sample.faults:
                    self._notices.notice(fault, index if self.group.num_runners > 1 else None)
                self._rounds.deliver(index, sample)
            case Evaluated():
                self._rounds.release(index)
                if self._deal is not None:
                    self._deal.deliver(index, reply)
            case RunnerFailed():
                self._note_failure(index, reply)

    def _note_origin(self, sample: Sample) -> None:
        """Keep what simulators have evaluated; count the rows in which they acted, and the episodes that they left."""
        self._evaluated += sample.evaluated
        self._num_rows += sample.agent_steps
        self._num_logged += num_logged(sample)
        self._counts.own["episodes_abandoned"] += sum(episode.how is End.ABANDONED for episode in sample.episodes)

    def _report_of_simulators(self) -> dict[str, float]:
        counts, share = self._counts.total(), self._num_logged / max(self._num_rows, 1)
        self._num_rows = self._num_logged = 0
        pending = sum(report.ledger.env_steps.pending for report in self._counts.last.values())
        served = {name: number for report in self._counts.last.values() for name, number in report.env_report.items()}
        return served | {
            "rollout/logged_share": share,
            "rollout/steps_pending": pending,
            "rollout/steps_abandoned": counts["steps_abandoned"],
            "rollout/episodes_abandoned": counts["episodes_abandoned"],
        }

    def _note_report(self, index: int, report: RunnerReport) -> None:
        """Keep a report. Steps that the runner has discarded were sampled, too."""
        last = self._counts.last
        before = last[index].counts["steps_discarded"] if index in last else 0
        self._counts.own["steps_sampled"] += report.counts["steps_discarded"] - before
        last[index] = report
        self._starts.note(index, report.state)

    def _note_failure(self, index: int, reply: RunnerFailed) -> None:
        if reply.report is not None:
            self._note_report(index, reply.report)
        else:
            self._counts.own[reply.failed.kind] += 1
        is_counted = reply.failed.kind is not FaultKind.UNREACHABLE
        num_losses = None if self._deal is None else self._deal.fail(index, is_counted)
        self._rounds.fail(index, self._clock(), is_counted, num_losses)
        self._supervisor.note_failure(index, reply)


def check_not_traced(env_name: str, tree: PyTree) -> None:
    """Raise if the tree has tracers: host environments cannot be stepped inside a compiled program."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
        raise InvalidInputError(
            f"{env_name} is on the host: a step of training on it cannot be part of a compiled program."
        )


def without_past(sample: Sample) -> Sample:
    """Return a sample whose first rows do not continue those before it."""

    def mark(batch: SampleBatch) -> SampleBatch:
        env_extras = batch.extras.env_extras
        times = np.array(env_extras.t)
        times[0] = 0
        return batch.replace(extras=batch.extras.replace(env_extras=env_extras.replace(t=times)))

    batches = {policy: mark(batch) for policy, batch in sample.batch.batches.items()}
    return replace(sample, batch=sample.batch.replace(batches=PyTreeDict(batches)))


def metrics_of(samples: Iterable[Sample]) -> dict[str, Mean]:
    """Return the mean return and the mean length of the episodes that did not fail."""
    episodes = [episode for sample in samples for episode in sample.episodes if episode.is_finished]
    returns = mean_of([episode.episode_return for episode in episodes])
    lengths = mean_of([episode.episode_length for episode in episodes])
    return episode_metrics(returns, lengths)


def mean_of(values: Sequence[float] | np.ndarray) -> Mean:
    """Return the mean of Python or NumPy numbers."""
    return Mean(total=np.float32(np.sum(values)), weight=np.float32(len(values)))  # type: ignore[arg-type]
