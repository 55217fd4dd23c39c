"""Host training: a group of runners collects, a compiled program learns."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState
from rookery.compilation import run_once_options
from rookery.distributed import SAME
from rookery.evaluators.host import HostEvaluator
from rookery.hyperparameters import Hyperparameters
from rookery.learners.learner import Learner, LearnerState
from rookery.learning.counter import Counter
from rookery.learning.experience import Experience, JointExperience
from rookery.metrics import Metrics, RunningMetrics, accumulate
from rookery.runners.acting.actor import on_one_device
from rookery.runners.acting.roles import TRAIN, WARM_UP, RoleID
from rookery.runners.faults import EnvFaultError
from rookery.runs.divergence import NotFiniteError
from rookery.spaces import Space
from rookery.types import Key, all_finite
from rookery.workflows.collector import Collector, check_not_traced
from rookery.workflows.config import TrainConfig
from rookery.workflows.programs import Layout, Program
from rookery.workflows.training import REFILL, LearnerTraining, TrainingState

Batch = Experience | JointExperience


class HostTraining(LearnerTraining):
    """Alternates between collecting a batch by runners and learning from it in a compiled program."""

    advance: "HostTrainingLoop"
    evaluator: HostEvaluator

    def __init__(
        self,
        collector: Collector,
        learner: Learner,
        hyperparameters: Hyperparameters,
        layout: Layout,
        evaluator: HostEvaluator,
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
        self._example = self._place(self._blank)
        self.advance = HostTrainingLoop(self, self._example, train.total_timesteps, train.env.runner.overlap, clock)

    def init(self, key: Key) -> TrainingState:
        state = self._run_init(key)
        return self._warm_up(state, self._warmup_role) if self.learner.warmup_steps else state

    def step(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        check_not_traced(self.collector.env_name, state)
        experience, _ = self.collect(self.acting_state(state))
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

    def collect(self, agent_state: AgentState, staleness: int = 0) -> tuple[Batch, int]:
        """Collect one batch; return it, placed on the devices, and its number of env steps."""
        try:
            return self._collect(TRAIN, agent_state, self.learner.config.rollout_length, staleness)
        except EnvFaultError as error:
            if all_finite(agent_state):
                raise
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

    def _collect(
        self, role: RoleID, agent_state: AgentState, rollout_length: int, staleness: int = 0
    ) -> tuple[Batch, int]:
        if self.layout.mesh.size > 1:
            agent_state = on_one_device(agent_state)
        experience, num_steps = self.collector.collect(role, agent_state, rollout_length, staleness)
        return self._place(experience), num_steps

    def _place(self, experience: Batch) -> Batch:
        """Split experience over the devices; with one device, return it unchanged."""
        num_devices = self.layout.mesh.size
        if num_devices == 1:
            return experience
        # Programs sum the metrics over the devices.
        metrics = jax.tree.map(lambda number: number / np.float32(num_devices), experience.metrics)
        return self.layout.place(experience.replace(metrics=metrics), self._given)

    def _warm_up(self, state: TrainingState, role: RoleID) -> TrainingState:
        """Take the warm-up steps with the agent of a role and store them."""
        check_not_traced(self.collector.env_name, state)

        def store(state: TrainingState, experience: Experience) -> TrainingState:
            return state.replace(learner=self.learner.store(state.learner, experience))

        specs = self._specs
        program = self.layout.program(store, (specs, self._given), specs, donate=(0,), options=run_once_options())
        num_steps = 0
        while num_steps < self.learner.warmup_steps:
            experience, num_new = self._collect(role, state.agent_state, rollout_length=1)
            state = program(state, experience)
            num_steps += num_new
        return state

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
    """The loop of host training: collect, then update.

    With `overlap` the update runs in another thread while the next batch is collected. JAX executes the calls of one
    thread in order: in the same thread, every action would wait for the update.
    """

    def __init__(
        self,
        training: HostTraining,
        example: Batch,
        total_timesteps: int,
        overlap: bool,
        clock: Callable[[], float],
    ) -> None:
        self._training = training
        self._example = example
        self._total_timesteps = total_timesteps
        self._overlap = overlap
        self._clock = clock
        self._update = training.update_program()
        self._ahead: tuple[Key, Batch, int] | None = None
        """The batch collected ahead: the key of the state that it belongs to, the batch, and its env steps."""
        self._seconds = self._last_seconds = 0.0
        """The collecting time of all batches, and of the last batch."""
        self._num_collected = 0

    def is_ready(self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter) -> bool:
        return self._update.is_ready(state, metrics, self._example) and self._training.acting_state.is_ready(state)

    def compile(self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter) -> float:
        return self._update.compile(state, metrics, self._example) + self._training.acting_state.compile(state)

    def __call__(
        self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter
    ) -> tuple[TrainingState, RunningMetrics]:
        env_steps, num_done = int(state.env_steps), 0
        update = self._update.specialized(state, metrics, self._example)
        agent_state = self._training.acting_state(state)
        collected = self._take_ahead(state)
        with ThreadPoolExecutor(1) as thread:
            while num_done < int(num_iterations) and env_steps < int(until):
                jax.block_until_ready(state.key)  # collecting time excludes a running update
                experience, num_steps = collected or self._collect(agent_state)
                collected = None
                env_steps += num_steps
                if self._overlap and env_steps < self._total_timesteps:
                    result = thread.submit(update, state, metrics, experience)
                    try:
                        collected = self._collect(agent_state, staleness=1)
                    finally:
                        state, metrics, agent_state = result.result()
                else:
                    state, metrics, agent_state = update(state, metrics, experience)
                num_done += 1
        if collected is not None:
            self._ahead = (state.key, *collected)
        collector = self._training.collector
        collector.seconds_ahead = 0.0 if collected is None else self._last_seconds
        collector.steps_ahead = 0 if collected is None else collected[1]
        return state, metrics

    @property
    def collect_seconds(self) -> float:
        """The mean time to collect one batch."""
        return self._seconds / max(self._num_collected, 1)

    def _collect(self, agent_state: AgentState, staleness: int = 0) -> tuple[Batch, int]:
        start = self._clock()
        collected = self._training.collect(agent_state, staleness)
        self._last_seconds = self._clock() - start
        self._seconds += self._last_seconds
        self._num_collected += 1
        return collected

    def _take_ahead(self, state: TrainingState) -> tuple[Batch, int] | None:
        """Return the batch that was collected ahead for this state."""
        if self._ahead is None:
            return None
        (key, experience, num_steps), self._ahead = self._ahead, None
        self._training.collector.steps_ahead = 0
        if key is state.key:
            return experience, num_steps
        self._training.collector.discard(num_steps)
        return None
