"""Host training: a group of runners collects, a compiled program learns."""

import functools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState
from rookery.compilation import run_once_options
from rookery.distributed import SAME
from rookery.distributed.collectives import sum_over_devices
from rookery.errors import RookeryError
from rookery.hyperparameters import Hyperparameters
from rookery.learners.learner import Learner, LearnerState
from rookery.learning.counter import Counter
from rookery.learning.experience import Experience, JointExperience
from rookery.metrics import Metrics, RunningMetrics, accumulate
from rookery.runners.acting.actor import on_one_device
from rookery.runners.acting.roles import TRAIN, WARM_UP, RoleID
from rookery.runners.faults import EnvFaultError
from rookery.runners.groups.group import PATIENCE
from rookery.runs.divergence import NotFiniteError
from rookery.spaces import Space
from rookery.types import Key, all_finite
from rookery.workflows.config import TrainConfig
from rookery.workflows.host.collector import Collector, check_not_traced
from rookery.workflows.programs import Layout, Program
from rookery.workflows.training import REFILL, AgentEvaluator, LearnerTraining, TrainingState

Batch = Experience | JointExperience

POLL_SECONDS = 0.005
"""How often the end of an update is looked for while runners collect elsewhere."""


class HostTraining(LearnerTraining):
    """Alternates between collecting a batch by runners and learning from it in a compiled program."""

    advance: "HostTrainingLoop"
    evaluator: AgentEvaluator

    def __init__(
        self,
        collector: Collector,
        learner: Learner,
        hyperparameters: Hyperparameters,
        layout: Layout,
        evaluator: AgentEvaluator,
        train: TrainConfig,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.collector = self.environments = collector
        self.learner = learner
        self.agent = learner.agent
        self.layout = layout
        self.evaluator = evaluator
        self._warmup_role, agents = TRAIN, {TRAIN: learner.agent}
        warmup_agent = learner.warmup_agent(collector.obs_space, collector.action_space)
        if warmup_agent is not learner.agent:
            self._warmup_role, agents = WARM_UP, agents | {WARM_UP: warmup_agent}
        collector.set_agents(agents)
        self.evaluation = self._make_evaluation(train.evaluation_episodes, is_compiled=False)
        self._hyperparameters = hyperparameters
        self._blank = collector.example()
        self._specs = specs = self.specs()
        self._given = given = collector.experience_specs()
        self._init = layout.program(self._start, (SAME, SAME), specs, options=run_once_options())
        self._learn = layout.program(self._learn_from, (specs, given), (SAME, specs))
        self.acting_state = layout.program(self._acting_state, (specs,), SAME)
        """`acting_state(state)` returns a copy of the agent state for the next batch."""
        self._example = self.place(self._blank)
        self.advance = HostTrainingLoop(self, self._example, train.total_timesteps, train.max_staleness > 0, clock)

    def init(self, key: Key, hyperparameters: Hyperparameters | None = None) -> TrainingState:
        state = self._run_init(key, hyperparameters)
        return self._warm_up(state, self._warmup_role) if self.learner.warmup_steps else state

    def step(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        check_not_traced(self.collector.env_name, state)
        experience, num_steps = self.collect(self.acting_state(state))
        while self.learner.has_replay and not self.collector.has_full_batch(num_steps):
            state = self._store_in_copy(state, experience)
            experience, num_steps = self.collect(self.acting_state(state))
        return self._learn(state, experience)

    def refill(self, state: TrainingState) -> TrainingState:
        fresh = self._run_init(jax.random.fold_in(state.key, REFILL))
        empty = state.replace_learner(buffer_state=fresh.learner.buffer_state)  # type: ignore[attr-defined]
        empty = jax.tree.map(jnp.copy, empty.replace_learner(agent_state=self.acting_state(empty)))
        filled = self._warm_up(empty, TRAIN)  # overwrites its argument
        return state.replace_learner(buffer_state=filled.learner.buffer_state)  # type: ignore[attr-defined]

    def metrics_shape(self, state: TrainingState) -> Metrics:
        return jax.eval_shape(self._learn, state, self._example)[0]

    def collect_seconds(self, state: TrainingState) -> float:
        return self.advance.collect_seconds

    # For `HostTrainingLoop`.

    def collect(self, agent_state: AgentState) -> tuple[Batch, int]:
        """Collect one batch; return it, placed on the devices, and its number of env steps."""
        try:
            experience, num_steps = self.collector.collect(TRAIN, self._acting(agent_state))
        except EnvFaultError as error:
            self.check_finite(agent_state, error)
            raise
        return self.place(experience), num_steps

    def publish(self, agent_state: AgentState) -> None:
        """Let runners act with this state in the fragments that they are asked for from now on."""
        self.collector.publish(TRAIN, self._acting(agent_state))

    def check_finite(self, agent_state: AgentState | None, error: RookeryError) -> None:
        """Raise if runners failed because of parameters that are not finite."""
        if not all_finite(agent_state):
            raise NotFiniteError("the environments failed on the actions of parameters that are not finite") from error

    def update_program(self) -> Program:
        """Make the program of one update, which adds to the metrics and returns a copy of the next acting state."""

        def update(
            state: TrainingState, metrics: RunningMetrics, experience: Batch
        ) -> tuple[TrainingState, RunningMetrics, AgentState]:
            new_metrics, state = self._learn_from(state, experience)
            return state, accumulate(metrics, new_metrics), self._acting_state(state)

        specs = self._specs
        return self.layout.program(update, (specs, SAME, self._given), (specs, SAME, SAME), donate=(0, 1))

    def store_program(self) -> Program:
        """Make the program that stores a batch without learning, and adds to the metrics of episodes."""
        learned = jax.eval_shape(self._learn, self.state_shape(jax.random.key(0)), self._example)[0]

        def store(
            state: TrainingState, metrics: RunningMetrics, batch: Experience
        ) -> tuple[TrainingState, RunningMetrics]:
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), learned)
            return self._store(state, batch), accumulate(metrics, nothing | sum_over_devices(batch.metrics))

        specs = self._specs
        return self.layout.program(store, (specs, SAME, self._given), (specs, SAME), donate=(0, 1))

    @functools.cached_property
    def _store_in_copy(self) -> Program:
        return self.layout.program(self._store, (self._specs, self._given), self._specs)

    def _acting(self, agent_state: AgentState) -> AgentState:
        return on_one_device(agent_state) if self.layout.num_shares > 1 else agent_state

    def place(self, experience: Batch) -> Batch:
        """Split experience over the devices; with one device, return it unchanged."""
        num_devices = self.layout.num_shares
        if num_devices == 1:
            return experience
        # Programs sum the metrics over the devices.
        metrics = jax.tree.map(lambda number: number / np.float32(num_devices), experience.metrics)
        return self.layout.place(experience.replace(metrics=metrics), self._given)

    def _warm_up(self, state: TrainingState, role: RoleID) -> TrainingState:
        """Take the warm-up steps with the agent of a role and store them."""
        check_not_traced(self.collector.env_name, state)

        specs = self._specs
        program = self.layout.program(self._store, (specs, self._given), specs, donate=(0,), options=run_once_options())
        collector, num_steps = self.collector, 0
        collector.discard()
        # A copy: storing overwrites the state, and obs statistics stay those of the start.
        collector.publish(role, self._acting(jax.tree.map(jnp.copy, state.agent_state)))
        while num_steps < self.learner.warmup_steps:
            if collector.failure is not None:
                raise collector.failure
            if num_steps + collector.num_steps_under_way < self.learner.warmup_steps:
                collector.ask()
            collector.receive(PATIENCE)
            is_asking = num_steps + collector.num_steps_under_way < self.learner.warmup_steps
            if (batch := collector.take(is_asking)) is not None:
                state = program(state, self.place(batch[0]))
                num_steps += batch[1]
        return state

    def _store(self, state: TrainingState, experience: Experience) -> TrainingState:
        return state.replace(learner=self.learner.store(state.learner, experience))

    # For one device's share.

    def _start(self, key: Key, hyperparameters: Hyperparameters) -> TrainingState:
        key, eval_key, learner_key = jax.random.split(key, 3)
        learner = self.start_learner(learner_key, hyperparameters)
        return TrainingState(key=key, eval_key=eval_key, learner=learner, source_state=())

    @property
    def spaces(self) -> tuple[Space, Space]:
        return self.collector.obs_space, self.collector.action_space

    def start_learner(self, key: Key, hyperparameters: Hyperparameters) -> LearnerState:
        trajectory = self._blank.trajectory if isinstance(self._blank, Experience) else None
        return self.learner.init(*self.spaces, hyperparameters, key, trajectory)

    def _learn_from(self, state: TrainingState, experience: Batch) -> tuple[Metrics, TrainingState]:
        key, _, learn_key = jax.random.split(state.key, 3)  # as in device training, where the second key collects
        metrics, learner = self.learner.learn(state.learner, experience, learn_key)
        return metrics, state.replace(key=key, learner=learner)

    def _acting_state(self, state: TrainingState) -> AgentState:
        # A copy, because the next update overwrites the state, possibly while the agent acts.
        return jax.tree.map(jnp.copy, self.learner.acting_state(state.learner))


