"""The interface of training: on the device, on the host, and by evolution."""

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.compilation import run_once_options
from rookery.distributed import SAME, SPLIT
from rookery.errors import RookeryError
from rookery.evaluators import EvaluateMetric
from rookery.hyperparameters import Hyperparameters
from rookery.learners.learner import Learner, LearnerState
from rookery.learning.counter import Counter
from rookery.metrics import Metrics, RunningMetrics, accumulate, running_shapes
from rookery.spaces import Space
from rookery.types import Array, Key, PyTree, PyTreeDict, State
from rookery.workflows.programs import Layout, Program, specs_of

CENTER = "eval/"
"""The prefix of the metrics of the trained agent; of evolution, the center of the search."""
REFILL = 2**32 - 1
"""Derives the key of `Training.refill` from that of the state."""
RESTART = 2**32 - 3
"""The same for `OnDevice.restarted`."""


class TrainingState(State):
    """The state of a training run. Evaluation has its own key, so it does not change training."""

    eval_key: Key
    learner: LearnerState
    source_state: PyTree
    """The state of device environments; empty if environments are on the host."""

    def replace_learner(self, **changes: PyTree) -> Self:
        """Return a copy with some fields of the learner state replaced."""
        return self.replace(learner=self.learner.replace(**changes))

    @property
    def agent_state(self) -> AgentState:
        return self.learner.agent_state

    @property
    def hyperparameters(self) -> Hyperparameters:
        return self.learner.hyperparameters

    @property
    def iterations(self) -> Counter:
        return self.learner.iterations

    @property
    def env_steps(self) -> Counter:
        return self.learner.env_steps

    @property
    def num_updates(self) -> Counter:
        return self.learner.num_updates


class Advance(Protocol):
    """Trains for some iterations.

    It stops at `until` env steps and adds to the metrics. It overwrites its arguments `state` and `metrics`.
    """

    def is_ready(
        self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter, /
    ) -> bool:
        """Return whether the program is compiled for arguments of these shapes."""

    def compile(
        self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter, /
    ) -> float:
        """Compile for arguments of these shapes; return the seconds it took."""

    def __call__(
        self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter, /
    ) -> tuple[TrainingState, RunningMetrics]: ...


class AgentEvaluator(Protocol):
    """Plays greedy episodes: an `Evaluator` in device environments, a `HostEvaluator` in host environments."""

    @property
    def max_episode_steps(self) -> int: ...

    def evaluate(self, agent_state: AgentState, key: Key, num_episodes: int) -> EvaluateMetric:
        """Play `num_episodes` episodes; return the return and the length of each."""

    def frames(self, agent_state: AgentState, key: Key, max_steps: int) -> Iterator[np.ndarray]:
        """Play and render one episode of at most `max_steps` steps; raise `RenderError` if that fails."""

    def close(self) -> None:
        """Close its environments. May be called twice."""


class Environments(Protocol):
    """Host environments, whose state is not part of `TrainingState`."""

    @property
    def failure(self) -> RookeryError | None:
        """Why training cannot go on, if that is so."""

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether a checkpoint has to be saved before the environments go on for long."""

    def report(self) -> dict[str, float]:
        """Return metrics of the environments for a record."""

    def get_state(self) -> dict[str, Any]:
        """Return the JSON data that checkpoints contain."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a result of `get_state`."""

    def describe_restart(self) -> str:
        """Return a notice of what restarts in a resumed run, because checkpoints do not contain it."""

    def close(self) -> None:
        """Close the environments. May be called twice."""


class NoEnvironments:
    """No host environments: device environments are part of `TrainingState`."""

    failure = None
    is_checkpoint_due = False

    def report(self) -> dict[str, float]:
        return {}

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass

    def describe_restart(self) -> str:
        return ""

    def close(self) -> None:
        pass


