"""Runner groups: where the experience of host environments comes from.

A group is to runners what a transport is to environments: numbered slots, requests, replies, and failures as values.
"""

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from rookery.agent import Agent, AgentState, Carry, RandomAgent
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError, RookeryError, check_count
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.policy_map import DEFAULT_POLICY, PolicyID
from rookery.runners.acting.roles import RoleAgent, RoleID, RoleState
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID, BaseEnv
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.faults import EnvFaultError, EnvsLostError, Failed, Fault, Phase
from rookery.runners.groups.episodes import (
    EpisodesPlayer,
    EpisodesRequest,
    Evaluated,
    EvaluatedEpisodes,
    EvaluationRequest,
    EvaluatorSpec,
    Handle,
    Plan,
    Played,
    PlayerSpec,
    RandomlyPlayed,
    RandomRequest,
)
from rookery.runners.groups.jobs import Chunk
from rookery.runners.health import RestartPolicy
from rookery.runners.host_envs import make_envs, make_with_retries, try_first_reset
from rookery.runners.ledger import Ledger
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import RunnerConfig, Sample
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.trust import UntrustedError
from rookery.types import Params, PyTree, PyTreeDict, Tree

RunnerState = Mapping[str, PyTree]
"""The state of a runner, as `EnvRunner.get_state` returns it."""
PATIENCE = 1.0
"""Seconds to wait for replies at a time."""
PERF_DECAY = 0.99
"""The decay of the mean time of a step: the first steps compile, and their time must not stay in the mean."""


@dataclass(frozen=True)
class Description:
    """The name of environments and the spaces of their agents: observation space and action space."""

    name: str
    spaces: Mapping[AgentID, tuple[Space, Space]]

    @classmethod
    def of(cls, base_env: BaseEnv) -> "Description":
        return cls(base_env.name, base_env.spaces)

    @property
    def is_multi_agent(self) -> bool:
        return set(self.spaces) != {SINGLE_AGENT}


@dataclass(frozen=True)
class EnvSpec:
    """How the environments of one runner are made: enough to describe them."""

    env: EnvConfig
    num_envs: int
    longest_episode: int | None = None
    """The time limit of environments that have none."""

    def make(self) -> BaseEnv:
        return make_envs(self.env, self.num_envs, longest_episode=self.longest_episode)


@dataclass(frozen=True)
class ActingSpec:
    """Who acts: agents by role, sent once, and the policies of the agents of the environment.

    `assignment=None` is for environments with one agent. The `player` plays episodes of populations, the `evaluator`
    those of evaluations.
    """

    agents: Mapping[RoleID, Agent]
    assignment: Assignment | None = None
    player: PlayerSpec | None = None
    evaluator: EvaluatorSpec | None = None

    @property
    def policies(self) -> list[PolicyID]:
        return [DEFAULT_POLICY] if self.assignment is None else list(self.assignment.name_of)


@dataclass(frozen=True)
class RunnerStart:
    """What a runner goes on from: the state of another, which may have begun `num_fragments` since then.

    Without a state the other has delivered nothing.
    """

    state: RunnerState | None = None
    num_fragments: int = 0


