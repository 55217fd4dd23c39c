"""Runner groups: where the experience of host environments comes from.

A group is to runners what a transport is to environments: numbered slots, requests, replies, and failures as values.
"""

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from rookery.agent import Agent, AgentState, Carry
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError, check_count
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.policy_map import DEFAULT_POLICY, PolicyID
from rookery.runners.acting.roles import RoleAgent, RoleID, RoleState
from rookery.runners.callbacks import Callbacks
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID, BaseEnv
from rookery.runners.faults import EnvFaultError, Fault
from rookery.runners.health import RestartPolicy
from rookery.runners.host_envs import make_envs, try_first_reset
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import RunnerConfig, Sample
from rookery.sample_batch import SampleBatch
from rookery.spaces import Space
from rookery.types import PyTree, Tree

RunnerState = Mapping[str, PyTree]
"""The state of a runner, as `EnvRunner.get_state` returns it."""
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

    def make(self) -> BaseEnv:
        return make_envs(self.env, self.num_envs)


@dataclass(frozen=True)
class ActingSpec:
    """Who acts: agents by role, sent once, and the policies of the agents of the environment.

    `assignment=None` is for environments with one agent.
    """

    agents: Mapping[RoleID, Agent]
    assignment: Assignment | None = None

    @property
    def policies(self) -> list[PolicyID]:
        return [DEFAULT_POLICY] if self.assignment is None else list(self.assignment.name_of)


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

    def make_runner(
        self, index: int, base_env: BaseEnv, state: RunnerState | None = None, callbacks: Callbacks | None = None
    ) -> EnvRunner:
        """Make runner `index` of a run on these environments, going on from a state if one is given."""
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
        assignment = acting.assignment
        runner = EnvRunner(
            base_env,
            dict.fromkeys(acting.policies, RoleAgent(agents=acting.agents)),
            None if assignment is None else assignment.with_seeds(self.seed, index),
            config,
            callbacks=callbacks,
            seed=self.seed,
            runner_index=index,
        )
        if state:
            runner.set_state(state)
        return runner


@dataclass(frozen=True)
class FragmentRequest:
    """Sample `num_steps` of each env with the agent of a role, and with these states by policy, on one device."""

    role: RoleID
    agent_states: Mapping[PolicyID, AgentState]
    num_steps: int


@dataclass(frozen=True)
class RunnerReport:
    """The state, counts and times of a runner."""

    state: RunnerState
    counts: Counter[str]
    """All its faults by kind, `restarts`, `steps_discarded` and `obs_clipped`."""
    num_lost_envs: int
    milliseconds: Mapping[str, float]
    """The mean time of each phase of a step."""


@dataclass(frozen=True)
class Delivery:
    """The sample that a runner was asked for, and its report after it."""

    sample: Sample
    report: RunnerReport


@dataclass(frozen=True)
class RunnerFailed:
    """In place of a delivery: the fault that ended the runner, and its last report."""

    message: str
    fault: Fault
    report: RunnerReport

    def error(self) -> EnvFaultError:
        return EnvFaultError(self.message, self.fault)


Reply = Delivery | RunnerFailed


class RunnerGroup(ABC):
    """Numbered runners that are asked for fragments. A slot has at most one request under way."""

    num_runners: int

    @abstractmethod
    def describe(self) -> Description:
        """Return the description of the environments; the caller builds none.

        One of them is reset, so that it raises `EnvFaultError` if no episode can begin.
        """

    @abstractmethod
    def start(self, acting: ActingSpec, states: Sequence[RunnerState] = ()) -> None:
        """Send the agents, once, and the states that runners go on from; without one they begin a run."""

    @abstractmethod
    def send(self, index: int, request: FragmentRequest) -> None:
        """Begin a request in a slot."""

    @abstractmethod
    def receive(self, timeout: float | None = None) -> dict[int, Reply]:
        """Return the replies that have arrived, by slot; wait for the first, at most `timeout` seconds if given."""

    @abstractmethod
    def close(self) -> None:
        """Close all runners and their environments; calling it twice does no harm. `start` may follow."""


class LocalRunners(RunnerGroup):
    """Runners in this process, which work inside `receive`. Each has its own environments and its own seeds.

    Environments are made when they are first needed: slot 0's to be described, unless a description is given, all
    others with the first request.
    """

    def __init__(
        self,
        spec: RunnerSpec,
        num_runners: int = 1,
        description: Description | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        check_count("num_runners", num_runners)
        self.num_runners = num_runners
        self._spec = spec
        self._description = description
        self._callbacks = callbacks
        self._states: Sequence[RunnerState] = ()
        self._base_envs: dict[int, BaseEnv] = {}
        self._runners: dict[int, EnvRunner] = {}
        self._requests: dict[int, FragmentRequest] = {}

    def describe(self) -> Description:
        if self._description is None:
            base_env = self._envs_of(0)
            try_first_reset(base_env, self._spec.envs.env)
            self._description = Description.of(base_env)
        return self._description

    def start(self, acting: ActingSpec, states: Sequence[RunnerState] = ()) -> None:
        self._spec = replace(self._spec, acting=acting)
        self._states = states
        self._runners = {}

    def send(self, index: int, request: FragmentRequest) -> None:
        if index in self._requests:
            raise InvalidInputError(f"runner {index} has a request under way: receive its reply first.")
        self._requests[index] = request

    def receive(self, timeout: float | None = None) -> dict[int, Reply]:
        return {index: self._reply(index, self._requests.pop(index)) for index in sorted(self._requests)}

    def close(self) -> None:
        base_envs, self._base_envs = self._base_envs, {}
        self._runners, self._requests = {}, {}
        with contextlib.ExitStack() as stack:  # closes all of them, also if one fails to
            for base_env in base_envs.values():
                stack.callback(base_env.close)

    def runner(self, index: int) -> EnvRunner:
        """Return a runner; make it if needed."""
        if index not in self._runners:
            state = self._states[index] if index < len(self._states) else None
            base_env = self._envs_of(index)
            self._runners[index] = self._spec.make_runner(index, base_env, state, self._callbacks)
        return self._runners[index]

    def _envs_of(self, index: int) -> BaseEnv:
        if index not in self._base_envs:
            self._base_envs[index] = self._spec.envs.make()
        return self._base_envs[index]

    def _reply(self, index: int, request: FragmentRequest) -> Reply:
        runner = self.runner(index)
        states: PyTree = {
            policy: RoleState(role=request.role, agent_state=state) for policy, state in request.agent_states.items()
        }
        runner.set_agent_states(states)
        is_fragment = request.num_steps == self._spec.rollout_length
        try:
            sample = runner.sample(num_steps=None if is_fragment else request.num_steps * runner.base_env.num_envs)
        except EnvFaultError as error:
            return RunnerFailed(error.message, error.fault, _report(runner))
        return Delivery(sample, _report(runner))


def _report(runner: EnvRunner) -> RunnerReport:
    counts = runner.fault_counts + Counter(
        steps_discarded=runner.ledger.env_steps.discarded, obs_clipped=runner.base_env.num_clipped
    )
    return RunnerReport(runner.get_state(), counts, runner.num_lost_envs, runner.perf.milliseconds())


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
