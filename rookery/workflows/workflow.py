"""What trains: a workflow holds the logic of a run, its state all that changes, and `learn` the one loop."""

import contextlib
import math
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.distributed import device_mesh
from rookery.envs import AutoresetMode, MultiAgentEnv, VectorWrapper, create_env
from rookery.errors import InvalidInputError
from rookery.evaluators import Evaluator
from rookery.learning.counter import Counter
from rookery.metrics import values_of
from rookery.recorders import make_recorder
from rookery.runs import RunDirectory
from rookery.types import Key, PyTreeDict, State, as_key, make_key
from rookery.workflows.checkpoint import Checkpoints
from rookery.workflows.config import Hyperparameters, Settings, TrainConfig, settings_from
from rookery.workflows.interruption import Interrupted, StopSignals
from rookery.workflows.programs import SAME, Layout, Program, gather
from rookery.workflows.run_log import Progress, RunLog

SECONDS_PER_CALL = 0.5
"""How long the device works between two looks at the clock and at signals; it makes no difference to the result."""


class WorkflowState(State):
    """What the state of every workflow holds; `eval_key` is apart, so that evaluation does not change training."""

    eval_key: Key
    agent_state: AgentState
    hyperparameters: Hyperparameters
    iterations: Counter
    env_steps: Counter
    num_updates: Counter


