"""The settings of an environment: its name, its time limit, and how a host environment is run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rookery.configuration import field_names
from rookery.envs.registration import HOST_LIBRARIES
from rookery.envs.wrappers import AutoresetMode
from rookery.errors import InvalidInputError, check_count

MULTI_AGENT_LIBRARIES = ("pettingzoo",)
"""The host libraries whose environments have several agents."""
RESERVED_KWARGS = {"episode_length", "parallel", "autoreset_mode", "discount", "record_ori_obs", "pool_size"}


@dataclass(frozen=True)
class RunnerSettings:
    """How host environments are run.

    With `processes` they run in other processes, where they may also crash, or hang for `step_timeout` seconds. An env
    is restarted up to `max_restarts` times in a row. An invalid observation, reward or flag is a fault like others, or
    ends the training (`on_invalid`). With `overlap` the next batch is collected during the update, with the parameters
    before it: off-policy methods do not mind, IMPALA corrects for it, PPO and A2C tolerate it.
    """

    processes: bool = False
    envs_per_process: int = 1
    step_timeout: float | None = None
    max_restarts: int = 5
    on_invalid: Literal["abort", "raise"] = "abort"
    overlap: bool = False

    def __post_init__(self) -> None:
        check_count("envs_per_process", self.envs_per_process)
        if self.max_restarts < 0:
            raise InvalidInputError(f"max_restarts={self.max_restarts} must be at least 0.")
        if self.step_timeout is not None and self.step_timeout <= 0:
            raise InvalidInputError(f"step_timeout={self.step_timeout:g} must be more than 0 seconds, or null.")
        for name in ("envs_per_process", "step_timeout"):
            value = getattr(self, name)
            if not self.processes and value != getattr(type(self), name):
                raise InvalidInputError(f"{name}={value:g} has no effect without processes=true.")


@dataclass(frozen=True)
class EnvConfig:
    """The environment to train on; `episode_length=None` uses its own limit, `kwargs` go to its library.

    `runner` is for host environments: Python objects, whose names begin with a library such as `gymnasium`.
    `policies` is for host environments with several agents. It assigns policies: one for all ("shared"), one each
    ("per_agent"), or by patterns of agent names, `{"adversary_*": "hunter", "agent_0": "prey"}`; the first match
    counts. With None, agents with the same spaces share a policy.
    """

    name: str = "classic/cartpole"
    episode_length: int | None = None
    autoreset_mode: AutoresetMode = AutoresetMode.NORMAL
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    runner: RunnerSettings = field(default_factory=RunnerSettings)
    policies: Literal["shared", "per_agent"] | Mapping[str, Any] | None = None

    @property
    def is_on_host(self) -> bool:
        """Whether the environment is a Python object, which cannot be compiled."""
        return self.name.partition("/")[0] in HOST_LIBRARIES

    @property
    def has_several_agents(self) -> bool:
        """Whether it is a host environment with several agents."""
        return self.name.partition("/")[0] in MULTI_AGENT_LIBRARIES

    def __post_init__(self) -> None:
        if self.episode_length is not None:
            check_count("episode_length", self.episode_length)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise InvalidInputError("autoreset_mode=disabled would end training with the first episodes: use 'normal'.")
        taken = sorted(RESERVED_KWARGS & self.kwargs.keys())
        if taken:
            raise InvalidInputError(f"kwargs.{taken[0]} is not an argument of the library: training sets it itself.")
        if self.is_on_host and self.autoreset_mode is not AutoresetMode.NORMAL:
            raise InvalidInputError(
                f"autoreset_mode={self.autoreset_mode.value} is for environments on the device: "
                f"{self.name} is on the host, use 'normal'."
            )
        if self.policies is not None and not self.has_several_agents:
            raise InvalidInputError(
                f"policies={self.policies!r} is for environments on the host with several agents, such as "
                f"pettingzoo/mpe2.simple_spread_v3: {self.name} is none."
            )
        if isinstance(self.policies, Mapping):
            for pattern, policy in self.policies.items():
                check_policy_name(f"policies={dict(self.policies)}: the policy of {pattern!r}", policy)
        for name in field_names(RunnerSettings):
            value = getattr(self.runner, name)
            if not self.is_on_host and value != getattr(RunnerSettings, name):
                raise InvalidInputError(
                    f"runner.{name}={value} is for environments on the host, such as gymnasium/CartPole-v1: "
                    f"{self.name} is compiled onto the device."
                )


def check_policy_name(whose: str, policy: Any) -> None:
    """Raise unless `policy` is a valid name: it begins the names of the policy's metrics."""
    if not isinstance(policy, str) or not policy or "/" in policy:
        raise InvalidInputError(f"{whose} is {policy!r}; expected a name, which is a string without '/'.")
