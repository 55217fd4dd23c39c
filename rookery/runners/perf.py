"""The time that each phase of a runner's step takes."""

import enum
import time
from collections.abc import Callable

from rookery.errors import InvalidInputError


class Stage(enum.StrEnum):
    """The phases of one step of a runner."""

    OBSERVATIONS = "observations"
    INFERENCE = "inference"
    ACTIONS = "actions"
    ENV_WAIT = "env_wait"
    RENDER = "render"


class Perf:
    """Milliseconds per runner step of each phase: the mean, or with `decay` an exponential moving average of it.

    A phase is timed from one `mark` to the next: no time is missed or counted twice.
    """

    def __init__(self, decay: float | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        if decay is not None and not 0.0 < decay < 1.0:
            raise InvalidInputError(f"decay={decay} must lie between 0 and 1: 0.99 averages about a hundred steps.")
        self._decay = decay
        self._clock = clock
        self._last = 0.0
        self._sums = dict.fromkeys(Stage, 0.0)
        self._weight = 0.0

    def start(self) -> None:
        """Start timing; the time since the last mark does not count."""
        self._last = self._clock()

    def mark(self, stage: Stage) -> None:
        """Count the time since the last mark for this phase."""
        now = self._clock()
        self._sums[stage] += now - self._last
        self._last = now

    def end_step(self) -> None:
        """Count a step; with `decay`, reduce the weight of all steps so far."""
        self._weight += 1.0
        if self._decay is not None:
            self._weight *= self._decay
            self._sums = {stage: self._decay * total for stage, total in self._sums.items()}

    def milliseconds(self) -> dict[str, float]:
        """Return the milliseconds of each phase per step."""
        return {stage.value: 1e3 * total / (self._weight or 1.0) for stage, total in self._sums.items()}
