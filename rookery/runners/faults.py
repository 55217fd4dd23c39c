"""Failures of environments, as values."""

import enum
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rookery.errors import RookeryError

MAX_ERROR_LENGTH = 1_000
"""Characters of an error text; an error may hold a whole log."""
MAX_TRACEBACK_LENGTH = 20_000
MAX_FRAMES = 30
"""Frames of a traceback, the last ones."""
MAX_CHAINED_ERRORS = 5


class FaultKind(enum.StrEnum):
    """How an environment failed."""

    RAISED = "raised"
    INVALID = "invalid"
    """It returned an invalid observation, reward, flag or info, or its action was not finite."""
    HUNG = "hung"
    """It did not answer in time."""
    KILLED = "killed"
    """Its process was ended by a signal."""
    EXITED = "exited"
    """Its process ended without a signal."""
    UNREACHABLE = "unreachable"
    """Its machine was lost, or cannot be reached."""


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
        return cls(kind, phase, error_text(error), shortened(_traceback_text(error), MAX_TRACEBACK_LENGTH))


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


def error_text(error: BaseException) -> str:
    """Return an exception as it would be written in code, or its type if that fails."""
    try:
        return shortened(repr(error), MAX_ERROR_LENGTH)
    except Exception:
        return type(error).__name__


def shortened(text: str, max_length: int) -> str:
    """Cut out the middle of a long text."""
    if len(text) <= max_length:
        return text
    half = max_length // 2
    return f"{text[:half]} ... ({len(text) - 2 * half:,} characters) ... {text[-half:]}"


def _traceback_text(error: BaseException, num_after: int = 0) -> str:
    """Format an exception and those that it comes from, as Python does."""
    if isinstance(error, BaseExceptionGroup):
        return "".join(traceback.format_exception(error))
    before = ""
    if num_after < MAX_CHAINED_ERRORS:
        if error.__cause__ is not None:
            before = _traceback_text(error.__cause__, num_after + 1) + AS_CAUSE
        elif error.__context__ is not None and not error.__suppress_context__:
            before = _traceback_text(error.__context__, num_after + 1) + IN_CONTEXT
    message = "".join(traceback.format_exception_only(error))
    return f"{before}Traceback (most recent call last):\n{_stack_text(error.__traceback__)}{message}"


AS_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
IN_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
_stack_texts: dict[tuple, str] = {}
"""Formatted stacks by place: formatting takes long, and an env that fails often does so in the same place."""


def _stack_text(stack: TracebackType | None) -> str:
    places, frame = [], stack
    while frame is not None:
        code = frame.tb_frame.f_code
        places.append((code.co_filename, code.co_name, frame.tb_lineno, frame.tb_lasti))
        frame = frame.tb_next
    key = tuple(places[-MAX_FRAMES:])
    if key not in _stack_texts:
        if len(_stack_texts) == 100:
            _stack_texts.clear()
        _stack_texts[key] = "".join(traceback.format_tb(stack, -MAX_FRAMES))
    return _stack_texts[key]


def fault_report(counts: Mapping[str, int], num_lost_envs: int) -> dict[str, float]:
    """Return counts of faults, discarded steps and clipped observations under their names in records."""
    report: dict[str, float] = {"faults/total": sum(counts[kind] for kind in FaultKind)}
    report |= {f"faults/{name}": counts[name] for name in (*FaultKind, "restarts")}
    report |= {f"rollout/{name}": counts[name] for name in ("steps_discarded", "obs_clipped")}
    return report | {"faults/lost_envs": num_lost_envs}
