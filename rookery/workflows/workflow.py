"""The workflow: a run of a method, from its config to its last checkpoint."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rookery.agent import Agent, AgentState
from rookery.distributed import DEVICE_AXIS, check_memory, device_mesh
from rookery.errors import InvalidInputError
from rookery.hyperparameters import Hyperparameters
from rookery.learning.counter import Counter
from rookery.metrics import RunningMetrics, values_of
from rookery.recorders import make_recorder
from rookery.runners.ray.cluster import Cluster, connect
from rookery.runners.ray.settings import RaySettings
from rookery.runs.directory import RunDirectory
from rookery.runs.interruption import StopSignals
from rookery.runs.log import Progress, RunLog
from rookery.types import Key, PyTreeDict, as_key, make_key
from rookery.workflows.config import Settings, settings_from
from rookery.workflows.evaluation import close_on_error
from rookery.workflows.hooks import Hooks, as_hooks, configured_hooks
from rookery.workflows.loop import TrainingLoop
from rookery.workflows.programs import TOO_LARGE, Layout, Program
from rookery.workflows.saved.init_from import with_origin
from rookery.workflows.saved.run_directory import created_run, describe_run, existing_run, reopened_run
from rookery.workflows.saved.states import SavedStates, counts_of, env_steps_of
from rookery.workflows.training import AgentEvaluator, Training, TrainingState


class Workflow(ABC):
    """A run of a method. Subclasses set the name, the config, the hyper-parameters and the training of the method."""

    agent_name: ClassVar[str]
    """The name of the method in configs; by default `module:Class`."""
    config_class: ClassVar[type]
    hyperparameters_class: ClassVar[type[Hyperparameters]]
    vectorize_seeds: ClassVar[bool] = True
    """If True, vectorize seeds with `vmap`; otherwise loop over them."""
    is_split_by_devices: ClassVar[bool] = False
    """Whether the shapes of a state depend on the number of devices."""
    mesh_axis: ClassVar[str] = DEVICE_AXIS
    """The axis of the mesh along which the devices of a run lie."""
    iterations_per_round: ClassVar[int] = 16
    """The iterations of a member between two exchanges of a population, by default."""
    search_space: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The hyper-parameters that a search varies by default, as in `agent.space`."""
    compiler_options: ClassVar[Callable[[], Mapping[str, str]]] = dict

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "agent_name" not in cls.__dict__:
            cls.agent_name = f"{cls.__module__}:{cls.__qualname__}"
        if "update" in cls.__dict__:
            raise InvalidInputError(
                f"{cls.__name__}.update belongs to the learner: define it in a subclass of OnPolicyLearner (or "
                "learn_batch in a subclass of ReplayLearner), and set learner_class of the workflow to that."
            )

    def __init__(
        self,
        settings: Settings,
        num_devices: int,
        enable_jit: bool,
        evaluation_episodes: int | None = None,
        cluster: Cluster | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        """Build the training of a run on `num_devices` devices, or on those of `mesh`."""
        train = settings.train
        self.settings = settings
        self.config = settings.method
        self.layout = Layout(
            mesh=mesh or device_mesh(num_devices, self.mesh_axis),
            num_seeds=train.num_seeds,
            vectorize_seeds=self.vectorize_seeds,
            enable_jit=enable_jit,
            compiler_options=type(self).compiler_options(),
        )
        self.timetable = train.timetable
        self.recorders = [make_recorder(name) for name in (train.recorders if jax.process_index() == 0 else ())]
        self.evaluation_episodes = evaluation_episodes
        self.cluster = cluster
        """The Ray of the runners; None if they work in this process."""
        self.training = self.make_training()

    def __repr__(self) -> str:
        train = self.settings.train
        seeds = f"{train.num_seeds} seeds" if train.num_seeds > 1 else f"seed {train.seed}"
        return f"{type(self).__name__}({train.env.name}, {train.total_timesteps:,} steps, {seeds})"

    @abstractmethod
    def make_training(self) -> Training:
        """Make the training of this run."""

    @property
    def _saved(self) -> SavedStates:
        return SavedStates(self.settings, self.training, self.layout)

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
        agent_name: str | None = None,
        ray: RaySettings | None = None,
    ) -> "Workflow":
        """Check a config and build the workflow; nothing is compiled yet.

        If `devices` of the config is null, the workflow uses all devices with `enable_multi_devices`, and otherwise
        `default_devices`.
        With `evaluation_episodes` the workflow is built to evaluate that number of episodes: no host environments for
        training are started. `agent_name` is the name of the method in the config, if it is not that of the class.
        `ray` says where runners on Ray work; it never comes from a run directory.
        """
        settings = with_ray(cls.check_config(config, agent_name), ray)
        num_devices, num_env_runners = settings.train.devices, settings.train.num_env_runners
        with close_on_error() as opened:
            cluster = None
            if num_env_runners > 0 and evaluation_episodes is None:
                cluster = connect(settings.ray, num_env_runners)  # before JAX has devices: Ray forks
                opened.callback(cluster.close)
            if num_devices is None and enable_multi_devices:
                num_devices = jax.device_count()
            elif num_devices is None:
                num_devices = cls.default_devices(settings, jax.device_count()) if jax.default_backend() == "cpu" else 1
            return cls(settings, device_mesh(num_devices).size, enable_jit, evaluation_episodes, cluster)

    @classmethod
    def default_devices(cls, settings: Settings, limit: int) -> int:
        """Return how many cores of a CPU, up to `limit`, a run uses as devices if its config does not say."""
        return 1

    @classmethod
    def check_config(cls, config: Any, agent_name: str | None = None) -> Settings:
        """Check a config and return its settings; `agent_name` is the name of the method if not that of the class."""
        return settings_from(config, agent_name or cls.agent_name, cls.config_class, cls.hyperparameters_class)

    def set_run_dir(self, path: str) -> None:
        """Set the run directory of a workflow that was built without one."""
        self.settings = replace(self.settings, train=replace(self.settings.train, run_dir=path))

    def make_key(self) -> Key:
        """Make the key of the configured seed, or the keys of all seeds."""
        train = self.settings.train
        if train.num_seeds == 1:
            return make_key(train.seed, train.prng)
        return jax.vmap(lambda seed: make_key(seed, train.prng))(np.array(train.seeds, np.int32))

    def init(self, key: Key, hyperparameters: Hyperparameters | None = None) -> TrainingState:
        """Make the first state. For several seeds, give one key each, or one key to split.

        `hyperparameters` are float32 arrays with one value per seed; by default, all seeds have those of the config.
        """
        key, num_seeds = as_key(key), self.layout.num_seeds
        if num_seeds > 1 and key.shape == ():
            key = jax.random.split(key, num_seeds)
        if key.shape != (() if num_seeds == 1 else (num_seeds,)):
            raise InvalidInputError(f"init takes one key, or {num_seeds} for the seeds; got {list(key.shape)}.")
        state, origin = self.training.init(key, hyperparameters), self.settings.train.init_from
        return state if origin is None else with_origin(self.training, state, origin)

    def step(self, state: TrainingState) -> tuple[PyTreeDict, TrainingState]:
        """Train for one iteration; can be jitted and vmapped over states.

        The argument `state` stays valid, so the whole state is copied, with its replay buffer. `learn` copies once.
        """
        metrics, state = self.training.step(state)
        return values_of(metrics), state

    def evaluate(self, state: TrainingState) -> tuple[PyTreeDict, TrainingState]:
        """Play episodes with the greedy policy."""
        return self.training.evaluate(state)

    def play(self, agent_state: AgentState, key: Key, max_steps: int) -> Iterator[np.ndarray]:
        """Play and render one greedy episode of at most `max_steps` steps; raise `RenderError` if that fails."""
        return self.evaluator.frames(agent_state, key, max_steps)

    def check_memory(self, state: TrainingState) -> None:
        """Raise if a program of the run needs more memory than there is; nothing is compiled."""
        check_memory(TOO_LARGE, self.bytes_needed(state))

    def bytes_needed(self, state: TrainingState) -> int:
        """Return a lower bound of the memory that the run needs, given a state or its shapes; nothing is compiled."""
        training = self.training
        until = jax.tree.map(np.asarray, Counter.of(0))
        evaluation = training.evaluation.bytes_needed(training.agents(state), state.eval_key)
        if not isinstance(training.advance, Program):
            return evaluation
        metrics = training.no_metrics(state)
        return max(evaluation, training.advance.bytes_needed(state, metrics, np.int32(0), until))

    def learn(self, state: TrainingState, on_record: Hooks = ()) -> TrainingState:
        """Train until `total_timesteps`, with records, evaluations and checkpoints; return the last state.

        `on_record` is a function, or several, that is called after every record with a `RecordEvent`.
        """
        state = _copied(state)  # the training program overwrites its state
        self.check_memory(state)
        with created_run(self.settings, self.layout.mesh) as run:
            return self._train(run, state, self.training.no_metrics(state), None, on_record)

    def resume(self, step: int | None = None, on_record: Hooks = ()) -> TrainingState:
        """Continue from a checkpoint of the run directory: the one at `step`, or the last.

        A run that was stopped before its first checkpoint starts from the beginning. The hyper-parameters of this
        workflow replace those of the checkpoint.
        """
        with reopened_run(self.settings) as run:
            existing = existing_run(self.settings)
            if step is None and not self._saved.of(existing).steps():
                state, progress = self.init(self.make_key()), Progress()
                metrics = self.training.no_metrics(state)
            else:
                state, metrics, progress = self._saved.restore(existing, self.make_key(), step)
            if run is not None:
                run.note_resumption(self.settings.to_mapping(), progress.env_steps)
            return self._train(run, state, metrics, progress, on_record)

    def with_hyperparameters(self, state: TrainingState) -> TrainingState:
        """Return a state with the hyper-parameters of this workflow, whose schedules span its `total_timesteps`."""
        return self._saved.with_hyperparameters(state, self.settings.hyperparameters)

    def restore(self, step: int | None = None) -> TrainingState:
        """Return the state of a checkpoint: the one at `step`, or the last."""
        return self._saved.restore(existing_run(self.settings), self.make_key(), step)[0]

    def close(self) -> None:
        """Close host environments, and Ray if it is our own. May be called twice."""
        try:
            self.training.close()
        finally:
            if self.cluster is not None:
                self.cluster.close()

    def _train(
        self,
        run: RunDirectory | None,
        state: TrainingState,
        metrics: RunningMetrics,
        resumed: Progress | None,
        on_record: Hooks,
    ) -> TrainingState:
        if resumed is not None and run is not None:
            # Before the recorders discard the later records, which the later checkpoints count on.
            self._saved.of(run).discard_after(env_steps_of(state))
            run.population_path.unlink(missing_ok=True)
        if self.cluster is not None and run is not None:
            self.cluster.log_to(run.path)
        with (
            StopSignals() as signals,
            RunLog(describe_run(self.settings, run), self.recorders, resumed, sum(counts_of(state.env_steps))) as log,
        ):
            hooks = [*configured_hooks(self.settings.train), *as_hooks(on_record)]
            loop = TrainingLoop(
                self.settings, self.training, self.layout, self.timetable, self._saved, run, log, signals, hooks
            )
            return loop.train(state, metrics, is_new=resumed is None)


def with_ray(settings: Settings, ray: RaySettings | None) -> Settings:
    """Return the settings of a run with these of Ray; raise if they do not fit its number of runners."""
    num_env_runners = settings.train.num_env_runners
    if ray is None:
        return settings
    if num_env_runners == 0:
        default = RaySettings()
        given = (f"ray.{name}={value}" for name, value in vars(ray).items() if value != getattr(default, name))
        raise InvalidInputError(
            f"{next(given, 'ray.*')} is for runners on Ray: set num_env_runners to at least 1, or leave it out."
        )
    if ray.min_env_runners > num_env_runners:
        raise InvalidInputError(
            f"ray.min_env_runners={ray.min_env_runners} is more than num_env_runners={num_env_runners}: use at most "
            f"{num_env_runners}, or more runners."
        )
    return replace(settings, ray=ray)


_copied = jax.jit(partial(jax.tree.map, jnp.copy))
"""One program that copies all arrays of a state."""