@dataclass(frozen=True)
class RunnerSpec:
    """How a runner is made. It can be pickled.

    It has two parts, because policies need spaces: `envs` makes the environments, `acting` is known once these are
    described. A fragment has `rollout_length` steps of each env.
    """

    envs: EnvSpec
    rollout_length: int
    seed: int
    acting: ActingSpec | None = None
    fields: tuple[str, ...] | None = None
    """The entries of `env_extras` that samples have, and no `next_obs`; None: all."""
    clips_rewards: bool = False
    """Replace rewards by their signs (Mnih et al., 2015); episode returns stay unclipped."""
    max_age: int | None = None
    """By how many versions fragments of external envs may lag that set no limit themselves; None: any number."""
    needs_log_prob: bool = False
    """Whether the method would be biased by logged actions without their log-probability."""

    def make_runner(self, index: int, base_env: BaseEnv, start: RunnerStart) -> EnvRunner:
        """Make runner `index` of a run on these environments."""
        acting, settings = self.acting, self.envs.env.runner
        if acting is None:
            raise InvalidInputError(
                "a RunnerSpec without acting describes environments: add who acts to make a runner."
            )
        config = RunnerConfig(
            rollout_fragment_length=self.rollout_length,
            on_invalid=settings.on_invalid,
            restart=RestartPolicy(max_restarts=settings.max_restarts),
            perf_decay=PERF_DECAY,
        )
        if isinstance(base_env, ExternalBaseEnv):
            max_age = self.max_age if base_env.max_age is None else base_env.max_age
            config = replace(config, num_fragments=self.envs.num_envs, max_age=max_age)
            base_env.require_log_probs(self.needs_log_prob)
        assignment = acting.assignment
        runner = EnvRunner(
            base_env,
            dict.fromkeys(acting.policies, RoleAgent(agents=acting.agents)),
            None if assignment is None else assignment.with_seeds(self.seed, index),
            config,
            seed=self.seed,
            runner_index=index,
        )
        if start.state or start.num_fragments:
            runner.set_state(start.state or runner.get_state(), start.num_fragments)
        return runner

    def cut_down(self, sample: Sample) -> Sample:
        """Return the sample with the fields and rewards that training uses."""
        batches = {policy: self._cut_down_batch(batch) for policy, batch in sample.batch.batches.items()}
        return replace(sample, batch=sample.batch.replace(batches=PyTreeDict(batches)))

    def _cut_down_batch(self, batch: SampleBatch) -> SampleBatch:
        if self.clips_rewards:
            batch = batch.replace(rewards=np.sign(batch.rewards))
        if self.fields is None:
            return batch
        env_extras = {name: batch.extras.env_extras[name] for name in self.fields}
        return batch.replace(next_obs=None, extras=batch.extras.replace(env_extras=PyTreeDict(env_extras)))


@dataclass(frozen=True)
class FragmentRequest:
    """Sample a fragment with the agents of a role and the states behind a handle."""

    role: RoleID
    agent_states: Handle
    version: int = 0
    """The number of these states."""


@dataclass(frozen=True)
class RunnerReport:
    """The state, counts and times of a runner."""

    state: RunnerState
    ledger: Ledger
    counts: Counter[str]
    """All its faults by kind, `restarts`, `steps_discarded`, `steps_abandoned` and `obs_clipped`."""
    num_lost_envs: int
    milliseconds: Mapping[str, float]
    """The mean time of each phase of a step."""
    env_report: Mapping[str, float] = field(default_factory=dict)
    """What the environments report themselves."""


@dataclass(frozen=True)
class Ready:
    """A runner is ready for its first request."""


@dataclass(frozen=True)
class Delivery:
    """The sample that a runner was asked for, and its report after it."""

    sample: Sample
    report: RunnerReport


@dataclass(frozen=True)
class RunnerFailed:
    """A runner failed. Nothing can be asked of it before it is rebuilt."""

    failed: Failed
    message: str
    """What happened, in one line."""
    is_fatal: bool = False
    """Whether another runner would fail, too: the settings say that this ends the run."""
    fault: Fault | None = None
    """The fault of an environment, if that was the cause."""
    report: RunnerReport | None = None

    @classmethod
    def by_exception(cls, error: Exception) -> "RunnerFailed":
        """Return the failure of a runner that raised."""
        if isinstance(error, EnvFaultError):
            is_fatal = not isinstance(error, EnvsLostError)
            return cls(error.fault.failed, error.message, is_fatal, error.fault)
        failed = Failed.by_exception(error, Phase.MAKE)
        if isinstance(error, (InvalidInputError, UntrustedError)):  # another runner would repeat the mistake
            return cls(failed, str(error), is_fatal=True)
        return cls(failed, failed.error)

    def error(self) -> RookeryError:
        if self.fault is not None:
            return EnvFaultError(self.message, self.fault)
        return RookeryError("\n".join(filter(None, (self.message, self.failed.traceback))))


