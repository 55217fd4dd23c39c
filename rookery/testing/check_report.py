"""Reports of checks: one line with a finding per rule."""

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rookery.errors import RookeryError
from rookery.testing.describe import count_text, describe_error, one_line

SEED = 0
NUM_RANDOM_STEPS = 256
"""The number of random steps in an environment."""
AFTER_RESET = "after reset"
"""The label of observations made after a reset instead of a step."""
NAME_WIDTH = 31
"""The width of the column of rule names."""


class Outcome(enum.Enum):
    """The outcome of a check; its value is the word in the report."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "FAILED"
    SKIPPED = "skipped"


Finding = tuple[Outcome, str]
"""The result of a check: its outcome and a one-line description."""


@dataclass(frozen=True)
class Check:
    """The outcome of one rule."""

    name: str
    outcome: Outcome
    finding: str

    def __str__(self) -> str:
        return f"{self.outcome.value:<7}  {self.name:<{NAME_WIDTH}}  {self.finding}"


@dataclass(frozen=True)
class CheckReport:
    """All checks of one subject; as text, one line per check and the verdict last."""

    subject: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed; warnings are allowed."""
        return not self.with_outcome(Outcome.FAILED)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        num_failed, num_warnings, num_skipped = (
            len(self.with_outcome(outcome)) for outcome in (Outcome.FAILED, Outcome.WARNING, Outcome.SKIPPED)
        )
        parts = [count_text(len(self.checks) - num_skipped, "check")]
        if num_failed:
            parts.append(f"{num_failed} failed")
        parts.append(count_text(num_warnings, "warning"))
        if num_skipped:
            parts.append(f"{num_skipped} skipped")
        return f"{self.subject}: {'passed' if self.passed else 'FAILED'} ({', '.join(parts)})"

    def with_outcome(self, outcome: Outcome) -> list[Check]:
        """Return the checks with this outcome."""
        return [check for check in self.checks if check.outcome is outcome]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.checks), self.verdict])


def passed(finding: str) -> Finding:
    return Outcome.PASSED, finding


def warned(finding: str) -> Finding:
    return Outcome.WARNING, finding


def failed(finding: str) -> Finding:
    return Outcome.FAILED, finding


def skipped(finding: str) -> Finding:
    return Outcome.SKIPPED, finding


ShowFn = Callable[[Check], None]
"""Called with each check as soon as it is done: compilation may take a while."""


@dataclass(frozen=True)
class Rule:
    """A named check; if an essential one fails, the rest is skipped."""

    name: str
    check_fn: Callable[[Any], Finding]
    essential: bool = False


def run_checks(rules: Iterable[Rule], subject: Any) -> Iterator[Check]:
    """Run the checks in order; an exception counts as a failure."""
    missing = None
    for rule in rules:
        if missing is not None:
            yield Check(rule.name, *skipped(f"not checked, because {missing!r} failed."))
            continue
        try:
            outcome, finding = rule.check_fn(subject)
        except RookeryError as error:
            outcome, finding = failed(one_line(str(error)))
        except Exception as error:
            outcome, finding = failed(f"raised {describe_error(error)}.")
        yield Check(rule.name, outcome, finding)
        if rule.essential and outcome is Outcome.FAILED:
            missing = rule.name


def make_report(subject: str, checks: Iterable[Check], show_fn: ShowFn | None) -> CheckReport:
    """Collect the checks and show each one."""
    done = []
    for check in checks:
        done.append(check)
        if show_fn is not None:
            show_fn(check)
    return CheckReport(subject, tuple(done))
