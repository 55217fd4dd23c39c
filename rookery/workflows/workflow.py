"""What trains: a workflow holds the logic of a run, its state all that changes, and `learn` the one loop."""

import json
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState
from rookery.compilation import run_once_options
from rookery.distributed import device_mesh
from rookery.envs import AutoresetMode, MultiAgentEnv, VectorWrapper, create_env
from rookery.errors import InvalidInputError
from rookery.evaluators import Evaluator
from rookery.evaluators.playback import play_episodes
from rookery.hyperparameters import Hyperparameters
from rookery.learning.counter import Counter
from rookery.metrics import values_of
from rookery.recorders import make_recorder
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory, write_atomically
from rookery.runs.interruption import Interrupted, StopSignals
from rookery.runs.log import Progress, RunLog
from rookery.runs.timetable import Timetable
from rookery.types import Key, PyTreeDict, State, Tree, as_key, make_key
from rookery.workflows.config import Settings, settings_from
from rookery.workflows.host_evaluator import EpisodePlayer
from rookery.workflows.programs import SAME, Layout, Program, gather
from rookery.workflows.run_directory import created_run, describe_run, existing_run, reopened_run

SECONDS_PER_CALL = 0.5
"""How long the device works between two looks at the clock and at signals; it makes no difference to the result."""
OUTSIDE = "outside"
"""The entry of a checkpoint's metadata for what changes outside of the state."""