Request = FragmentRequest | EpisodesRequest | EvaluationRequest | RandomRequest
Reply = Ready | Delivery | Played | Evaluated | RandomlyPlayed | RunnerFailed


class RunnerGroup(ABC):
    """Numbered runners that are asked for fragments or episodes. A slot has at most one request under way."""

    num_runners: int
    works_in_receive: bool
    """Whether runners work inside `receive`, or meanwhile."""
    restart: RestartPolicy
    """How often a runner is rebuilt before it is given up."""
    samples_individuals: bool = False
    """Whether runners make individuals by a recipe, on the platform of the caller; otherwise requests carry them."""

    @abstractmethod
    def describe(self) -> Description:
        """Return the description of the environments; the caller builds none.

        One of them is reset, so that it raises `EnvFaultError` if no episode can begin.
        """

    @abstractmethod
    def start(
        self, acting: ActingSpec, request: FragmentRequest | None = None, starts: Sequence[RunnerStart] = ()
    ) -> None:
        """Send the agents, once, and what runners go on from. Each slot replies `Ready` or fails.

        `request` is what runners prepare for: those elsewhere compile it before they are ready.
        """

    @abstractmethod
    def put(self, tree: PyTree) -> Handle:
        """Store agent states by policy, or a plan, once, to name in requests; also before `start`."""

    @abstractmethod
    def send(self, index: int, request: Request) -> None:
        """Begin a request in a slot."""

    @abstractmethod
    def receive(self, timeout: float | None = None) -> dict[int, Reply]:
        """Return the replies that have arrived, by slot; wait for the first, at most `timeout` seconds if given."""

    @abstractmethod
    def rebuild(self, index: int, start: RunnerStart, request: FragmentRequest | None = None) -> None:
        """End the runner of a slot, whatever it does, and start another, which replies `Ready` or fails."""

    @abstractmethod
    def close(self) -> None:
        """Close all runners and their environments; calling it twice does no harm. `start` may follow."""


