"""The settings of a training run, from a composed config to frozen dataclasses.

Past this module nobody sees a `DictConfig`, a null that stands for something else, or a number out of range.
"""

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, get_args, get_type_hints

from rookery.configuration import check_keys, field_names, from_mapping, plain
from rookery.envs import AutoresetMode
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError, check_count, unknown_name
from rookery.learning.schedules import LinearSchedule
from rookery.recorders import RECORDERS
from rookery.types import PRNG_IMPLEMENTATIONS, Array, PyTreeData

Scalar = float | Array | LinearSchedule
"""A hyper-parameter: a number, or one that changes with the env steps."""


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


class Hyperparameters(PyTreeData):
    """The numbers of a method that are not shapes; they ride in the state, so a population may have different ones.

    A field that is None switches off what it belongs to, in the compiled program.
    """

    RANGES: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """The smallest and the largest value of each field; infinity itself is never allowed."""


@dataclass(frozen=True)
class Settings:
    """All settings of one run: common ones, the shapes of the method, and its hyper-parameters."""

    train: TrainConfig
    agent_name: str
    method: Any
    hyperparameters: Any

    def to_mapping(self) -> dict[str, Any]:
        """Return the resolved config as plain containers: what `settings_from` makes these settings of again."""
        agent = {"name": self.agent_name, **_plain(self.method), **_plain(self.hyperparameters)}
        return {"agent": agent, **_plain(self.train)}


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


def hyperparameters_from(
    cls: type[Hyperparameters], values: Mapping[str, Any], total_timesteps: int
) -> Hyperparameters:
    """Build hyper-parameters of numbers and schedules, `{start: 3e-4, end: 0}`, which last for the whole run."""
    annotations = get_type_hints(cls)
    optional = {name for name in field_names(cls) if type(None) in get_args(annotations[name])}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if value is None and name in optional:
            parsed[name] = None
        elif isinstance(value, Mapping):
            parsed[name] = _schedule_from(name, value, cls, total_timesteps)
        else:
            parsed[name] = _number_in_range(f"agent.{name}", value, cls.RANGES.get(name))
    return cls(**parsed)


def _schedule_from(name: str, value: Mapping, cls: type[Hyperparameters], total_timesteps: int) -> LinearSchedule:
    unknown = set(value) - {"start", "end", "steps"}
    if unknown or "start" not in value or "end" not in value:
        raise InvalidInputError(f"agent.{name}={dict(value)}: a schedule is {{start: NUMBER, end: NUMBER}}.")
    limits = cls.RANGES.get(name)
    return LinearSchedule(
        start=_number_in_range(f"agent.{name}.start", value["start"], limits),
        end=_number_in_range(f"agent.{name}.end", value["end"], limits),
        steps=_number_in_range(f"agent.{name}.steps", value.get("steps", total_timesteps), (0.0, math.inf)),
    )


def _number_in_range(name: str, value: Any, limits: tuple[float, float] | None) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (numbers.Real, str)):
            raise ValueError
        number = float(value)
    except ValueError:
        raise InvalidInputError(f"{name}={value!r}: expected a number, or {{start: NUMBER, end: NUMBER}}.") from None
    low, high = limits or (-math.inf, math.inf)
    if not (low <= number <= high and math.isfinite(number)):
        expected = f"must lie between {low:g} and {high:g}" if math.isfinite(high) else f"must be at least {low:g}"
        raise InvalidInputError(f"{name}={number:g} {expected if limits else 'must be finite'}.")
    return number


def _plain(value: Any) -> Any:
    """Turn dataclasses, enums and tuples into what YAML can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, AutoresetMode):
        return value.value
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    return value


def _check_interval(name: str, value: int | None) -> None:
    if value is not None:
        check_count(name, value)