class WorkflowState(State):
    """What the state of every workflow holds; `eval_key` is apart, so that evaluation does not change training."""

    eval_key: Key
    agent_state: AgentState
    hyperparameters: Hyperparameters
    iterations: Counter
    env_steps: Counter
    num_updates: Counter

    @classmethod
    def first(cls, key: Key, eval_key: Key, agent_state: AgentState, hyperparameters: Any, **own: Any) -> Self:
        """Make the state before any training; `own` are the fields that a subclass adds."""
        return cls(
            key=key,
            eval_key=eval_key,
            agent_state=agent_state,
            hyperparameters=jax.tree.map(jnp.float32, hyperparameters),
            iterations=Counter.zero(),
            env_steps=Counter.zero(),
            num_updates=Counter.zero(),
            **own,
        )


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
    seeds_side_by_side: ClassVar[bool] = True
    """Whether several seeds are computed at the same time, or one after the other within an iteration."""

    def __init__(self, settings: Settings, num_devices: int, enable_jit: bool) -> None:
        self.settings = settings
        self.config = settings.method
        self.enable_jit = enable_jit
        self.layout = Layout(
            mesh=device_mesh(num_devices), num_seeds=settings.train.num_seeds, side_by_side=self.seeds_side_by_side
        )
        self.agent = self.make_agent()
        self.prepare()
        train = settings.train
        intervals = train.record_interval, train.evaluation.interval, train.checkpoint.interval
        self.timetable = Timetable.of(train.total_timesteps, *intervals)
        self.evaluator = self._make_evaluator()
        names = settings.train.recorders if jax.process_index() == 0 else ()
        self.recorders = [make_recorder(name) for name in names]
        layout, specs = self.layout, self.state_specs()
        iterate = layout.over_seeds(self.iterate)
        if enable_jit:
            iterate = jax.jit(iterate)  # so that it is traced once for all the programs that contain it
        self._init = self.program(layout.over_seeds(self.setup), (SAME,), specs, options=run_once_options())
        self._step, self._advance = self.make_training_programs(iterate, specs)
        # Episodes on the host are played by a Python function, which calls compiled ones.
        is_compiled = enable_jit and not settings.train.env.is_on_host
        self._evaluate = Program(
            layout.over_seeds(self._evaluate_one), is_compiled, compiler_options=self.compiler_options
        )

    @classmethod
    def build_from_config(cls, config: Any, enable_multi_devices: bool = False, enable_jit: bool = True) -> "Workflow":
        """Check a config and build the workflow; nothing is compiled yet.

        `devices` of the config says how many devices are used; where it is null, one, or all there are with
        `enable_multi_devices`. For an environment on the host with several agents, it is one for several policies.
        """
        settings = settings_from(config, cls.agent_name, cls.config_class, cls.hyperparameters_class)
        num_devices = settings.train.devices or (jax.device_count() if enable_multi_devices else 1)
        build = cls.build_for_several_agents if settings.train.env.has_several_agents else cls
        return build(settings, device_mesh(num_devices).size, enable_jit)

    @classmethod
    def build_for_several_agents(cls, settings: Settings, num_devices: int, enable_jit: bool) -> "Workflow":
        """Build the workflow for an environment with several agents, if the method can train on one."""
        raise InvalidInputError(
            f"{settings.train.env.name} has several agents, and {cls.agent_name} trains one: choose another method, "
            "such as ppo."
        )

    def program(
        self,
        function: Callable,
        in_specs: Any,
        out_specs: Any,
        donate: tuple[int, ...] = (),
        options: dict[str, str] | None = None,
    ) -> Program:
        """Make a program of a function that each device runs on its share."""
        on_devices = self.layout.over_devices(function, in_specs, out_specs)
        return Program(on_devices, self.enable_jit, donate, self.compiler_options if options is None else options)

    @property
    def compiler_options(self) -> dict[str, str]:
        """The options that programs are compiled with."""
        return {}

    def make_training_programs(self, iterate: Callable, specs: Any) -> tuple[Any, Any]:
        """Make what `step` calls, one iteration, and what `learn` calls, many of them, which overwrites its state."""

        def advance(state: Any, metrics: Any, num_iterations: Any, until: Counter) -> tuple[Any, Any]:
            def is_unfinished(carry: tuple[Any, Any, Any]) -> Any:
                num_done, state, _ = carry
                return (num_done < num_iterations) & jnp.any(state.env_steps.is_below(until))

            def body(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
                num_done, state, metrics = carry
                new_metrics, state = iterate(state)
                return num_done + 1, state, jax.tree.map(jnp.add, metrics, new_metrics)

            return jax.lax.while_loop(is_unfinished, body, (jnp.zeros((), jnp.int32), state, metrics))[1:]

        step = self.program(iterate, (specs,), (SAME, specs))
        return step, self.program(advance, (specs, SAME, SAME, SAME), (specs, SAME), donate=(0, 1))

    # What a family of methods defines.

    @abstractmethod
    def make_agent(self) -> Agent:
        """Build the agent."""

    def prepare(self) -> None:  # noqa: B027
        """Build what the programs need, environments above all: never while one of them is traced."""

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
        """Train for one iteration; can be jitted and vmapped over states.

        The state that is given stays valid, so all of it is copied, a replay buffer too: `learn` overwrites its own.
        """
        metrics, state = self._step(state)
        return values_of(metrics), state

    def evaluate(self, state: Any) -> tuple[PyTreeDict, Any]:
        """Play episodes with the greedy policy."""
        metrics, eval_key = self._evaluate(self.evaluated_agents(state), state.eval_key)
        return metrics, state.replace(eval_key=eval_key)

    def learn(self, state: Any) -> Any:
        """Train until `total_timesteps`, with records, evaluations and checkpoints; return the last state."""
        # The training program overwrites the state it is given: let that be a copy, and hold on to no other.
        state = jax.tree.map(jnp.copy, state)
        with created_run(self.settings, self.layout.mesh) as run:
            return self._train(run, state, self._no_metrics(state), None)

    def resume(self, step: int | None = None) -> Any:
        """Go on from a checkpoint of the run directory, the last one unless `step` says another.

        A run that was ended before its first checkpoint begins again.
        """
        with reopened_run(self.settings) as run:
            if step is None and not self._checkpoints(existing_run(self.settings)).steps():
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
        start = sum(counts_of(state.env_steps)), counts_of(state.iterations)[0]
        description = describe_run(self.settings, run)
        with StopSignals() as stop, RunLog(description, self.recorders, resumed, *start) as log:
            env_steps = env_steps_of(state)

            def save() -> None:
                tree = gather((self.without_unsaved(state), metrics))
                if run is not None:
                    log.sync()
                    metadata = log.progress.to_mapping() | {OUTSIDE: self.outside_state()}
                    self._checkpoints(run).save(tree, env_steps, metadata)

            if resumed is None:
                save()
            elif run is not None:
                # What was saved later belongs to a past that is now left behind.
                self._checkpoints(run).discard_after(resumed.env_steps)
                run.population_path.unlink(missing_ok=True)
            has_to_train = env_steps < timetable.total_timesteps
            while env_steps < timetable.total_timesteps:
                record_at = timetable.next_record(env_steps)
                until = jax.tree.map(np.asarray, Counter.of(record_at))  # of no device, so that every process has it
                log.compile("training program", self._advance, state, metrics, np.int32(0), until)
                while env_steps < record_at and not stop_agreed(stop):
                    at_most = log.iterations_within(SECONDS_PER_CALL)
                    with log.training():
                        state, metrics = jax.block_until_ready(self._advance(state, metrics, np.int32(at_most), until))
                    env_steps = env_steps_of(state)
                    log.advance(env_steps, counts_of(state.iterations)[0])
                is_stopped = env_steps < record_at
                if not is_stopped:
                    evaluation = PyTreeDict()
                    if timetable.is_due(timetable.evaluation_interval, record_at, env_steps):
                        agents = self.evaluated_agents(state)
                        log.compile("evaluation program", self._evaluate, agents, state.eval_key)
                        with log.evaluating():
                            evaluation, state = jax.block_until_ready(self.evaluate(state))
                    log.record(self._counts(state), metrics, evaluation)
                    metrics = self._no_metrics(state)
                is_due = not is_stopped and timetable.is_due(timetable.checkpoint_interval, record_at, env_steps)
                is_stopped = stop_agreed(stop) and env_steps < timetable.total_timesteps
                if is_stopped or is_due:
                    save()
                if is_stopped:
                    raise Interrupted(stop.requested or signal.SIGTERM, log.consequence)
            # On all processes alike: the program is compiled for all their devices.
            is_measured = has_to_train and self.settings.train.run_dir is not None
            log.finish(self.collect_seconds(state) if is_measured else None)
            populations = self.describe_populations(state)
            if populations and run is not None:
                write_atomically(run.population_path, json.dumps(populations) + "\n")
        return state

    def describe_populations(self, state: Any) -> list[dict[str, Any]]:
        """Describe what each seed ends with beside one agent, as plain data for the report."""
        return []

    def of_seeds(self, tree: Tree) -> list[Tree]:
        """Return a part of the state that is the same on all devices, on the host and seed by seed."""
        tree = jax.tree.map(np.asarray, tree)
        if self.layout.num_seeds == 1:
            return [tree]
        return [jax.tree.map(lambda leaf, seed=seed: leaf[seed], tree) for seed in range(self.layout.num_seeds)]

    def _counts(self, state: Any) -> dict[str, list[Any]]:
        """Return what is counted, or measured, and not averaged, for each seed."""
        counters = {"time/total_timesteps": state.env_steps, "time/iterations": state.iterations}
        counters |= self.update_counters(state)
        return {name: counts_of(counter) for name, counter in counters.items()}

    def update_counters(self, state: Any) -> dict[str, Counter]:
        """Say where the state counts its updates, by the name of the metric."""
        return {"train/n_updates": state.num_updates}

    def _no_metrics(self, state: Any) -> Any:
        """Return metrics to add to."""
        metrics = self._metrics_like(state)
        return self.layout.place(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), metrics), SAME)

    def _metrics_like(self, state: Any) -> Any:
        """Return the shapes of the metrics of an iteration."""
        return jax.eval_shape(self._step, state)[0]

    def evaluated_agents(self, state: Any) -> dict[str, AgentState]:
        """Say which agents `evaluate` plays with, by the prefix of their metrics."""
        return {"eval/": state.agent_state}

    def _evaluate_one(self, agents: dict[str, AgentState], eval_key: Key) -> tuple[PyTreeDict, Key]:
        next_key, play_key = jax.random.split(eval_key)
        metrics = PyTreeDict()
        for prefix, agent_state in agents.items():  # the same episodes for all, so that they can be compared
            episodes = self.evaluator.evaluate(agent_state, play_key, self.settings.train.evaluation.num_episodes)
            metrics |= self.describe_episodes(episodes, prefix)
        return metrics, next_key

    def describe_episodes(self, episodes: Any, prefix: str) -> dict[str, Any]:
        """Return what a record tells of the episodes of an evaluation, in metrics of this prefix."""
        return {
            f"{prefix}mean_reward": jnp.mean(episodes.episode_returns),
            f"{prefix}std_reward": jnp.std(episodes.episode_returns),
            f"{prefix}mean_ep_length": jnp.mean(episodes.episode_lengths.astype(jnp.float32)),
        }

    def _make_evaluator(self) -> Any:
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
        if env.is_on_host:
            raise InvalidInputError(
                f"{self.agent_name} trains on environments on the device, and {env.name} is on the host: choose "
                "another one, `rookery list envs` shows all."
            )
        return create_env(
            env.name,
            episode_length=env.episode_length,
            parallel=num_envs,
            autoreset_mode=autoreset_mode,
            record_ori_obs=True,
            **env.kwargs,
        )

    def play(self, agent_state: AgentState, key: Key, max_steps: int) -> Iterator[np.ndarray]:
        """Play one greedy episode, or its first `max_steps` steps, and draw it; `RenderError` if that is impossible."""
        if isinstance(self.evaluator, EpisodePlayer):
            return self.evaluator.frames(agent_state, key, max_steps)
        max_steps = min(max_steps, self.evaluator.max_episode_steps)
        (episode,) = play_episodes(self.evaluator.env, self.agent, agent_state, key, max_steps)
        return episode.frames()

    # Checkpoints.

    def _checkpoints(self, run: RunDirectory) -> Checkpoints:
        return Checkpoints(run.checkpoints_path, self.settings.train.checkpoint.keep)

    def _restore(self, step: int | None) -> tuple[tuple[Any, Any], Progress]:
        state = jax.eval_shape(self._init, self.make_key())
        wanted = self.without_unsaved(state), self._metrics_like(state)
        (state, metrics), metadata = self._checkpoints(existing_run(self.settings)).restore(wanted, step)
        self.restore_outside(metadata.pop(OUTSIDE, {}))
        layout, specs = self.layout, self.without_unsaved(self.state_specs())
        state = self.with_unsaved(layout.place(state, specs))
        return (state, layout.place(metrics, SAME)), Progress.from_mapping(metadata)

    def without_unsaved(self, state: Any) -> Any:
        """Leave out of a state what checkpoints do not hold."""
        return state

    def with_unsaved(self, state: Any) -> Any:
        """Make anew what `without_unsaved` left out."""
        return state

    def outside_state(self) -> dict[str, Any]:
        """Return what changes outside of the state and has to be saved with it, as JSON can hold it."""
        return {}

    def restore_outside(self, outside: dict[str, Any]) -> None:  # noqa: B027
        """Go on from what `outside_state` returned."""

    def describe_restart(self) -> str:
        """Say what a run that is resumed begins anew, as a checkpoint does not hold it; empty if there is nothing."""
        return ""

    def collect_seconds(self, state: Any) -> float | None:
        """Measure how long one iteration spends on gathering experience; None if that cannot be told."""
        return None


def counts_of(counter: Counter) -> list[int]:
    """Return the count of each seed."""
    return counter.to_ints() if counter.low.ndim else [int(counter)]


def env_steps_of(state: Any) -> int:
    """Return the env steps that every seed has made at least."""
    return min(counts_of(state.env_steps))


def stop_agreed(stop: StopSignals) -> bool:
    """Tell whether any process was asked to stop: all of them must leave the loop at the same place."""
    if jax.process_count() == 1:
        return stop.requested is not None
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.array(stop.requested is not None))))
