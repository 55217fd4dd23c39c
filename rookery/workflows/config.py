"""The settings of a training run as frozen dataclasses, built from a composed config and checked."""

from dataclasses import dataclass
from typing import Any

from rookery.configuration import check_keys, check_settings, field_names, from_mapping, plain, setting, to_mapping
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError
from rookery.hyperparameters import Hyperparameters, hyperparameters_from
from rookery.recorders import RECORDERS
from rookery.runs.divergence import STOP, WARN
from rookery.types import PRNG_IMPLEMENTATIONS


@dataclass(frozen=True)
class EvaluationConfig:
    """How the greedy policy is evaluated."""

    interval: int | None = setting(
        None, low=1, help="env steps between evaluations, which go with a record; null: a tenth of total_timesteps"
    )
    num_episodes: int = setting(32, low=1, high=2**20, help="episodes played by the greedy policy")

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and what they hold."""

    interval: int | None = setting(
        None, low=1, help="env steps between checkpoints, which go with a record; null: a tenth of total_timesteps"
    )
    keep: int | None = setting(3, low=1, help="number of newest checkpoints to keep; null: all")
    replay: bool = setting(
        True, help="save the replay buffer; false: smaller, but a resumed run first plays warmup_steps to refill it"
    )

    def __post_init__(self) -> None:
        check_settings(self)


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
    on_nan: str = setting(
        STOP,
        choices=(STOP, WARN),
        help="if parameters or losses are NaN or infinite in all seeds: stop at the next record, or only warn",
    )
    devices: int | None = setting(None, low=1, help="number of devices; null: one; on a CPU, 2 uses two cores")
    prng: str = setting("threefry2x32", choices=PRNG_IMPLEMENTATIONS, help="random number generator")
    run_dir: str | None = setting(
        None, help="null: runs/<agent>-<env>-<time> on the command line, no files from Python"
    )
    recorders: tuple[str, ...] = setting(("console", "jsonl", "tensorboard"), choices=RECORDERS)

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 <= self.seed <= 2**31 - self.num_seeds:
            raise InvalidInputError(f"seed={self.seed}: all seeds must lie between 0 and {2**31 - 1}.")
        if len(set(self.recorders)) < len(self.recorders):
            raise InvalidInputError(f"recorders={list(self.recorders)}: each can be named once.")
        if self.num_seeds > 1 and self.env.is_on_host:
            seeds = f"seed=range({self.seed},{self.seed + self.num_seeds})"
            raise InvalidInputError(
                f"num_seeds={self.num_seeds}: {self.env.name} is on the host, where seeds cannot train in parallel. "
                f"Train them one after the other with --multirun '{seeds}'."
            )
        if self.num_seeds > 1 and self.prng != "threefry2x32":
            raise InvalidInputError(
                f"prng={self.prng} uses the key of the first seed for all seeds: "
                f"use threefry2x32 with num_seeds={self.num_seeds}."
            )

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(range(self.seed, self.seed + self.num_seeds))


@dataclass(frozen=True)
class Settings:
    """All settings of one run: the common settings, the method's settings, and its hyper-parameters."""

    train: TrainConfig
    agent_name: str
    method: Any
    hyperparameters: Hyperparameters

    def to_mapping(self) -> dict[str, Any]:
        """Return the resolved config as plain containers: the inverse of `settings_from`."""
        agent = {"name": self.agent_name, **to_mapping(self.method), **to_mapping(self.hyperparameters)}
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