class HostedRunner:
    """The runner of one slot, where it works: in this process or in an actor."""

    def __init__(self, spec: RunnerSpec, index: int) -> None:
        self._spec = spec
        self._index = index
        self._base_env: BaseEnv | None = None
        self._runner: EnvRunner | None = None
        self._player: EpisodesPlayer | None = None
        self._evaluator: EvaluatedEpisodes | None = None
        self._start = RunnerStart()

    @property
    def runner(self) -> EnvRunner:
        """The runner; it is made if needed."""
        if self._runner is None:
            self._runner = self._spec.make_runner(self._index, self.base_env, self._start)
        return self._runner

    @property
    def base_env(self) -> BaseEnv:
        """The environments; they are made if needed."""
        if self._base_env is None:
            self._base_env = self._spec.envs.make()
        return self._base_env

    def describe(self) -> Description:
        """Describe the environments, of which one is reset."""
        try_first_reset(self.base_env, self._spec.envs.env)
        return Description.of(self.base_env)

    def start(self, acting: ActingSpec, start: RunnerStart) -> None:
        """Let these agents act from now on; the runner is made with its first request."""
        self._spec = replace(self._spec, acting=acting)
        self._start = start
        self._runner = self._player = None
        self._close_evaluator()

    def prepare(self, role: RoleID, agent_states: Mapping[PolicyID, AgentState]) -> None:
        """Make the runner, and compile what acts in its first fragment."""
        self._acting_with(role, agent_states).prepare()

    def sample(self, role: RoleID, agent_states: Mapping[PolicyID, AgentState]) -> Delivery | RunnerFailed:
        """Sample a fragment."""
        reply = self.sample_within(None, role, agent_states)
        assert reply is not None, "without a limit there is a reply"
        return reply

    def sample_within(
        self, seconds: float | None, role: RoleID, agent_states: Mapping[PolicyID, AgentState], version: int = 0
    ) -> Delivery | RunnerFailed | None:
        """Sample a fragment; None if external simulators have not made the steps of one within some seconds."""
        runner = self._acting_with(role, agent_states, version)
        try:
            sample = runner.sample_within(seconds) if runner.base_env.is_external else runner.sample()
        except EnvFaultError as error:
            return replace(RunnerFailed.by_exception(error), report=_report(runner))
        return None if sample is None else Delivery(self._spec.cut_down(sample), _report(runner))

    def _acting_with(self, role: RoleID, agent_states: Mapping[PolicyID, AgentState], version: int = 0) -> EnvRunner:
        states: PyTree = {policy: RoleState(role=role, agent_state=state) for policy, state in agent_states.items()}
        self.runner.set_agent_states(states, version)
        return self.runner

    def play(self, plan: Plan, chunk: Chunk, individuals: Params = None) -> Played | RunnerFailed:
        """Play the episodes of some individuals."""
        try:
            return self._opened_player().play(plan, chunk, individuals)
        except EnvFaultError as error:
            return RunnerFailed.by_exception(error)

    def _opened_player(self) -> EpisodesPlayer:
        acting = self._spec.acting
        if acting is None or acting.player is None:
            raise InvalidInputError("a group without a player was asked for episodes: add one to its ActingSpec.")
        if self._base_env is None:
            restart = RestartPolicy(max_restarts=self._spec.envs.env.runner.max_restarts)
            self._base_env = make_with_retries(self._spec.envs.make, restart)
        if self._player is None:
            self._player = acting.player.make(self._base_env)
        return self._player

    def evaluate(self, agent_states: PyTree, seed: int, num_episodes: int, chunk: Chunk) -> Evaluated | RunnerFailed:
        """Play some episodes of an evaluation, in environments of their own."""
        acting = self._spec.acting
        if acting is None or acting.evaluator is None:
            raise InvalidInputError("a group without an evaluator was asked for one: add it to its ActingSpec.")
        if self._evaluator is None:
            self._evaluator = acting.evaluator.make()
        try:
            return self._evaluator.play(agent_states, seed, num_episodes, range(num_episodes)[chunk.jobs])
        except EnvFaultError as error:
            return RunnerFailed.by_exception(error)

    def play_at_random(self, request: RandomRequest) -> RandomlyPlayed | RunnerFailed:
        """Act at random in environments that are made for it and closed again."""
        env, agent = self._spec.envs.env, RandomAgent()
        config = RunnerConfig(
            rollout_fragment_length=request.num_steps,
            on_invalid=env.runner.on_invalid,
            restart=RestartPolicy(max_restarts=env.runner.max_restarts),
        )
        runner = EnvRunner(make_envs(env, request.num_envs), agent, config=config, seed=request.seed)
        try:
            spaces = runner.base_env.spaces[SINGLE_AGENT]
            runner.set_agent_states(agent.init(*spaces, jax.random.key(request.seed)))
            batch: SampleBatch = runner.sample().batch.batches[DEFAULT_POLICY]
        except EnvFaultError as error:
            return RunnerFailed.by_exception(error)
        finally:
            runner.close()
        return RandomlyPlayed(batch.obs, 1.0 - batch.extras.env_extras.autoreset)

    def close(self) -> None:
        base_env, self._base_env, self._runner, self._player = self._base_env, None, None, None
        with contextlib.ExitStack() as stack:  # closes both, also if one fails to
            stack.callback(self._close_evaluator)
            if base_env is not None:
                stack.callback(base_env.close)

    def _close_evaluator(self) -> None:
        evaluator, self._evaluator = self._evaluator, None
        if evaluator is not None:
            evaluator.close()


