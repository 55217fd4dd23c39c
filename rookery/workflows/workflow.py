"""The workflow: a run of a method, from its config to its last checkpoint. `learn` is the training loop."""

import json
import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.distributed import SAME, device_mesh
from rookery.errors import InvalidInputError
from rookery.hyperparameters import Hyperparameters
from rookery.learning.counter import Counter
from rookery.metrics import RunningMetrics, running_shapes, values_of
from rookery.recorders import make_recorder
from rookery.runs.checkpoint import CheckpointError, Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.divergence import STOP, DivergedError
from rookery.runs.files import write_atomically
from rookery.runs.interruption import Interrupted, StopSignals
from rookery.runs.log import Progress, RunLog
from rookery.runs.timetable import Timetable
from rookery.types import Key, PyTreeDict, all_finite, as_key, make_key
from rookery.workflows.config import Settings, settings_from
from rookery.workflows.programs import Layout, Program, gather
from rookery.workflows.run_directory import created_run, describe_run, existing_run, reopened_run
from rookery.workflows.training import AgentEvaluator, Training, TrainingState

logger = logging.getLogger(__name__)

SECONDS_PER_CALL = 0.5
"""Target time of one call of the training program; signals are checked between calls. It does not change results."""
OUTSIDE = "outside"
"""The entry of a checkpoint's metadata for `Environments.get_state`."""


