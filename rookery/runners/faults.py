"""What can go wrong with an environment, as values: the record of a fault, and the health of the env that had it."""

import enum
import traceback
from dataclasses import dataclass, replace
from typing import Any, Self

from rookery.errors import InvalidInputError, RookeryError, check_count


class FaultKind(enum.StrEnum):
    """How an environment failed."""

    RAISED = "raised"
    INVALID = "invalid"
    """It returned what it must not."""
    HUNG = "hung"
    """It did not answer in time."""
    KILLED = "killed"
    """Its process was ended by a signal."""
    EXITED = "exited"
    """Its process ended by itself."""


class Phase(enum.StrEnum):
    """What an environment was asked to do."""

    MAKE = "make"
    RESET = "reset"
    STEP = "step"
    RENDER = "render"


@dataclass(frozen=True, slots=True)
class Failed:
    """In place of what an environment should have returned: why it did not."""

    kind: FaultKind
    phase: Phase
    error: str
    traceback: str = ""

    @classmethod
    def by_exception(cls, error: BaseException, phase: Phase, kind: FaultKind = FaultKind.RAISED) -> Self:
        try:
            text = repr(error)
        except Exception:
            text = type(error).__name__
        return cls(kind, phase, text, "".join(traceback.format_exception(error)))


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure, and where it happened; `step` counts the actions of the episode that had been answered before."""

    failed: Failed
    env_name: str
    env_index: int
    seed: int | None
    episode: int
    step: int
    action: Any
    consequence: str = ""

    def __str__(self) -> str:
        failed = self.failed
        where = f"env {self.env_index} ({self.env_name}, seed {self.seed})"
        match failed.phase:
            case Phase.STEP:
                when = f"at step {self.step} on action {self.action}"
            case _:
                when = f"at {failed.phase}"
        text = f"{where} {failed.kind} {when}: {failed.error.removesuffix('.')}"
        return f"{text}; {self.consequence}." if self.consequence else f"{text}."


class EnvFaultError(RookeryError):
    """A fault of an environment that training cannot go on from."""

    def __init__(self, message: str, fault: Fault) -> None:
        super().__init__(f"{message}\n{fault.failed.traceback}" if fault.failed.traceback else message)
        self.fault = fault


class Status(enum.StrEnum):
    """How an environment is doing."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """It failed and waits for its next try."""
    RESTORED = "restored"
    """It was built anew and has not made enough steps yet to be trusted."""
    LOST = "lost"
    """Its tries are used up."""


@dataclass(frozen=True)
class RestartPolicy:
    """How often in a row an env is built anew before it is given up, and how long to wait before each try.

    The row ends once the env has made `good_steps` steps since it was built, or, where whole episodes are sampled, has
    finished one. `max_faults` limits the faults of one env
    over its whole life; None does not.
    """

    max_restarts: int = 5
    good_steps: int = 10
    first_delay: float = 0.1
    max_delay: float = 30.0
    max_faults: int | None = None

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise InvalidInputError(f"max_restarts={self.max_restarts} must be at least 0.")
        check_count("good_steps", self.good_steps)
        if not 0 <= self.first_delay <= self.max_delay:
            raise InvalidInputError(
                f"first_delay={self.first_delay} must lie between 0 and max_delay={self.max_delay} seconds."
            )
        if self.max_faults is not None and self.max_faults < 0:
            raise InvalidInputError(f"max_faults={self.max_faults} must be at least 0.")

    def delay(self, num_tries: int) -> float:
        """Seconds to wait after so many failed tries: none after the first fault, then doubling."""
        return 0.0 if num_tries == 0 else min(self.max_delay, self.first_delay * 2.0 ** (num_tries - 1))


@dataclass(frozen=True)
class Health:
    """The health of one environment; what happens to it makes a new value."""

    status: Status = Status.HEALTHY
    num_tries: int = 0
    """Restarts in a row."""
    num_good_steps: int = 0
    """Steps since the last restart."""
    num_faults: int = 0
    retry_at: float = 0.0
    """When a suspect env may be built anew, on the clock of the runner."""

    def after_fault(self, policy: RestartPolicy, now: float) -> "Health":
        num_faults = self.num_faults + 1
        is_over = policy.max_faults is not None and num_faults > policy.max_faults
        if self.num_tries >= policy.max_restarts or is_over:
            return replace(self, status=Status.LOST, num_faults=num_faults)
        retry_at = now + policy.delay(self.num_tries)
        return replace(self, status=Status.SUSPECT, num_faults=num_faults, retry_at=retry_at)

    def after_restart(self) -> "Health":
        return replace(self, status=Status.RESTORED, num_tries=self.num_tries + 1, num_good_steps=0)

    def after_good_step(self, policy: RestartPolicy) -> "Health":
        num_good_steps = self.num_good_steps + 1
        if num_good_steps < policy.good_steps:
            return replace(self, num_good_steps=num_good_steps)
        return replace(self, status=Status.HEALTHY, num_tries=0, num_good_steps=num_good_steps)

    def may_restart(self, now: float) -> bool:
        return self.status is Status.SUSPECT and now >= self.retry_at