@dataclass(frozen=True)
class Timetable:
    """When things happen, in iterations: each at multiples of its interval, and after the last iteration."""

    num_iterations: int
    record_interval: int
    evaluation_interval: int
    checkpoint_interval: int

    @classmethod
    def of(cls, train: TrainConfig, steps_per_iteration: int) -> Self:
        """Turn intervals in env steps into iterations; evaluations and checkpoints go with a record."""
        num_iterations = math.ceil(train.total_timesteps / steps_per_iteration)
        wanted = [train.total_timesteps / 50, train.evaluation.interval, train.checkpoint.interval]
        record_steps = train.record_interval or min(steps for steps in wanted if steps)
        record_interval = max(1, round(record_steps / steps_per_iteration))

        def with_records(interval: int | None) -> int:
            steps = interval or train.total_timesteps / 10
            return record_interval * max(1, round(steps / (steps_per_iteration * record_interval)))

        return cls(
            num_iterations,
            record_interval,
            with_records(train.evaluation.interval),
            with_records(train.checkpoint.interval),
        )

    def next_record(self, iteration: int) -> int:
        """The iteration after which the next record is made."""
        return min(self.num_iterations, (iteration // self.record_interval + 1) * self.record_interval)

    def is_due(self, interval: int, iteration: int) -> bool:
        """Tell whether something with this interval happens after `iteration`."""
        return iteration % interval == 0 or iteration == self.num_iterations


class Workflow(ABC):
    """Trains an agent. A family of methods says what an iteration is; a method says how it learns.

    Subclasses give the name of the method, its config and its hyper-parameters, and the three hooks `setup`,
    `iterate` and `state_specs`. The hooks know of one seed and of this device's share of the environments.
    """

    agent_name: ClassVar[str]
    config_class: ClassVar[type]
    hyperparameters_class: ClassVar[type[Hyperparameters]]
    config: Any
    agent: Agent

    def __init__(self, settings: Settings, num_devices: int, enable_jit: bool) -> None:
        self.settings = settings
        self.config = settings.method
        self.enable_jit = enable_jit
        self.layout = Layout(mesh=device_mesh(num_devices), num_seeds=settings.train.num_seeds)
        self.agent = self.make_agent()
        self.timetable = Timetable.of(settings.train, self.steps_per_iteration)
        self.evaluator = self._make_evaluator()
        names = settings.train.recorders if jax.process_index() == 0 else ()
        self.recorders = [make_recorder(name) for name in names]
        layout, specs = self.layout, self.state_specs()
        iterate = layout.over_seeds(self.iterate)
        if enable_jit:
            iterate = jax.jit(iterate)  # so that it is traced once for all the programs that contain it

        def advance(state: Any, metrics: Any, num_iterations: Any) -> tuple[Any, Any]:
            def body(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
                new_metrics, state = iterate(carry[0])
                return state, jax.tree.map(jnp.add, carry[1], new_metrics)

            return jax.lax.fori_loop(0, num_iterations, body, (state, metrics))

        self._init = self.program(layout.over_seeds(self.setup), (SAME,), specs)
        self._step = self.program(iterate, (specs,), (SAME, specs))
        self._advance = self.program(advance, (specs, SAME, SAME), (specs, SAME), donate=(0, 1))
        self._evaluate = Program(layout.over_seeds(self._evaluate_one), enable_jit)

    @classmethod
    def build_from_config(cls, config: Any, enable_multi_devices: bool = False, enable_jit: bool = True) -> Self:
        """Check a config and build the workflow; nothing is compiled yet.

        `devices` of the config says how many devices are used; where it is null, one, or all there are with
        `enable_multi_devices`.
        """
        settings = settings_from(config, cls.agent_name, cls.config_class, cls.hyperparameters_class)
        num_devices = settings.train.devices or (jax.device_count() if enable_multi_devices else 1)
        return cls(settings, device_mesh(num_devices).size, enable_jit)

    def program(self, function: Callable, in_specs: Any, out_specs: Any, donate: tuple[int, ...] = ()) -> Program:
        """Make a program of a function that each device runs on its share."""
        return Program(self.layout.over_devices(function, in_specs, out_specs), self.enable_jit, donate)

    # What a family of methods defines.

    @abstractmethod
    def make_agent(self) -> Agent:
        """Build the agent."""

    @property
    @abstractmethod
    def steps_per_iteration(self) -> int:
        """The number of env steps of one iteration of one seed, over all devices."""

    @abstractmethod
    def setup(self, key: Key) -> Any:
        """Make the first state."""

    @abstractmethod
    def iterate(self, state: Any) -> tuple[PyTreeDict, Any]:
        """Train for one iteration; the metrics are `Mean`s, the same on all devices."""

    @abstractmethod
    def state_specs(self) -> Any:
        """Say which parts of the state are split over the devices: a tree of `SAME` and `SPLIT` like the state."""

    # What a user calls.

    def make_key(self) -> Key:
        """Make the key of the configured seed, or the keys of all seeds."""
        train = self.settings.train
        keys = [make_key(seed, train.prng) for seed in train.seeds]
        return keys[0] if train.num_seeds == 1 else jnp.stack(keys)

    def init(self, key: Key) -> Any:
        """Make the first state; with several seeds, from one key each, or from one that is split."""
        key, num_seeds = as_key(key), self.layout.num_seeds
        if num_seeds > 1 and key.shape == ():
            key = jax.random.split(key, num_seeds)
        if key.shape != (() if num_seeds == 1 else (num_seeds,)):
            raise InvalidInputError(f"init takes one key, or {num_seeds} for the seeds; got {list(key.shape)}.")
        return self._init(key)

    def step(self, state: Any) -> tuple[PyTreeDict, Any]:
        """Train for one iteration; can be jitted and vmapped over states."""
        metrics, state = self._step(state)
        return values_of(metrics), state

    def evaluate(self, state: Any) -> tuple[PyTreeDict, Any]:
        """Play episodes with the greedy policy."""
        metrics, eval_key = self._evaluate(state.agent_state, state.eval_key)
        return metrics, state.replace(eval_key=eval_key)

    def learn(self, state: Any) -> Any:
        """Train until `total_timesteps`, with records, evaluations and checkpoints; return the last state."""
        # The training program overwrites the state it is given: let that be a copy.
        with self._create_run() as run:
            return self._train(run, jax.tree.map(jnp.copy, state), self._no_metrics(state), None)

    def resume(self, step: int | None = None) -> Any:
        """Go on from a checkpoint of the run directory, the last one unless `step` says another.

        A run that was ended before its first checkpoint begins again.
        """
        with self._reopen_run() as run:
            if step is None and not self._checkpoints(self._run_directory()).steps():
                state = self.init(self.make_key())
                return self._train(run, state, self._no_metrics(state), Progress())
            (state, metrics), progress = self._restore(step)
            return self._train(run, state, metrics, progress)

    def restore(self, step: int | None = None) -> Any:
        """Return the state of a checkpoint, the last one unless `step` says another."""
        return self._restore(step)[0][0]

    def close(self) -> None:  # noqa: B027
        """Free what the workflow holds besides memory; a compiled one holds nothing."""

    # The loop.

    def _train(self, run: RunDirectory | None, state: Any, metrics: Any, resumed: Progress | None) -> Any:
        timetable = self.timetable
        first_steps = sum(counts_of(state.env_steps))
        with StopSignals() as stop, RunLog(self.settings, self.recorders, run, resumed, first_steps) as log:
            iteration = counts_of(state.iterations)[0]

            def save() -> None:
                tree = gather((state, metrics))
                if run is not None:
                    log.sync()
                    self._checkpoints(run).save(tree, counts_of(state.env_steps)[0], log.progress.to_mapping())

            if resumed is None:
                save()
            elif run is not None:
                # What was saved later belongs to a past that is now left behind.
                self._checkpoints(run).discard_after(resumed.env_steps)
            has_to_train = iteration < timetable.num_iterations
            while iteration < timetable.num_iterations:
                target = timetable.next_record(iteration)
                log.compile("training program", self._advance, state, metrics, np.int32(0))
                while iteration < target and not stop_agreed(stop):
                    count = log.iterations_within(SECONDS_PER_CALL, target - iteration)
                    with log.training(count):
                        state, metrics = jax.block_until_ready(self._advance(state, metrics, np.int32(count)))
                    iteration += count
                    log.advance(counts_of(state.env_steps)[0])
                if iteration == target:
                    evaluation = PyTreeDict()
                    if timetable.is_due(timetable.evaluation_interval, iteration):
                        log.compile("evaluation program", self._evaluate, state.agent_state, state.eval_key)
                        with log.evaluating():
                            evaluation, state = jax.block_until_ready(self.evaluate(state))
                    log.record(self._counts(state), metrics, evaluation)
                    metrics = self._no_metrics(state)
                is_last = iteration == timetable.num_iterations
                is_stopped = stop_agreed(stop) and not is_last
                if is_stopped or (iteration == target and timetable.is_due(timetable.checkpoint_interval, iteration)):
                    save()
                if is_stopped:
                    raise Interrupted(stop.requested or signal.SIGTERM, log.consequence)
            # On all processes alike: the program is compiled for all their devices.
            is_measured = has_to_train and self.settings.train.run_dir is not None
            log.finish(self.collect_seconds(state) if is_measured else None)
        return state

    def _counts(self, state: Any) -> dict[str, list[int]]:
        """Return what is counted and not averaged, for each seed."""
        return {
            "time/total_timesteps": counts_of(state.env_steps),
            "time/iterations": counts_of(state.iterations),
            "train/n_updates": counts_of(state.num_updates),
        }

    def _no_metrics(self, state: Any) -> Any:
        """Return metrics to add to."""
        metrics, _ = jax.eval_shape(self._step, state)
        return self.layout.place(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), metrics), SAME)

    def _evaluate_one(self, agent_state: AgentState, eval_key: Key) -> tuple[PyTreeDict, Key]:
        next_key, play_key = jax.random.split(eval_key)
        episodes = self.evaluator.evaluate(agent_state, play_key, self.settings.train.evaluation.num_episodes)
        metrics = {
            "eval/mean_reward": jnp.mean(episodes.episode_returns),
            "eval/std_reward": jnp.std(episodes.episode_returns),
            "eval/mean_ep_length": jnp.mean(episodes.episode_lengths.astype(jnp.float32)),
        }
        return PyTreeDict(metrics), next_key

    def _make_evaluator(self) -> Evaluator:
        train = self.settings.train
        env = self.make_env(train.evaluation.num_episodes, AutoresetMode.DISABLED)
        if env.max_episode_steps is None:
            raise InvalidInputError(f"{train.env.name} has no time limit of its own: set env.episode_length.")
        if isinstance(env.unwrapped, MultiAgentEnv):
            raise InvalidInputError(f"{train.env.name} has several agents, and {self.agent_name} trains one.")
        return Evaluator(
            env=env,
            agent_fn=self.agent.evaluate_actions,
            initial_carry_fn=self.agent.initial_carry,
            max_episode_steps=env.max_episode_steps,
        )

    def make_env(self, num_envs: int, autoreset_mode: AutoresetMode) -> VectorWrapper:
        """Make copies of the configured environment."""
        env = self.settings.train.env
        return create_env(
            env.name,
            episode_length=env.episode_length,
            parallel=num_envs,
            autoreset_mode=autoreset_mode,
            record_ori_obs=True,
            **env.kwargs,
        )

    # The run directory.

    @contextlib.contextmanager
    def _create_run(self) -> Iterator[RunDirectory | None]:
        """Create the run directory and lock it; None where nothing is written by this process."""
        path = self.settings.train.run_dir
        if path is None or jax.process_index() > 0:
            yield None
            return
        devices = [str(device) for device in self.layout.mesh.devices.flat]
        run = RunDirectory.create(Path(path), self.settings.to_mapping(), jax.default_backend(), devices)
        with run.lock():
            yield run

    @contextlib.contextmanager
    def _reopen_run(self) -> Iterator[RunDirectory | None]:
        """Lock the run directory that is there; None where nothing is written by this process."""
        run = self._run_directory()
        if jax.process_index() > 0:
            yield None
            return
        with run.lock():
            yield run

    def _run_directory(self) -> RunDirectory:
        if self.settings.train.run_dir is None:
            raise InvalidInputError("this workflow has no run_dir to restore from: set it in the config.")
        return RunDirectory.open(Path(self.settings.train.run_dir))

    def _checkpoints(self, run: RunDirectory) -> Checkpoints:
        return Checkpoints(run.checkpoints_path, self.settings.train.checkpoint.keep)

    def _restore(self, step: int | None) -> tuple[tuple[Any, Any], Progress]:
        state = jax.eval_shape(self._init, self.make_key())
        metrics, _ = jax.eval_shape(self._step, state)
        (state, metrics), metadata = self._checkpoints(self._run_directory()).restore((state, metrics), step)
        layout, specs = self.layout, self.state_specs()
        return (layout.place(state, specs), layout.place(metrics, SAME)), Progress.from_mapping(metadata)

    def collect_seconds(self, state: Any) -> float | None:
        """Measure how long one iteration spends on gathering experience; None if that cannot be told."""
        return None


def counts_of(counter: Counter) -> list[int]:
    """Return the count of each seed."""
    return counter.to_ints() if counter.low.ndim else [int(counter)]


def stop_agreed(stop: StopSignals) -> bool:
    """Tell whether any process was asked to stop: all of them must leave the loop at the same place."""
    if jax.process_count() == 1:
        return stop.requested is not None
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.array(stop.requested is not None))))