class Workflow(ABC):
    """A run of a method. Subclasses set the name, the config, the hyper-parameters and the training of the method."""

    agent_name: ClassVar[str]
    config_class: ClassVar[type]
    hyperparameters_class: ClassVar[type[Hyperparameters]]
    vectorize_seeds: ClassVar[bool] = True
    """If True, vectorize seeds with `vmap`; otherwise loop over them."""
    compiler_options: ClassVar[Callable[[], Mapping[str, str]]] = dict

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "update" in cls.__dict__:
            raise InvalidInputError(
                f"{cls.__name__}.update belongs to the learner: define it in a subclass of OnPolicyLearner (or "
                "learn_batch in a subclass of ReplayLearner), and set learner_class of the workflow to that."
            )

    def __init__(
        self, settings: Settings, num_devices: int, enable_jit: bool, evaluation_episodes: int | None = None
    ) -> None:
        train = settings.train
        self.settings = settings
        self.config = settings.method
        self.layout = Layout(
            mesh=device_mesh(num_devices),
            num_seeds=train.num_seeds,
            vectorize_seeds=self.vectorize_seeds,
            enable_jit=enable_jit,
            compiler_options=type(self).compiler_options(),
        )
        self.timetable = Timetable.of(
            train.total_timesteps, train.record_interval, train.evaluation.interval, train.checkpoint.interval
        )
        self.recorders = [make_recorder(name) for name in (train.recorders if jax.process_index() == 0 else ())]
        self.evaluation_episodes = evaluation_episodes
        self.training = self.make_training()
        self._has_warned = False
        self._zeros: RunningMetrics | None = None

    @abstractmethod
    def make_training(self) -> Training:
        """Make the training of this run."""

    @property
    def agent(self) -> Agent:
        return self.training.agent

    @property
    def evaluator(self) -> AgentEvaluator:
        return self.training.evaluator

    @classmethod
    def build_from_config(
        cls,
        config: Any,
        enable_multi_devices: bool = False,
        enable_jit: bool = True,
        evaluation_episodes: int | None = None,
    ) -> "Workflow":
        """Check a config and build the workflow; nothing is compiled yet.

        If `devices` of the config is null, the workflow uses one device, or with `enable_multi_devices` all devices.
        With `evaluation_episodes` the workflow is built to evaluate that number of episodes: no host environments for
        training are started.
        """
        settings = settings_from(config, cls.agent_name, cls.config_class, cls.hyperparameters_class)
        num_devices = settings.train.devices or (jax.device_count() if enable_multi_devices else 1)
        return cls(settings, device_mesh(num_devices).size, enable_jit, evaluation_episodes)

    def set_run_dir(self, path: str) -> None:
        """Set the run directory of a workflow that was built without one."""
        self.settings = replace(self.settings, train=replace(self.settings.train, run_dir=path))

    def make_key(self) -> Key:
        """Make the key of the configured seed, or the keys of all seeds."""
        train = self.settings.train
        if train.num_seeds == 1:
            return make_key(train.seed, train.prng)
        return jax.vmap(lambda seed: make_key(seed, train.prng))(np.array(train.seeds, np.int32))

    def init(self, key: Key) -> TrainingState:
        """Make the first state. For several seeds, give one key each, or one key to split."""
        key, num_seeds = as_key(key), self.layout.num_seeds
        if num_seeds > 1 and key.shape == ():
            key = jax.random.split(key, num_seeds)
        if key.shape != (() if num_seeds == 1 else (num_seeds,)):
            raise InvalidInputError(f"init takes one key, or {num_seeds} for the seeds; got {list(key.shape)}.")
        return self.training.init(key)

    def step(self, state: TrainingState) -> tuple[PyTreeDict, TrainingState]:
        """Train for one iteration; can be jitted and vmapped over states.

        The argument `state` stays valid, so the whole state is copied, with its replay buffer. `learn` copies once.
        """
        metrics, state = self.training.step(state)
        return values_of(metrics), state

    def evaluate(self, state: TrainingState) -> tuple[PyTreeDict, TrainingState]:
        """Play episodes with the greedy policy."""
        metrics, eval_key = self.training.evaluation(self.training.agents(state), state.eval_key)
        return metrics, state.replace(eval_key=eval_key)

    def play(self, agent_state: AgentState, key: Key, max_steps: int) -> Iterator[np.ndarray]:
        """Play and render one greedy episode of at most `max_steps` steps; raise `RenderError` if that fails."""
        return self.evaluator.frames(agent_state, key, max_steps)

    def check_memory(self, state: TrainingState) -> None:
        """Raise if a program of the run needs more memory than there is; nothing is compiled."""
        training = self.training
        until = jax.tree.map(np.asarray, Counter.of(0))
        if isinstance(training.advance, Program):
            training.advance.check(state, self._no_metrics(state), np.int32(0), until)
        training.evaluation.check(training.agents(state), state.eval_key)

    def learn(self, state: TrainingState) -> TrainingState:
        """Train until `total_timesteps`, with records, evaluations and checkpoints; return the last state."""
        # The training program overwrites its state, so it gets a copy.
        state = jax.tree.map(jnp.copy, state)
        self.check_memory(state)
        with created_run(self.settings, self.layout.mesh) as run:
            return self._train(run, state, self._no_metrics(state), None)

    def resume(self, step: int | None = None, changed_from: Any = None) -> TrainingState:
        """Continue from a checkpoint of the run directory: the one at `step`, or the last.

        A run that was stopped before its first checkpoint starts from the beginning. If the hyper-parameters of this
        workflow are not those of the run, `changed_from` is the config that the run had before.
        """
        with reopened_run(self.settings) as run:
            if step is None and not self._checkpoints(existing_run(self.settings)).steps():
                state, progress = self.init(self.make_key()), Progress()
                metrics = self._no_metrics(state)
            else:
                state, metrics, progress = self._restore(step, changed_from)
            if changed_from is not None and run is not None:
                run.change_config(self.settings.to_mapping(), progress.env_steps)
            return self._train(run, state, metrics, progress)

    def restore(self, step: int | None = None) -> TrainingState:
        """Return the state of a checkpoint: the one at `step`, or the last."""
        return self._restore(step)[0]

    def close(self) -> None:
        """Close host environments. May be called twice."""
        self.training.close()

    # The loop.

    def _train(
        self, run: RunDirectory | None, state: TrainingState, metrics: RunningMetrics, resumed: Progress | None
    ) -> TrainingState:
        timetable, training = self.timetable, self.training
        description = describe_run(self.settings, run)
        if resumed is not None and run is not None:
            # Before the recorders discard the later records, which the later checkpoints count on.
            self._checkpoints(run).discard_after(env_steps_of(state))
            run.population_path.unlink(missing_ok=True)
        with (
            StopSignals() as stop,
            RunLog(description, self.recorders, resumed, sum(counts_of(state.env_steps))) as log,
        ):
            env_steps = log.progress.env_steps = env_steps_of(state)  # warm-up steps count, too

            if resumed is None:
                self._save(run, log, state, metrics, is_last=False)
            has_to_train = env_steps < timetable.total_timesteps
            while env_steps < timetable.total_timesteps:
                record_at = timetable.next_record(env_steps)
                until = jax.tree.map(np.asarray, Counter.of(record_at))  # on the host, so that every process has it
                log.compile("training program", training.advance, state, metrics, np.int32(0), until)
                while env_steps < record_at and not stop_agreed(stop):
                    at_most, before = np.int32(log.iterations_within(SECONDS_PER_CALL)), counts_of(state.iterations)
                    with log.training():
                        state, metrics = jax.block_until_ready(training.advance(state, metrics, at_most, until))
                    env_steps = env_steps_of(state)
                    log.advance(env_steps, max_increase(before, counts_of(state.iterations)))
                is_stopped = env_steps < record_at
                diverged = self._check_divergence(log, state, metrics)
                if not is_stopped:
                    evaluation = PyTreeDict()
                    is_due = timetable.is_due(timetable.evaluation_interval, record_at, env_steps)
                    if is_due and diverged is None:
                        log.compile("evaluation program", training.evaluation, training.agents(state), state.eval_key)
                        with log.evaluating():
                            evaluation, state = jax.block_until_ready(self.evaluate(state))
                    self._warn_about(log.record(self._counts(state), metrics, evaluation))
                    metrics = self._no_metrics(state)
                if diverged is not None:
                    raise diverged
                is_due = not is_stopped and timetable.is_due(timetable.checkpoint_interval, record_at, env_steps)
                is_stopped = stop_agreed(stop) and env_steps < timetable.total_timesteps
                if is_stopped or is_due:
                    is_last = is_stopped or env_steps >= timetable.total_timesteps
                    self._save(run, log, state, metrics, is_last)
                if is_stopped:
                    raise Interrupted(stop.requested or signal.SIGTERM, log.consequence)
            if counts_of(state.iterations)[0] == 1 and env_steps > timetable.total_timesteps:
                budget = f"total_timesteps={timetable.total_timesteps:,}"
                logger.warning("%s is less than one iteration, which takes %s steps.", budget, f"{env_steps:,}")
            # Every process must agree, because the program runs on the devices of all processes.
            is_measured = has_to_train and self.settings.train.run_dir is not None
            log.finish(training.collect_seconds(state) if is_measured else None)
            populations = training.populations(state)
            if populations and run is not None:
                write_atomically(run.population_path, json.dumps(populations) + "\n")
        return state

    def _save(
        self, run: RunDirectory | None, log: RunLog, state: TrainingState, metrics: RunningMetrics, is_last: bool
    ) -> None:
        """Save a checkpoint; warn if it cannot be written, unless it is the last."""
        tree = gather((self._saved(state), metrics))
        if run is None:
            return
        metadata = log.progress.to_mapping() | {OUTSIDE: self.training.environments.get_state()}
        try:
            log.sync()
            self._checkpoints(run).save(tree, env_steps_of(state), metadata)
        except (CheckpointError, OSError) as error:
            if is_last:
                raise
            logger.warning("%s Training continues and saves again when the next checkpoint is due.", error)

    def _check_divergence(self, log: RunLog, state: TrainingState, metrics: RunningMetrics) -> DivergedError | None:
        """Return the error if training has diverged in all seeds and has to stop; else warn about new divergences.

        Parameters and metrics are the same in all processes, so all processes agree.
        """
        has_finite_params = [all_finite(agent) for agent in self.layout.seeds_of(state.agent_state)]
        found = log.find_divergences(counts_of(state.env_steps), metrics, has_finite_params)
        new = log.mark_diverged(found)
        is_over = len(log.progress.diverged) == self.layout.num_seeds
        if found and is_over and self.settings.train.on_nan == STOP:
            return log.diverged_error(found[-1])
        for divergence in new if jax.process_index() == 0 else ():
            logger.warning("%s; training goes on.", divergence)
        return None

    def _warn_about(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Show the first warning about the rows of a record, once in a run."""
        warnings = filter(None, map(self.training.warning, rows))
        if not self._has_warned and jax.process_index() == 0 and (warning := next(warnings, "")):
            self._has_warned = True
            logger.warning(warning)

    def _counts(self, state: TrainingState) -> dict[str, list[Any]]:
        """Return the values of a record that are not averaged, for each seed."""
        counters = {"time/total_timesteps": state.env_steps, "time/iterations": state.iterations}
        counters |= self.training.counters(state)
        counts: dict[str, list[Any]] = {name: counts_of(counter) for name, counter in counters.items()}
        return counts | {name: [value] for name, value in self.training.environments.report().items()}

    def _no_metrics(self, state: TrainingState) -> RunningMetrics:
        """Return metrics of zeros, to add to."""
        if self._zeros is None:  # JAX keeps something for every `eval_shape`: once per run, not per record
            shapes = running_shapes(self.training.metrics_shape(state))
            self._zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        return self.layout.place(self._zeros, SAME)

    # Checkpoints.

    def _checkpoints(self, run: RunDirectory) -> Checkpoints:
        return Checkpoints(run.checkpoints_path, self.settings.train.checkpoint.keep)

    def _restore(self, step: int | None, changed_from: Any = None) -> tuple[TrainingState, RunningMetrics, Progress]:
        shape = self.training.state_shape(self.make_key())
        metrics_shape = running_shapes(self.training.metrics_shape(shape))
        if changed_from is not None:
            before = settings_from(changed_from, self.agent_name, self.config_class, self.hyperparameters_class)
            shape = self._with_hyperparameters(shape, before.hyperparameters)
        wanted = self._saved(shape), metrics_shape
        (state, metrics), metadata = self._checkpoints(existing_run(self.settings)).restore(wanted, step)
        self.training.environments.set_state(metadata.pop(OUTSIDE))
        if changed_from is not None:
            state = self._with_hyperparameters(state, self.settings.hyperparameters)
        state = self.layout.place(state, self._saved(self.training.specs()))
        if state.learner.lacks_replay:
            state = self.training.refill(state)
        return state, self.layout.place(metrics, SAME), Progress.from_mapping(metadata)

    def _with_hyperparameters(self, state: TrainingState, hyperparameters: Hyperparameters) -> TrainingState:
        """Replace the hyper-parameters of all seeds of a state on the host."""
        seeds = () if self.layout.num_seeds == 1 else (self.layout.num_seeds,)
        of_seeds = jax.tree.map(lambda value: np.full(seeds, value, np.float32), hyperparameters)
        return state.replace(learner=state.learner.with_hyperparameters(of_seeds))

    def _saved(self, state: TrainingState) -> TrainingState:
        """Return the part of a state that checkpoints contain."""
        if self.settings.train.checkpoint.replay:
            return state
        return state.replace(learner=state.learner.without_replay())


def counts_of(counter: Counter) -> list[int]:
    """Return the count of each seed."""
    return counter.to_ints() if counter.low.ndim else [int(counter)]


def env_steps_of(state: TrainingState) -> int:
    """Return the env steps of the seed with the fewest."""
    return min(counts_of(state.env_steps))


def max_increase(before: list[int], after: list[int]) -> int:
    """Return the largest increase of a count of any seed."""
    return max(new - old for old, new in zip(before, after, strict=True))


def stop_agreed(stop: StopSignals) -> bool:
    """Return whether any process received a stop signal; all processes must leave the loop in the same iteration."""
    if jax.process_count() == 1:
        return stop.requested is not None
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.array(stop.requested is not None))))
