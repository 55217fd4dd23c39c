"""The settings of a training run as frozen dataclasses, built from a composed config and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.configuration import check_keys, check_settings, field_names, from_mapping, plain, setting, to_mapping
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError
from rookery.hyperparameters import Hyperparameters, hyperparameters_from
from rookery.recorders import RECORDERS
from rookery.runners.ray.settings import RaySettings
from rookery.runs.divergence import STOP, WARN
from rookery.runs.timetable import Timetable
from rookery.types import PRNG_IMPLEMENTATIONS, summary

DEVICE_EPISODES, HOST_EPISODES = 32, 8
"""The default number of episodes of an evaluation: on the host, playing them takes longer than training."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How the greedy policy is evaluated."""

    interval: int | None = setting(
        None, low=1, help="env steps between evaluations, which go with a record; null: a tenth of total_timesteps"
    )
    num_episodes: int | None = setting(
        None,
        low=1,
        high=2**20,
        help=f"episodes played by the greedy policy; null: {DEVICE_EPISODES}, on host environments {HOST_EPISODES}",
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and what they hold."""

    interval: int | None = setting(
        None, low=1, help="env steps between checkpoints, which go with a record; null: a tenth of total_timesteps"
    )
    minutes: float | None = setting(10.0, low=0.1, help="also save if the last checkpoint is older; null: do not")
    keep: int | None = setting(3, low=1, help="number of newest checkpoints to keep; null: all")
    keep_best: bool = setting(
        True, help="also keep the checkpoint with the best evaluation, and save it when it is made"
    )
    best_metric: str = setting(
        "eval/mean_reward", help="the metric that decides which checkpoint is the best: the highest"
    )
    replay: bool = setting(
        True,
        help="save the replay buffer; false: smaller, but a resumed run first plays to refill it: warmup_steps, or one "
        "generation of a hybrid",
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class StopAtConfig:
    """A metric that ends a run before `total_timesteps`."""

    metric: str = setting("eval/mean_reward", help="a metric of the records")
    value: float | None = setting(None, help="stop when the metric is at least this; null: do not")

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class VideoConfig:
    """Videos of greedy episodes during a run, in the folder `videos` of the run directory."""

    interval: int | None = setting(None, low=1, help="env steps between videos, which go with a record; null: none")

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class SnapshotConfig:
    """Copies of a policy during a run, which act as a frozen policy: self-play against its past."""

    of: str | None = setting(None, help="the policy that is copied; null: none")
    into: str = setting("past", help="the frozen policy that gets the copies; agents play one of those it keeps")
    every: int = setting(20, low=1, help="iterations between copies")
    keep: int = setting(5, low=1, high=1000, help="number of newest copies to keep")

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def pool_sizes(self) -> dict[str, int]:
        """The number of copies that a policy keeps."""
        return {} if self.of is None else {self.into: self.keep}


@dataclass(frozen=True)
class TrainConfig:
    """The settings of a run that all methods share."""

    env: EnvConfig = setting(EnvConfig())
    seed: int = setting(0)
    num_seeds: int = setting(1, low=1, high=2**16, help="number of seeds trained in parallel: seed, seed + 1, ...")
    total_timesteps: int = setting(500_000, low=1, help="env steps of each seed")
    record_interval: int | None = setting(
        None, low=1, help="env steps between records; null: a fiftieth of total_timesteps"
    )
    evaluation: EvaluationConfig = setting(EvaluationConfig())
    checkpoint: CheckpointConfig = setting(CheckpointConfig())
    stop_at: StopAtConfig = setting(StopAtConfig(), help="end the run before total_timesteps")
    video: VideoConfig = setting(VideoConfig(), help="greedy episodes during the run, in RUN/videos")
    snapshot: SnapshotConfig = setting(SnapshotConfig(), help="self-play: copy a policy into a frozen one")
    on_nan: str = setting(
        STOP,
        choices=(STOP, WARN),
        help="if parameters or losses are NaN or infinite in all seeds: stop at the next record, or only warn",
    )
    devices: int | None = setting(
        None,
        low=1,
        help="number of devices; on a CPU, 2 uses two cores; null: one, or all cores for evolution on a CPU",
    )
    num_env_runners: int = setting(
        0, low=0, high=4096, help="runners of host environments on Ray; 0: one runner in this process"
    )
    max_staleness: int = setting(
        0, low=0, high=1000, help="host environments: versions that parameters may lag while runners collect"
    )
    min_ready: float = setting(
        1.0, low=0.0, high=1.0, help="share of the runners that a batch waits for; below 1, slow ones hold up nobody"
    )
    prng: str = setting("threefry2x32", choices=PRNG_IMPLEMENTATIONS, help="random number generator")
    init_from: str | Mapping[str, str] | None = setting(
        None, help="begin with the parameters of another run: RUN, RUN@STEP, RUN@best; policies: {main: RUN:main}"
    )
    run_dir: str | None = setting(
        None, help="null: runs/<agent>-<env>-<time> on the command line, no files from Python"
    )
    recorders: tuple[str, ...] = setting(("console", "jsonl", "tensorboard"), choices=RECORDERS)

    def __repr__(self) -> str:
        return summary(self)

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 <= self.seed <= 2**31 - self.num_seeds:
            raise InvalidInputError(f"seed={self.seed}: all seeds must lie between 0 and {2**31 - 1}.")
        if len(set(self.recorders)) < len(self.recorders):
            raise InvalidInputError(f"recorders={list(self.recorders)}: each can be named once.")
        if self.snapshot.of is not None and self.snapshot.into not in self.env.frozen:
            raise InvalidInputError(
                f"snapshot.into={self.snapshot.into} must not be trained: add it to env.frozen={list(self.env.frozen)}."
            )
        if self.num_seeds > 1 and self.env.is_on_host:
            seeds = f"seed=range({self.seed},{self.seed + self.num_seeds})"
            raise InvalidInputError(
                f"num_seeds={self.num_seeds}: {self.env.name} is on the host, where seeds cannot train in parallel. "
                f"Train them one after the other with --multirun '{seeds}'."
            )
        for name, default in (("num_env_runners", 0), ("max_staleness", 0), ("min_ready", 1.0)):
            value = getattr(self, name)
            if value != default and not self.env.is_on_host:
                raise InvalidInputError(
                    f"{name}={value} is for environments on the host, such as gymnasium/CartPole-v1: {self.env.name} "
                    "is compiled onto the device."
                )
        if self.num_env_runners > 0 and self.env.is_external:
            raise InvalidInputError(
                f"num_env_runners={self.num_env_runners}: {self.env.name} is a simulator of this process, which has "
                "one runner; use num_env_runners=0."
            )
        if self.min_ready < 1.0 and self.max_staleness == 0:
            raise InvalidInputError(
                f"min_ready={self.min_ready:g} lets slow runners fall behind: set max_staleness to at least 1, too."
            )
        if self.num_env_runners == 0 and (self.max_staleness > 1 or self.min_ready < 1.0):
            raise InvalidInputError(
                f"max_staleness={self.max_staleness} with min_ready={self.min_ready:g} needs runners that work "
                "meanwhile: set num_env_runners, or use max_staleness=1 and min_ready=1."
            )
        if self.num_seeds > 1 and self.prng != "threefry2x32":
            raise InvalidInputError(
                f"prng={self.prng} uses the key of the first seed for all seeds: "
                f"use threefry2x32 with num_seeds={self.num_seeds}."
            )

    @property
    def evaluation_episodes(self) -> int:
        """The number of episodes of an evaluation."""
        return self.evaluation.num_episodes or (HOST_EPISODES if self.env.is_on_host else DEVICE_EPISODES)

    @property
    def timetable(self) -> Timetable:
        """When the run records, evaluates and saves."""
        return Timetable.of(
            self.total_timesteps, self.record_interval, self.evaluation.interval, self.checkpoint.interval
        )

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(range(self.seed, self.seed + self.num_seeds))


@dataclass(frozen=True)
class Settings:
    """All settings of one run: the common settings, the method's settings, and its hyper-parameters.

    `ray` and `budget` are no part of the config of the run: `ray` says where runners work, not what they do.
    """

    train: TrainConfig
    agent_name: str
    method: Any
    hyperparameters: Hyperparameters
    ray: RaySettings = field(default_factory=RaySettings)
    budget: int | None = None
    """The env steps up to which later runs go on with the states of this one; None: it has `total_timesteps`."""

    @property
    def max_timesteps(self) -> int:
        """The env steps that a state must have room for."""
        return self.budget or self.train.total_timesteps

    def __repr__(self) -> str:
        return summary(self)

    def to_mapping(self) -> dict[str, Any]:
        """Return the resolved config as plain containers: the inverse of `settings_from`."""
        # A method that contains others has their settings and their hyper-parameters under one key of its settings.
        agent = {"name": self.agent_name, **to_mapping(self.hyperparameters), **to_mapping(self.method)}
        return {"agent": agent, **to_mapping(self.train)}


def settings_from(
    config: Any, agent_name: str, method_class: type, hyperparameters_class: type[Hyperparameters]
) -> Settings:
    """Check a composed config, a mapping or `Settings` and return the settings of a method."""
    if isinstance(config, Settings):
        _check_agent_name(config.agent_name, agent_name)
        return config
    mapping = plain(config)
    agent = plain(mapping.pop("agent", {}), "agent")
    if isinstance(agent.get("network"), (str, type)):
        agent["network"] = {"encoder": agent["network"]}
    _check_agent_name(agent.pop("name", agent_name), agent_name)
    method_names, hyperparameter_names = field_names(method_class), field_names(hyperparameters_class)
    check_keys(agent, ["name", *method_names, *hyperparameter_names], "agent")
    train = from_mapping(TrainConfig, mapping, "")
    method: Any = from_mapping(method_class, {name: agent[name] for name in agent if name in method_names}, "agent")
    values = {name: agent[name] for name in agent if name in hyperparameter_names}
    hyperparameters = hyperparameters_from(hyperparameters_class, values, train.total_timesteps)
    return Settings(train, agent_name, method, hyperparameters)


def _check_agent_name(given: object, expected: str) -> None:
    if given != expected:
        raise InvalidInputError(f"agent.name={given!r}: this workflow trains {expected!r}.")
