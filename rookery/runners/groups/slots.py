"""Slots: what the runners of a group do, how healthy they are, and when they are restarted.

Everything here is pure: the caller passes the time and reports what happened.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rookery.errors import InvalidInputError, check_count
from rookery.runners.health import Health, RestartPolicy, Status


class SlotStatus(enum.StrEnum):
    """What the runner of a slot does."""

    STARTING = "starting"
    READY = "ready"
    """It waits to be asked."""
    OUT = "out"
    """It was asked for what the group is for: a fragment, or the episodes of individuals."""
    BUSY = "busy"
    """It was asked for something else."""
    SUSPECT = "suspect"
    """It failed and waits for its restart."""
    LOST = "lost"
    """Its restarts are used up."""


@dataclass
class Slot:
    """One runner: its status and its health."""

    status: SlotStatus = SlotStatus.STARTING
    health: Health = field(default_factory=Health)
    num_failures: int = 0
    """Failures since its last answer, also those that are not counted."""

    @property
    def is_up(self) -> bool:
        return self.status in (SlotStatus.READY, SlotStatus.OUT, SlotStatus.BUSY)


SlotT = TypeVar("SlotT", bound=Slot)


class Slots(Generic[SlotT]):
    """The base of `Rounds` and `Deal`, which say what runners are asked for."""

    def __init__(self, slots: Sequence[SlotT], restart: RestartPolicy | None, min_runners: int) -> None:
        check_count("num_slots", len(slots))
        check_count("min_runners", min_runners)
        if min_runners > len(slots):
            raise InvalidInputError(f"min_runners={min_runners} must be at most the number of runners, {len(slots)}.")
        self.slots = list(slots)
        self.min_runners = min_runners
        self.num_restarts = 0
        self._restart = restart or RestartPolicy()
        self._has_started = False

    # What happened.

    def restart(self, index: int) -> None:
        """Note that a suspect runner is being restarted."""
        slot = self.slots[index]
        slot.status, slot.health = SlotStatus.STARTING, slot.health.after_restart()
        self.num_restarts += 1

    def _start(self, index: int) -> None:
        """Note that a runner is ready for its first request."""
        self.slots[index].status = SlotStatus.READY
        self._has_started = True

    def _ask(self, index: int, status: SlotStatus) -> SlotT:
        """Note that a runner that was ready is asked for something; return its slot."""
        slot = self.slots[index]
        assert slot.status is SlotStatus.READY, f"slot {index} is {slot.status}"
        slot.status = status
        return slot

    def _answer(self, index: int, status: SlotStatus) -> SlotT:
        """Note that a runner has answered, which ends a row of failures; return its slot."""
        slot = self.slots[index]
        assert slot.status is status, f"slot {index} is {slot.status}"
        slot.status = SlotStatus.READY
        if slot.num_failures:
            slot.num_failures, slot.health = 0, Health(num_faults=slot.health.num_faults)
        return slot

    def _fail(self, index: int, now: float, is_counted: bool, num_losses: int | None) -> SlotStatus:
        """Note that a runner failed; it waits for its restart or is lost.

        A failure that is not counted, such as that of a node, delays the restart and does not use it up. With
        `num_losses` the failure counts against what the runner played, which has now lost as many runners.
        """
        slot = self.slots[index]
        slot.num_failures += 1
        if not is_counted:
            slot.health = slot.health.after_loss_elsewhere(self._restart, now, slot.num_failures)
        elif num_losses is None:
            slot.health = slot.health.after_fault(self._restart, now)
        else:
            slot.health = slot.health.after_episode_fault(self._restart, now, num_losses)
        slot.status = SlotStatus.LOST if slot.health.status is Status.LOST else SlotStatus.SUSPECT
        return slot.status

    # What follows.

    def due(self, now: float) -> list[int]:
        """Return the suspect slots that may be restarted by now."""
        return [index for index, slot in enumerate(self.slots) if slot.health.may_restart(now)]

    def seconds_to_restart(self, now: float) -> float:
        """Return the seconds until the first suspect slot may be restarted; infinite if there is none."""
        retries = [slot.health.retry_at for slot in self.slots if slot.status is SlotStatus.SUSPECT]
        return max(0.0, min(retries, default=math.inf) - now)

    @property
    def ready(self) -> list[int]:
        """The slots that wait to be asked."""
        return [index for index, slot in enumerate(self.slots) if slot.status is SlotStatus.READY]

    def count(self, status: SlotStatus) -> int:
        return sum(slot.status is status for slot in self.slots)

    @property
    def num_up(self) -> int:
        """The number of runners that are ready or at work."""
        return sum(slot.is_up for slot in self.slots)

    @property
    def has_lost_too_many(self) -> bool:
        """Whether there will never again be `min_runners`."""
        return len(self.slots) - self.count(SlotStatus.LOST) < self.min_runners

    @property
    def has_lost_all(self) -> bool:
        """Whether no runner will answer again."""
        return self.count(SlotStatus.LOST) == len(self.slots)

    @property
    def has_never_started(self) -> bool:
        """Whether every runner had a failure that counts before any of them was ready."""
        return not self._has_started and all(slot.health.num_failures for slot in self.slots)

    def report(self, num_restarts_before: int) -> dict[str, float]:
        """Return the numbers of runners by what they do, and that of all restarts."""
        return {
            "runners/ready": self.num_up,
            "runners/starting": self.count(SlotStatus.STARTING) + self.count(SlotStatus.SUSPECT),
            "runners/lost": self.count(SlotStatus.LOST),
            "runners/restarts": num_restarts_before + self.num_restarts,
        }
