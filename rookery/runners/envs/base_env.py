"""The interface of all host environments: poll for outputs, send actions."""

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rookery.runners.faults import Failed

if TYPE_CHECKING:
    from rookery.spaces import Space  # imports JAX, which worker processes do not

AgentID = Hashable
SINGLE_AGENT: AgentID = "agent"
"""The name of the agent in environments with one agent."""
COMMON = "__common__"
"""The entry of multi-agent infos that belongs to no agent."""
EPISODE_INFO = "episode_metrics"
"""The entry of an info in which an env reports its own numbers at the end of an episode."""
SUCCESS_INFO, SUCCESS_RATE = "is_success", "success_rate"
"""The entry of the last info of an episode that says whether the goal was reached, and the name of its mean."""
ALL = "__all__"
"""The entry of multi-agent flags that ends the whole episode."""


class End(enum.IntEnum):
    """Whether and how the episode of an agent ended."""

    RUNNING = 0
    TERMINATED = 1
    TRUNCATED = 2
    GONE_TERMINATED = 3
    """Terminated without a last observation."""
    GONE_TRUNCATED = 4
    """Truncated without a last observation."""
    FAULTY = 5
    ABANDONED = 6
    """The simulator left the episode; its last complete row is truncated."""


WITHOUT_OBSERVATION = {
    End.RUNNING: End.RUNNING,
    End.TERMINATED: End.GONE_TERMINATED,
    End.TRUNCATED: End.GONE_TRUNCATED,
}
"""How an agent ends that has no last observation."""


@dataclass(frozen=True, slots=True)
class LoggedAction:
    """An action that a simulator chose itself, and the log-probability with which it did, if it knows that."""

    action: Any
    log_prob: float | None = None


@dataclass(slots=True)
class EnvOutputs:
    """The outputs of the environments that are ready, one row for each agent with an output.

    Rows of one env are consecutive. The arrays may be used until the next `poll`.
    """

    envs: np.ndarray
    """The env of each row, int64 `[N]`."""
    agents: Sequence[AgentID] | None
    """The agent of each row; None if every env has one agent, `SINGLE_AGENT`."""
    obs: Any
    """With `agents=None` one tree of arrays `[N, ...]`; otherwise a list of observations, None where one is missing."""
    rewards: np.ndarray
    """The reward of each agent since its last row, float64 `[N]`; 0 in the rows of a reset."""
    ends: np.ndarray
    """An `End` for each row, uint8 `[N]`."""
    is_reset: np.ndarray
    """True where the row belongs to the first observations of an episode, bool `[N]`."""
    resets: Collection[int] = ()
    """The envs that were reset, also those whose episodes begin without any observation."""
    over: Collection[int] = ()
    """The envs whose episode is over with this step."""
    stepped: Collection[int] = ()
    """The envs that made a step."""
    infos: Mapping[int, Mapping[AgentID, Mapping]] = field(default_factory=dict)
    """Infos by env and agent; empty infos are omitted."""
    off_policy_actions: Mapping[int, Mapping[AgentID, LoggedAction]] = field(default_factory=dict)
    """Actions that an external env chose itself on the observations of this poll, by env and agent."""
    abandoned: Mapping[int, bool] = field(default_factory=dict)
    """The envs whose simulator left the episode after these rows, and whether the complete rows are kept."""
    failed: Mapping[int, Failed] = field(default_factory=dict)
    """The failures by env; envs that failed have no rows."""


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
    version: int = 0
    """The version of the parameters that chose the actions."""


class BaseEnv(ABC):
    """Environments that need not run in lockstep.

    No env is reset before the first `poll`, which returns the first observations of all. An env that is over has no
    outputs until `try_reset`, one that failed until `try_restart`. Their results come with a later `poll`.
    """

    num_envs: int
    name: str
    is_external: bool = False
    """Whether a simulator begins and ends the episodes, so that an env may be idle for any time."""
    is_asynchronous: bool = False
    """Whether envs work on their own: the runner lets those act that are ready, and waits for no other."""
    patience: float | None = None
    """The seconds after which a silent env is late, so that a sample need not wait for it; None: never."""
    steps_together: bool = False
    """Whether all envs that can act must be stepped at once."""

    @property
    @abstractmethod
    def spaces(self) -> Mapping[AgentID, tuple["Space", "Space"]]:
        """The observation space and the action space of each agent that is known beforehand."""

    @property
    def is_multi_agent(self) -> bool:
        return set(self.spaces) != {SINGLE_AGENT}

    @property
    def num_clipped(self) -> int:
        """Sampled observations that were outside of their bounds by rounding, and were clipped."""
        return 0

    def prepare(self) -> None:  # noqa: B027
        """Prepare before anything compiles; raise if no episode can begin."""

    def report(self) -> Mapping[str, float]:
        """Return numbers for the record of training."""
        return {}

    @abstractmethod
    def poll(self, timeout: float | None = None) -> EnvOutputs:
        """Wait until an env is ready, at most `timeout` seconds, and return the outputs of all that are.

        The first call waits until all have begun their first episode, or failed.
        """

    def wait(self, timeout: float | None = None) -> None:  # noqa: B027
        """Wait until `poll` has outputs, at most `timeout` seconds, if envs are asynchronous; may be interrupted."""

    @abstractmethod
    def send_actions(self, actions: Actions) -> None:
        """Step the envs of these actions; raise for an env that is over and not reset."""

    @abstractmethod
    def try_reset(self, env: int, seed: int | None) -> None:
        """Request a new episode."""

    @abstractmethod
    def try_restart(self, env: int, seed: int | None) -> None:
        """Restart an env and request its first episode."""

    def abandon_episodes(self) -> None:  # noqa: B027
        """Forget what envs were asked and have not answered, also in the midst of a call: all are reset next."""

    def try_render(self, env: int) -> np.ndarray | None:
        """Render an env as an RGB array; None if it cannot be rendered."""
        return None

    def close(self) -> None:  # noqa: B027
        """Close all envs, whatever state they are in; calling it twice does no harm."""
