"""Failures of environments, as values."""

import enum
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rookery.errors import RookeryError


class FaultKind(enum.StrEnum):
    """How an environment failed."""

    RAISED = "raised"
    INVALID = "invalid"
    """It returned an invalid observation, reward, flag or info."""
    HUNG = "hung"
    """It did not answer in time."""
    KILLED = "killed"
    """Its process was ended by a signal."""
    EXITED = "exited"
    """Its process ended without a signal."""


class Phase(enum.StrEnum):
    """What an environment was asked to do."""

    MAKE = "make"
    RESET = "reset"
    STEP = "step"
    RENDER = "render"


@dataclass(frozen=True, slots=True)
class Failed:
    """The failure of an environment, in place of its answer."""

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
    """A failure and where it happened; `step` counts the steps of the episode before it."""

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
    """A fault of an environment that ends the run."""

    def __init__(self, message: str, fault: Fault) -> None:
        super().__init__(f"{message}\n{fault.failed.traceback}" if fault.failed.traceback else message)
        self.message = message
        self.fault = fault


class EnvsLostError(EnvFaultError):
    """All environments were given up."""


def fault_report(counts: Mapping[str, int], num_lost_envs: int) -> dict[str, float]:
    """Return counts of faults and of discarded steps under their names in records."""
    report: dict[str, float] = {"faults/total": sum(counts[kind] for kind in FaultKind)}
    report |= {f"faults/{name}": counts[name] for name in (*FaultKind, "restarts")}
    return report | {"faults/lost_envs": num_lost_envs, "rollout/steps_discarded": counts["steps_discarded"]}
