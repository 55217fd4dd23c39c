"""The settings of a training run, from a composed config to frozen dataclasses.

Past this module nobody sees a `DictConfig`, a null that stands for something else, or a number out of range.
"""

from dataclasses import dataclass, field
from typing import Any

from rookery.configuration import check_keys, field_names, from_mapping, plain, to_mapping
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError, check_count, unknown_name
from rookery.hyperparameters import Hyperparameters, hyperparameters_from
from rookery.recorders import RECORDERS
from rookery.types import PRNG_IMPLEMENTATIONS


@dataclass(frozen=True)
class EvaluationConfig:
    """How often the greedy policy is evaluated, in env steps, and on how many episodes."""

    interval: int | None = None
    num_episodes: int = 32

    def __post_init__(self) -> None:
        _check_interval("interval", self.interval)
        check_count("num_episodes", self.num_episodes)


@dataclass(frozen=True)
class CheckpointConfig:
    """How often a checkpoint is written, in env steps, and how many of the last are kept (None: all).

    Without `replay` it does not hold the replay buffer, and a run that is resumed from it fills the buffer anew.
    """

    interval: int | None = None
    keep: int | None = 3
    replay: bool = True

    def __post_init__(self) -> None:
        _check_interval("interval", self.interval)
        _check_interval("keep", self.keep)


@dataclass(frozen=True)
class TrainConfig:
    """What all methods have in common; an interval of None is a fixed share of `total_timesteps`."""

    env: EnvConfig = field(default_factory=EnvConfig)
    seed: int = 0
    num_seeds: int = 1
    total_timesteps: int = 500_000
    record_interval: int | None = None
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    devices: int | None = None
    prng: str = "threefry2x32"
    run_dir: str | None = None
    recorders: tuple[str, ...] = ("console", "jsonl", "tensorboard")

    def __post_init__(self) -> None:
        check_count("num_seeds", self.num_seeds)
        check_count("total_timesteps", self.total_timesteps)
        _check_interval("record_interval", self.record_interval)
        if self.devices is not None:
            check_count("devices", self.devices)
        if not 0 <= self.seed <= 2**31 - self.num_seeds:
            raise InvalidInputError(f"seed={self.seed}: all seeds must lie between 0 and {2**31 - 1}.")
        if len(set(self.recorders)) < len(self.recorders):
            raise InvalidInputError(f"recorders={list(self.recorders)}: each can be named once.")
        for name in self.recorders:
            if name not in RECORDERS:
                raise unknown_name("recorder", name, RECORDERS)
        if self.prng not in PRNG_IMPLEMENTATIONS:
            raise unknown_name("prng", self.prng, PRNG_IMPLEMENTATIONS)
        if self.num_seeds > 1 and self.env.is_on_host:
            seeds = f"seed=range({self.seed},{self.seed + self.num_seeds})"
            raise InvalidInputError(
                f"num_seeds={self.num_seeds}: {self.env.name} is on the host, where seeds do not train side by side: "
                f"let them train one after the other with --multirun '{seeds}'."
            )
        if self.num_seeds > 1 and self.prng != "threefry2x32":
            raise InvalidInputError(
                f"prng={self.prng} draws the numbers of all seeds from the first one's key: "
                f"with num_seeds={self.num_seeds} use threefry2x32."
            )

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(range(self.seed, self.seed + self.num_seeds))


@dataclass(frozen=True)
class Settings:
    """All settings of one run: common ones, the shapes of the method, and its hyper-parameters."""

    train: TrainConfig
    agent_name: str
    method: Any
    hyperparameters: Any

    def to_mapping(self) -> dict[str, Any]:
        """Return the resolved config as plain containers: what `settings_from` makes these settings of again."""
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


def _check_agent_name(given: Any, expected: str) -> None:
    if given != expected:
        raise InvalidInputError(f"agent.name={given!r}: this workflow trains {expected!r}.")


def _check_interval(name: str, value: int | None) -> None:
    if value is not None:
        check_count(name, value)