class LocalRunners(RunnerGroup):
    """Runners in this process, which work inside `receive`. Each has its own environments and its own seeds.

    Environments are made when they are first needed: slot 0's to be described, unless a description is given, all
    others with the first request.
    """

    works_in_receive = True
    restart = RestartPolicy(max_restarts=0)

    def __init__(
        self,
        spec: RunnerSpec,
        num_runners: int = 1,
        description: Description | None = None,
    ) -> None:
        check_count("num_runners", num_runners)
        self.num_runners = num_runners
        self._description = description
        self._hosted = [HostedRunner(spec, index) for index in range(num_runners)]
        self._acting: ActingSpec | None = None
        self._requests: dict[int, Request] = {}
        self._started: set[int] = set()

    def describe(self) -> Description:
        if self._description is None:
            self._description = self._hosted[0].describe()
        return self._description

    def start(
        self, acting: ActingSpec, request: FragmentRequest | None = None, starts: Sequence[RunnerStart] = ()
    ) -> None:
        self._acting = acting
        for index, hosted in enumerate(self._hosted):
            hosted.start(acting, starts[index] if index < len(starts) else RunnerStart())
        self._started = set(range(self.num_runners))

    def put(self, tree: PyTree) -> Handle:
        return tree

    def send(self, index: int, request: Request) -> None:
        if index in self._requests:
            raise InvalidInputError(f"runner {index} has a request under way: receive its reply first.")
        self._requests[index] = request

    def receive(self, timeout: float | None = None) -> dict[int, Reply]:
        if self._started:
            started, self._started = sorted(self._started), set()
            return dict.fromkeys(started, Ready())
        replies: dict[int, Reply] = {}
        for index in sorted(self._requests):
            reply = self._answer(self._hosted[index], self._requests[index], timeout)
            if reply is not None:
                del self._requests[index]
                replies[index] = reply
        return replies

    def _answer(self, hosted: HostedRunner, request: Request, timeout: float | None) -> Reply | None:
        stored: Any  # what `put` was given
        match request:
            case FragmentRequest():
                stored = request.agent_states
                return hosted.sample_within(timeout, request.role, stored, request.version)
            case EpisodesRequest():
                stored = request.plan
                return hosted.play(stored, request.chunk, request.individuals)
            case EvaluationRequest():
                stored = request.agent_states
                return hosted.evaluate(stored, request.seed, request.num_episodes, request.chunk)
            case RandomRequest():
                return hosted.play_at_random(request)

    def rebuild(self, index: int, start: RunnerStart, request: FragmentRequest | None = None) -> None:
        assert self._acting is not None, "only a group that was started is rebuilt"
        self._requests.pop(index, None)
        self._hosted[index].close()
        self._hosted[index].start(self._acting, start)
        self._started.add(index)

    def close(self) -> None:
        self._requests, self._started = {}, set()
        with contextlib.ExitStack() as stack:  # closes all of them, also if one fails to
            for hosted in self._hosted:
                stack.callback(hosted.close)

    def runner(self, index: int) -> EnvRunner:
        """Return a runner; make it if needed."""
        return self._hosted[index].runner


def _report(runner: EnvRunner) -> RunnerReport:
    ledger = runner.ledger
    counts = runner.fault_counts + Counter(
        steps_discarded=ledger.env_steps.discarded,
        steps_abandoned=ledger.env_steps.abandoned,
        obs_clipped=runner.base_env.num_clipped,
    )
    milliseconds, env_report = runner.perf.milliseconds(), runner.base_env.report()
    return RunnerReport(runner.get_state(), ledger, counts, runner.num_lost_envs, milliseconds, env_report)


def check_one_agent(env: EnvConfig, description: Description) -> None:
    """Raise if environments have several agents."""
    if description.is_multi_agent:
        raise InvalidInputError(f"{env.name} has several agents: methods for one agent cannot train on it.")


def merge_columns(parts: Sequence[tuple[SampleBatch, Carry]]) -> tuple[SampleBatch, Carry]:
    """Merge trajectories `[T, B, ...]` and the recurrent states `[B, ...]` before them, in the order of their slots."""
    if len(parts) == 1:
        return parts[0]

    def merge(trees: Sequence[Tree], axis: int) -> Tree:
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), *trees)

    return merge([trajectory for trajectory, _ in parts], 1), merge([carry for _, carry in parts], 0)
