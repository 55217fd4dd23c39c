"""Supervises the runners of a group: which failures are told, and after which the run ends."""

import logging
from typing import Any

from rookery.errors import RookeryError
from rookery.runners.groups.group import RunnerFailed
from rookery.runners.groups.slots import Slots, SlotStatus

logger = logging.getLogger(__name__)


class Supervisor:
    """Says when no runner will answer again, or too few are up for too long: then `failure` is the error of the run.

    The caller passes the time and reports failures. `loss_text` says what becomes of the work of a runner that is
    given up.
    """

    def __init__(self, slots: Slots[Any], wait_timeout: float, loss_text: str) -> None:
        self.failure: RookeryError | None = None
        self.first_failure: RunnerFailed | None = None
        self._slots = slots
        self._wait_timeout = wait_timeout
        self._loss_text = loss_text
        self._since: float | None = None
        """Since when fewer than `min_runners` are up."""
        self._cause: RunnerFailed | None = None
        """The first failure after which fewer than `min_runners` were up."""

    def note_failure(self, index: int, reply: RunnerFailed) -> None:
        """Log a failure that the slots have noted, or end the run."""
        slots = self._slots
        self.first_failure = self.first_failure or reply
        if slots.num_up < slots.min_runners:
            self._cause = self._cause or reply
        if reply.is_fatal or slots.has_lost_all or slots.has_never_started:
            self.failure = (reply if reply.is_fatal else self.first_failure).error()
        elif slots.has_lost_too_many:
            self.failure = self._shortage(f"{slots.count(SlotStatus.LOST)} of {len(slots.slots)} runners are given up")
        elif slots.slots[index].status is SlotStatus.LOST:
            logger.warning("runner %d is given up: %s %s", index, reply.message, self._loss_text)
        else:
            logger.warning("runner %d failed and is restarted: %s", index, reply.message)

    def check(self, now: float) -> None:
        """End the run if fewer than `min_runners` have been up for more than `wait_timeout` seconds."""
        num_up = self._slots.num_up
        if num_up >= self._slots.min_runners:
            self._since, self._cause = None, None
            return
        if self._since is None:
            self._since = now
        if now - self._since > self._wait_timeout and self.failure is None:
            seconds = f"{self._wait_timeout:g} seconds (ray.wait_timeout)"
            self.failure = self._shortage(f"{num_up} of {len(self._slots.slots)} runners were up for {seconds}")

    def _shortage(self, what: str) -> RookeryError:
        text = f"{what}, and ray.min_env_runners={self._slots.min_runners} are needed."
        return RookeryError(f"{text} The cause: {self._cause.message}" if self._cause else text)