class Training(ABC):
    """Runs iterations. It contains all code that depends on where environments are."""

    agent: Agent
    layout: Layout
    environments: Environments
    evaluator: AgentEvaluator
    evaluation: Program
    """`evaluation(agents, eval_key)` plays greedy episodes and returns metrics and the next key."""
    advance: Advance
    _init: Program
    _hyperparameters: Hyperparameters
    _zeros: RunningMetrics | None = None
    has_best: bool = False
    """Whether checkpoints contain the fittest individual."""

    @property
    @abstractmethod
    def spaces(self) -> tuple[Space, Space]:
        """The spaces of observations and actions; dicts by policy if there are several policies."""

    @abstractmethod
    def init(self, key: Key, hyperparameters: Hyperparameters | None = None) -> TrainingState:
        """Make the first state, from one key per seed.

        `hyperparameters` are float32 arrays with one value per seed; by default, all seeds have those of the config.
        """

    @abstractmethod
    def step(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        """Train for one iteration; the argument `state` stays valid."""

    @abstractmethod
    def agent_shape(self) -> AgentState:
        """Return the shapes of the agent state of one seed, or by policy if there are several policies."""

    @abstractmethod
    def specs(self) -> TrainingState:
        """Return which parts of a state are split over the devices."""

    @abstractmethod
    def metrics_shape(self, state: TrainingState) -> Metrics:
        """Return the shapes of the metrics of an iteration."""

    @abstractmethod
    def collect_seconds(self, state: TrainingState) -> float:
        """Return the seconds that one iteration takes to collect experience."""

    @abstractmethod
    def counters(self, state: TrainingState) -> dict[str, Counter]:
        """Return counters for a record, besides env steps and iterations."""

    def close(self) -> None:
        """Close all host environments. May be called twice."""
        self.environments.close()
        self.evaluator.close()

    def state_shape(self, key: Key) -> TrainingState:
        """Return the shapes of the result of `init`."""
        return jax.eval_shape(self._run_init, key)

    def _run_init(self, key: Key, hyperparameters: Hyperparameters | None = None) -> TrainingState:
        # Hyper-parameters are an argument, not a constant: runs with other ones share the compiled program.
        if hyperparameters is None:
            hyperparameters = self.layout.for_seeds(self._hyperparameters)
        state: TrainingState = self._init(key, hyperparameters)
        return state

    def agents(self, state: TrainingState) -> dict[str, AgentState]:
        """Return the agents to evaluate, by the prefix of their metrics."""
        return {CENTER: state.agent_state}

    def individuals(self, state: TrainingState) -> dict[str, AgentState]:
        """Return the agents of a state that become policies, by individual; the trained one has an empty name.

        That of `eval/best_` is `best`.
        """
        return {prefix.removeprefix(CENTER).removesuffix("_"): agent for prefix, agent in self.agents(state).items()}

    def evaluate(self, state: TrainingState) -> tuple[PyTreeDict, TrainingState]:
        """Play episodes with the greedy policy."""
        metrics, eval_key = self.evaluation(self.agents(state), state.eval_key)
        return metrics, state.replace(eval_key=eval_key)

    def no_metrics(self, state: TrainingState) -> RunningMetrics:
        """Return metrics of zeros, to add to."""
        if self._zeros is None:  # JAX keeps something for every `eval_shape`: once per run, not per record
            shapes = running_shapes(self.metrics_shape(state))
            self._zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        return self.layout.place(self._zeros, SAME)

    def with_agent(self, state: TrainingState, agent_state: AgentState) -> TrainingState:
        """Return the first state with another agent, or with other agents by policy."""
        return state.replace(learner=state.learner.with_agent(agent_state))

    def refill(self, state: TrainingState) -> TrainingState:
        """Give a state from a checkpoint without its replay buffer a new one, filled by the trained policy.

        The environments start new episodes. The env steps are not counted.
        """
        return state

    def warning(self, metrics: Mapping[str, float]) -> str:
        """Return a warning about the metrics of a record; empty if there is none."""
        return ""

    def populations(self, state: TrainingState) -> list[dict[str, Any]]:
        """Describe the final population of each seed as JSON data for the report; empty without populations."""
        return []

    def _make_evaluation(self, num_episodes: int, is_compiled: bool) -> Program:
        def evaluate(agents: dict[str, AgentState], eval_key: Key) -> tuple[PyTreeDict, Key]:
            next_key, play_key = jax.random.split(eval_key)
            metrics = PyTreeDict()
            for prefix, agent_state in agents.items():  # the same episodes for all agents, to compare them
                metrics |= self.evaluator.evaluate(agent_state, play_key, num_episodes).summary(prefix)
            return metrics, next_key

        return Program(
            self.layout.over_seeds(evaluate),
            self.layout.enable_jit and is_compiled,
            compiler_options=self.layout.compiler_options,
        )


class LearnerTraining(Training):
    """Trains a learner; subclasses say where its experience comes from."""

    learner: Learner

    @abstractmethod
    def start_learner(self, key: Key, hyperparameters: Hyperparameters) -> LearnerState:
        """Make the first state of the learner, for one seed on one device."""

    @functools.cached_property
    def learner_shape(self) -> LearnerState:
        """The shapes of the state of the learner, for one seed on one device."""
        return jax.eval_shape(self.start_learner, jax.random.key(0), self._hyperparameters)

    def agent_shape(self) -> AgentState:
        return self.learner_shape.agent_state

    def specs(self) -> TrainingState:
        return state_specs(self.learner.specs(self.learner_shape))

    def with_agent(self, state: TrainingState, agent_state: AgentState) -> TrainingState:
        return state.replace(learner=self.learner.with_agent(state.learner, agent_state))

    def counters(self, state: TrainingState) -> dict[str, Counter]:
        return self.learner.counters(state.learner)


class OnDevice(Training):
    """Training with environments in the compiled program; all iterations between two records are one call."""

    environments = NoEnvironments()
    start: Callable[[Key, Hyperparameters], TrainingState]
    """Makes the first state of one seed, on one device's share."""
    iterate: Callable[[TrainingState], tuple[Metrics, TrainingState]]
    """Runs one iteration of one seed, on one device's share."""
    _step: Program

    def init(self, key: Key, hyperparameters: Hyperparameters | None = None) -> TrainingState:
        return self._run_init(key, hyperparameters)

    def step(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        return self._step(state)

    def metrics_shape(self, state: TrainingState) -> Metrics:
        return jax.eval_shape(self._step, state)[0]

    def restarted(self, state: TrainingState, is_due: Array) -> TrainingState:
        """Return the state of one seed with new environments if `is_due`, and without replay rows.

        After a policy that diverged, they may contain NaN.
        """
        return state

    def _make_programs(self, start: Callable, iterate: Callable) -> None:
        """Make the programs from functions of one seed and one device's share."""
        self.start, self.iterate = start, iterate
        layout, specs = self.layout, self.specs()
        iterate_all = layout.over_seeds(iterate)
        if layout.enable_jit:
            iterate_all = jax.jit(iterate_all)  # traced once for all programs that contain it
        self._init = layout.program(layout.over_seeds(start), (SAME, SAME), specs, options=run_once_options())
        self._step = layout.program(iterate_all, (specs,), (SAME, specs))
        if layout.num_seeds == 1 or layout.vectorize_seeds:
            self.advance = _advance_program(layout, lambda state, until: iterate_all(state), specs)
        else:
            self.advance = _advance_program(layout, _pausing_seeds(layout, iterate), specs)


def _pausing_seeds(layout: Layout, iterate: Callable) -> Callable:
    """Make an iteration of all seeds that leaves those at `until` env steps as they are."""

    def iterate_below(state: TrainingState, until: Counter) -> tuple[Metrics, TrainingState]:
        def of_one_seed(state: TrainingState) -> tuple[Metrics, TrainingState]:
            shapes, _ = jax.eval_shape(iterate, state)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return jax.lax.cond(state.env_steps.is_below(until), iterate, lambda state: (nothing, state), state)

        return layout.over_seeds(of_one_seed)(state)

    return iterate_below


def _advance_program(layout: Layout, iterate: Callable, specs: TrainingState) -> Program:
    """Make the program that runs many iterations on the device and accumulates their metrics."""

    def advance(
        state: TrainingState, metrics: RunningMetrics, num_iterations: Array, until: Counter
    ) -> tuple[TrainingState, RunningMetrics]:
        def is_unfinished(carry: tuple[Array, TrainingState, RunningMetrics]) -> Array:
            num_done, state, _ = carry
            return (num_done < num_iterations) & jnp.any(state.env_steps.is_below(until))

        def body(carry: tuple[Array, TrainingState, RunningMetrics]) -> tuple[Array, TrainingState, RunningMetrics]:
            num_done, state, metrics = carry
            new_metrics, state = iterate(state, until)
            return num_done + 1, state, accumulate(metrics, new_metrics)

        _, state, metrics = jax.lax.while_loop(is_unfinished, body, (jnp.zeros((), jnp.int32), state, metrics))
        return state, metrics

    return layout.program(advance, (specs, SAME, SAME, SAME), (specs, SAME), donate=(0, 1))


def state_specs(learner: LearnerState) -> TrainingState:
    """Return the specs of a state, given the specs of its learner."""
    return specs_of(TrainingState, key=SAME, eval_key=SAME, learner=learner, source_state=SPLIT)


def timed(program: Program, state: TrainingState, num_calls: int = 1) -> float:
    """Return the seconds of the fastest call of a program, without compiling."""
    jax.block_until_ready(program(state))
    durations = []
    for _ in range(num_calls):
        start = time.perf_counter()
        jax.block_until_ready(program(state))
        durations.append(time.perf_counter() - start)
    return min(durations)