class HostTrainingLoop:
    """The loop of host training: collect a round, then update.

    If staleness is allowed, the update runs in another thread while runners collect. JAX executes the calls of one
    thread in order: in the same thread, every action would wait for the update.
    """

    def __init__(
        self,
        training: HostTraining,
        example: Batch,
        total_timesteps: int,
        collects_during_updates: bool,
        clock: Callable[[], float],
    ) -> None:
        self._training = training
        self._collector = training.collector
        self._example = example
        self._total_timesteps = total_timesteps
        self._collects_during_updates = collects_during_updates
        self._clock = clock
        self._update = training.update_program()
        self._key: Key | None = None
        """The key of the last state; the fragments under way belong to it."""
        self._agent_state: AgentState | None = None
        """The state that was published last."""
        self._seconds = 0.0
        """The time of collecting or waiting for all batches."""
        self._num_collected = 0

    def is_ready(self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter) -> bool:
        return self._update.is_ready(state, metrics, self._example) and self._training.acting_state.is_ready(state)

    def compile(self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter) -> float:
        return self._update.compile(state, metrics, self._example) + self._training.acting_state.compile(state)

    def __call__(
        self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter
    ) -> tuple[TrainingState, RunningMetrics]:
        """See `Advance`. It returns early if there is no batch for a second, so that its caller sees signals."""
        env_steps, num_done = int(state.env_steps), 0
        update = self._update.specialized(state, metrics, self._example)
        if state.key is not self._key or not self._collector.is_started:
            self._collector.discard()
            self._publish(self._training.acting_state(state))
        with ThreadPoolExecutor(1) as thread:
            while num_done < int(num_iterations) and env_steps < int(until):
                jax.block_until_ready(state.key)  # collecting time excludes a running update
                batch = self._next_batch(env_steps)
                if batch is None:
                    break
                experience, num_steps = self._training.place(batch[0]), batch[1]
                env_steps += num_steps
                if self._training.learner.has_replay and not self._collector.has_full_batch(num_steps):
                    state, metrics = self._store(state, metrics, experience)
                    continue
                if self._collects_during_updates and env_steps < self._total_timesteps:
                    result = thread.submit(_finished, update, state, metrics, experience)
                    try:
                        self._collect_until(result, env_steps)
                    finally:
                        state, metrics, agent_state = result.result()
                else:
                    state, metrics, agent_state = update(state, metrics, experience)
                self._publish(agent_state)
                num_done += 1
        self._key = state.key
        return state, metrics

    @property
    def collect_seconds(self) -> float:
        """The mean time to collect one batch, or to wait for it."""
        return self._seconds / max(self._num_collected, 1)

    @functools.cached_property
    def _store(self) -> Program:
        return self._training.store_program()

    def _publish(self, agent_state: AgentState) -> None:
        self._agent_state = agent_state
        self._training.publish(agent_state)

    def _next_batch(self, env_steps: int) -> tuple[Batch, int] | None:
        """Wait for the next round; None if there is none for a second, or never again."""
        collector, start = self._collector, self._clock()
        while (batch := collector.take(self._is_asking(env_steps))) is None:
            if collector.failure is not None:
                self._training.check_finite(self._agent_state, collector.failure)
                return None
            if self._clock() - start >= PATIENCE:
                return None
            self._ask(env_steps)
            collector.seconds_waited += self._receive(PATIENCE)
        self._num_collected += 1
        return batch if batch[1] else None

    def _collect_until(self, update: Future, env_steps: int) -> None:
        """Let runners collect while an update runs. They are asked in any case: timing must not decide who acts."""
        while True:
            self._ask(env_steps, is_updating=True)
            if not self._collector.is_waiting:
                return
            self._receive(POLL_SECONDS)
            if update.done():
                return

    def _ask(self, env_steps: int, is_updating: bool = False) -> None:
        if self._is_asking(env_steps):
            self._collector.ask(is_updating)

    def _is_asking(self, env_steps: int) -> bool:
        """Return whether steps trained, queued and asked for are less than `total_timesteps`."""
        return env_steps + self._collector.num_steps_under_way < self._total_timesteps

    def _receive(self, timeout: float) -> float:
        """Receive replies; return the seconds that this took."""
        start = self._clock()
        self._collector.receive(timeout)
        seconds = self._clock() - start
        self._seconds += seconds
        return seconds


def _finished(program: Callable, *args: Any) -> Any:
    """Run a program to its end; JAX may otherwise return before."""
    return jax.block_until_ready(program(*args))
