"""The settings of an environment: name, time limit, and runner settings of host environments."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

from rookery.configuration import check_settings, field_names, setting
from rookery.envs.libraries import find_host_library, is_on_host
from rookery.envs.wrappers import AutoresetMode
from rookery.errors import InvalidInputError
from rookery.trust import name_of

RESERVED_KWARGS = {"episode_length", "parallel", "autoreset_mode", "discount", "record_ori_obs", "pool_size"}
PROCESS_SETTINGS = ("envs_per_process", "step_timeout", "start_timeout", "max_memory")


@dataclass(frozen=True)
class RunnerSettings:
    """The runner settings of host environments."""

    processes: bool = setting(False, help="run environments in other processes, where they may crash")
    envs_per_process: int = setting(1, low=1, help="environments in each process")
    step_timeout: float | None = setting(
        60.0, help="seconds after which a process that does not answer is replaced; null: no limit"
    )
    start_timeout: float | None = setting(
        60.0, help="seconds after which a process that has not built its environment is replaced; null: no limit"
    )
    max_memory: float | None = setting(
        None, help="megabytes above which a process and its children are replaced; null: no limit"
    )
    max_restarts: int = setting(5, low=0, help="restarts of a failing environment in a row before it is given up")
    on_invalid: Literal["abort", "raise"] = setting(
        "abort", help="on an invalid observation, reward or flag: abort the episode, or raise"
    )

    def __post_init__(self) -> None:
        check_settings(self)
        for name, unit in {"step_timeout": "seconds", "start_timeout": "seconds", "max_memory": "megabytes"}.items():
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise InvalidInputError(f"{name}={limit:g} must be more than 0 {unit}, or null.")
        for name in PROCESS_SETTINGS:
            value = getattr(self, name)
            if not self.processes and value != getattr(type(self), name):
                given = "null" if value is None else f"{value:g}"
                raise InvalidInputError(f"{name}={given} has no effect without processes=true.")

    @property
    def process_options(self) -> dict[str, Any]:
        """The options of environments in processes; none if they are in this one."""
        return {name: getattr(self, name) for name in PROCESS_SETTINGS} if self.processes else {}


@dataclass(frozen=True)
class EnvConfig:
    """The environment to train on.

    A host environment is a Python object; its name starts with a library such as `gymnasium`. If `policies` maps
    patterns of agent names, `{"adversary_*": "hunter", "agent_0": "prey"}`, the first match counts. Of a list of
    policies, one is drawn for each episode. `frozen` policies act and are not trained.
    """

    name: str = setting("classic/cartpole", help="`rookery list envs` shows all")
    episode_length: int | None = setting(
        None, low=1, help="steps after which an episode is truncated; null: the environment's own limit"
    )
    autoreset_mode: AutoresetMode = setting(
        AutoresetMode.NORMAL, help="after an episode: normal, fast or envpool (its resets are not counted as steps)"
    )
    kwargs: Mapping[str, Any] = setting(
        {}, help="arguments of the environment's library: env.kwargs.backend=positional"
    )
    wrappers: tuple[str, ...] = setting(
        (), help="Gymnasium wrappers of a host environment, innermost first: [my_module:MyWrapper]"
    )
    runner: RunnerSettings = setting(RunnerSettings(), help="host environments, such as gymnasium/CartPole-v1")
    policies: Literal["shared", "per_agent"] | Mapping[str, Any] | None = setting(
        None,
        help="multi-agent: shared, per_agent or {agent_*: policy}, or [policy, other] to draw one per episode; "
        "null: agents with the same spaces share one",
    )
    frozen: tuple[str, ...] = setting((), help="policies that act and are not trained")
    mapping: str | FunctionType | None = setting(
        None, help="your function(agent, episode) that returns one of the agent's policies, my_module:function"
    )

    @property
    def is_on_host(self) -> bool:
        """Whether the environment is a Python object, which cannot be compiled."""
        return is_on_host(self.name)

    @property
    def has_several_agents(self) -> bool:
        """Whether the environment is a host environment with several agents."""
        library = find_host_library(self.name)
        return library is not None and library.has_several_agents

    @property
    def is_external(self) -> bool:
        """Whether simulators begin and end the episodes."""
        library = find_host_library(self.name)
        return library is not None and library.is_external

    @property
    def _is_gymnasium(self) -> bool:
        library = find_host_library(self.name)
        return library is not None and not library.has_several_agents and not library.has_threads

    def __post_init__(self) -> None:
        check_settings(self)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise InvalidInputError("autoreset_mode=disabled ends training after the first episodes: use 'normal'.")
        reserved = sorted(RESERVED_KWARGS & self.kwargs.keys())
        if reserved:
            raise InvalidInputError(f"kwargs.{reserved[0]} is not an argument of the library: training sets it.")
        if self.is_on_host and self.autoreset_mode is not AutoresetMode.NORMAL:
            raise InvalidInputError(
                f"autoreset_mode={self.autoreset_mode.value} is for environments on the device: "
                f"{self.name} is on the host, use 'normal'."
            )
        if self.wrappers and not self._is_gymnasium:
            raise InvalidInputError(
                f"wrappers={list(self.wrappers)} are for single Gymnasium environments, such as gymnasium/CartPole-v1, "
                f"not for {self.name}."
            )
        if isinstance(self.mapping, FunctionType):
            object.__setattr__(self, "mapping", name_of(self.mapping))
        for name in ("policies", "frozen", "mapping"):
            value = getattr(self, name)
            if value and not self.has_several_agents:
                raise InvalidInputError(
                    f"{name}={list(value) if name == 'frozen' else value!r} is for host environments with several "
                    f"agents, such as pettingzoo/mpe2.simple_spread_v3, not for {self.name}."
                )
        if isinstance(self.policies, Mapping):
            for pattern, choices in self.policies.items():
                for policy in policies_in(choices):
                    check_policy_name(f"policies={dict(self.policies)}: the policy of {pattern!r}", policy)
        if self.mapping is not None and not isinstance(self.policies, Mapping):
            raise InvalidInputError(
                f"mapping={self.mapping} chooses among the policies that env.policies lists for each agent: add "
                "env.policies={PATTERN: [POLICY, OTHER]}."
            )
        for name in field_names(RunnerSettings):
            value = getattr(self.runner, name)
            if not self.is_on_host and value != getattr(RunnerSettings, name):
                raise InvalidInputError(
                    f"runner.{name}={value} is for environments on the host, such as gymnasium/CartPole-v1: "
                    f"{self.name} is compiled onto the device."
                )


def policies_in(choices: Any) -> tuple[Any, ...]:
    """Return the policies that `EnvConfig.policies` lists for a pattern: one, or several to draw from."""
    return tuple(choices) or (None,) if isinstance(choices, (list, tuple)) else (choices,)


def check_policy_name(whose: str, policy: Any) -> None:
    """Raise unless `policy` is a valid name: it is the prefix of the policy's metrics."""
    if not isinstance(policy, str) or not policy or "/" in policy:
        raise InvalidInputError(f"{whose} is {policy!r}; expected a name: a string without '/'.")
