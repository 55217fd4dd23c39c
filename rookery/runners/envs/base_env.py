"""The form that the runner knows every environment in: ask what is ready, send actions to what can act."""

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rookery.runners.faults import Failed

if TYPE_CHECKING:
    from rookery.spaces import Space  # which imports JAX: too slow for the processes of environments

AgentID = Hashable
SINGLE_AGENT: AgentID = "agent"
"""The agent of an environment that has only one."""
COMMON = "__common__"
"""The entry of the infos of a multi-agent env that belongs to no agent."""
EPISODE_INFO = "episode_metrics"
"""The entry of an info in which an env reports its own numbers at the end of an episode."""
ALL = "__all__"
"""The entry of the flags of a multi-agent env that is about the episode."""


class End(enum.IntEnum):
    """How the episode of an agent ended, if it did."""

    RUNNING = 0
    TERMINATED = 1
    TRUNCATED = 2
    GONE_TERMINATED = 3
    """Terminated without a last observation."""
    GONE_TRUNCATED = 4
    """Truncated without a last observation."""
    FAULTY = 5


@dataclass(slots=True)
class EnvOutputs:
    """What the environments that are ready have to say, one row for each agent of each env that was heard of.

    Rows of one env are consecutive. The arrays are the receiver's until the next `poll`.
    """

    envs: np.ndarray
    """The env of each row, int64 `[N]`."""
    agents: Sequence[AgentID] | None
    """The agent of each row; None if no env has more than one, which is then `SINGLE_AGENT`."""
    obs: Any
    """With `agents=None` the observations as one tree of arrays `[N, ...]`; else a list of them, None where there is
    none."""
    rewards: np.ndarray
    """What each agent got since it was last heard of, float64 `[N]`; 0 in the rows of a reset."""
    ends: np.ndarray
    """An `End` for each row, uint8 `[N]`."""
    is_reset: np.ndarray
    """True where the row belongs to the first observations of an episode, bool `[N]`."""
    resets: Collection[int] = ()
    """The envs that have just been reset, also those whose episodes begin without any observation."""
    over: Collection[int] = ()
    """The envs whose episode is over with this step."""
    stepped: Collection[int] = ()
    """The envs that made a step."""
    infos: Mapping[int, Mapping[AgentID, Mapping]] = field(default_factory=dict)
    """What the envs told beside, by env and agent; empty ones are left out."""
    off_policy_actions: Mapping[int, Mapping[AgentID, Any]] = field(default_factory=dict)
    """Actions that an external env took itself, for the observations of this poll, by env and agent."""
    failed: Mapping[int, Failed] = field(default_factory=dict)
    """The envs that failed, which have no rows."""


@dataclass(slots=True)
class Actions:
    """The actions for some environments, row by row like `EnvOutputs`; `envs` are all envs to step, ascending.

    With `agents=None` there is one row for each of `envs` and `actions` is a tree of arrays `[N, ...]`. Otherwise row
    k is the action `actions[k]` of `agents[k]` in `row_envs[k]`; an env without rows is stepped with an empty dict.
    """

    envs: np.ndarray
    actions: Any
    agents: Sequence[AgentID] | None = None
    row_envs: np.ndarray | None = None


class BaseEnv(ABC):
    """Environments that need not run in lockstep.

    No env is reset before the first `poll`, which gives the first observations of all. An env that is over is quiet
    until `try_reset`; one that failed until `try_restart`. What these give comes with a later `poll`.
    """

    num_envs: int
    name: str
    is_external: bool = False
    """Whether episodes begin and end from outside, so that an env may be idle for any time."""
    steps_together: bool = False
    """Whether all envs that can act must be stepped at once."""

    @property
    @abstractmethod
    def spaces(self) -> Mapping[AgentID, tuple["Space", "Space"]]:
        """The spaces of observations and actions of each agent that is known beforehand."""

    @property
    def is_multi_agent(self) -> bool:
        return set(self.spaces) != {SINGLE_AGENT}

    @abstractmethod
    def poll(self, timeout: float | None = None) -> EnvOutputs:
        """Wait until something is ready, at most `timeout` seconds, and return all that is."""

    @abstractmethod
    def send_actions(self, actions: Actions) -> None:
        """Step the envs that actions are given for; raise for one that is over and not reset."""

    @abstractmethod
    def try_reset(self, env: int, seed: int | None) -> None:
        """Ask for a new episode."""

    @abstractmethod
    def try_restart(self, env: int, seed: int | None) -> None:
        """Throw an env away, build it anew and ask for a first episode."""

    def try_render(self, env: int) -> np.ndarray | None:
        """Draw an env as an RGB array; None if it cannot be drawn."""
        return None

    def close(self) -> None:  # noqa: B027
        """Let go of everything, whatever state the envs are in; calling it twice does no harm."""
