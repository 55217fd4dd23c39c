"""What simulators and the episode book say to each other: requests, answers and rows."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.runners.envs.base_env import AgentID, End


class Stage(enum.StrEnum):
    """Whose turn it is in an episode, or how it is over."""

    OPEN = "open"
    """It has begun, and has asked for nothing yet."""
    ASKED = "asked"
    """An observation waits for its action."""
    ANSWERED = "answered"
    """The simulator acts."""
    ENDED = "ended"
    LEFT = "left"
    """The simulator left it before its end."""
    EXPIRED = "expired"
    """The simulator was silent for too long."""
    LOST = "lost"
    """The runner has given it up."""


class Mode(enum.StrEnum):
    """What becomes of an episode."""

    LEARN = "learn"
    """A policy learns from its rows. It plays in an env of the runner."""
    WATCH = "watch"
    """A policy acts in it, and nothing is kept."""
    EVALUATE = "evaluate"
    """Its return is an evaluation of the greedy policy."""


class Code(enum.StrEnum):
    """Why a request is refused."""

    FULL = "full"
    """As many episodes are open as may be."""
    TAKEN = "taken"
    """The id is that of an open episode."""
    UNKNOWN = "unknown"
    OVER = "over"
    PENDING = "pending"
    """The step before waits for its answer."""
    SEQUENCE = "seq_conflict"
    AGENT = "agent"
    """The agent is unknown or has ended."""
    REWARD = "reward"
    """No action was taken that the reward could be for."""
    CLOSED = "closed"
    POLICY_FAULT = "policy_fault"
    """The policy gave an action that is not finite."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that changes nothing; `outcome` is that of an episode that is over."""

    code: Code
    message: str
    outcome: Stage | None = None
    expected: int | None = None
    """The number of the next request, if this one has another."""


@dataclass(frozen=True, slots=True)
class Started:
    """An episode may be played; in an env of the runner, if it learns."""

    id: str
    env: int | None
    is_repeated: bool = field(default=False, compare=False)
    """Whether an earlier request has started it."""


@dataclass(slots=True)
class Acted:
    """The actions on the observations of a step, and the version of the parameters that chose them."""

    actions: Mapping[AgentID, Any]
    version: int


@dataclass(frozen=True, slots=True)
class Noted:
    """Rewards without an observation were noted."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The episode is over, with the sum of all rewards and the number of steps."""

    episode_return: float
    episode_length: int


Answer = Acted | Noted | Ended | Refused
AnswerFn = Callable[[Answer], None]


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Begin an episode. Repeated by its owner while it is open, it is the same episode."""

    id: str
    mode: Mode = Mode.LEARN
    lease: float | None = None
    """The seconds of silence after which the episode has expired; None: never."""
    may_repeat: bool = True
    """Whether an equal request repeats this one, instead of naming an id that is taken."""
    explore: bool = False
    """Whether the actions are sampled, in an episode that does not learn."""
    policies: Mapping[AgentID, str] | None = None
    """The policies of the agents, instead of those that they have by default. There are no other agents then."""
    info: Mapping[str, Any] | None = None
    """What the simulator wants to be kept with the log of the episode."""


@dataclass(frozen=True, slots=True)
class Status:
    """Where an open episode is: its last request, the answer if it is there, and the rest of the lease."""

    seq: int
    answer: Answer | None
    seconds_left: float | None


@dataclass(slots=True)
class Report:
    """What happened to one agent since its last observation."""

    obs: Any = None
    reward: float = 0.0
    end: End = End.RUNNING
    action: Any = None
    """The action on `obs` that the simulator chose itself."""
    log_prob: float | None = None
    """The log-probability with which it chose it."""
    info: Mapping[str, Any] | None = None


@dataclass(slots=True)
class StepRequest:
    """What the last actions led to, by agent. It asks for the next actions, unless it only reports rewards."""

    reports: Mapping[AgentID, Report]
    end: End = End.RUNNING
    """Whether and how the episode ends for all agents."""
    asks: bool = True
    seq: int | None = None
    """The number of the request, from 0: a repeated one is recognized."""
    digest: int = 0
    """A checksum of the content, by which a repeated request is told from another one."""


@dataclass(eq=False, slots=True)
class Row:
    """One step of an episode, for those who act."""

    request: StartRequest
    env: int | None
    reports: Mapping[AgentID, Report]
    is_reset: bool = False
    is_over: bool = False
    is_step: bool = True
    """Whether something was reported, besides that the simulator left the episode."""
    is_abandoned: bool = False
    """Whether the simulator left the episode after this step."""
    is_kept: bool = True
    """Whether the complete rows of an abandoned episode are kept."""

    @property
    def id(self) -> str:
        """The id of the episode."""
        return self.request.id

    @property
    def acting(self) -> list[AgentID]:
        """The agents that act next."""
        return [agent for agent, report in self.reports.items() if report.obs is not None and report.end is End.RUNNING]
