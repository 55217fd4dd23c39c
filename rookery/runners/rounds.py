"""Rounds: when runners are asked for fragments, and when there are enough of them for an update.

Everything here is pure: the caller passes the time and reports what happened.
"""

import enum
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rookery.errors import InvalidInputError, check_count
from rookery.runners.health import Health, RestartPolicy, Status

T = TypeVar("T")

SETTLING_SECONDS = 60.0
"""How long the first round waits for another runner to become ready, once `min_runners` are."""


class SlotStatus(enum.StrEnum):
    """What the runner of a slot does."""

    STARTING = "starting"
    READY = "ready"
    """It waits to be asked."""
    OUT = "out"
    """It was asked for a fragment."""
    BUSY = "busy"
    """It was asked for something else."""
    SUSPECT = "suspect"
    """It failed and waits for its restart."""
    LOST = "lost"
    """Its restarts are used up."""


@dataclass(frozen=True)
class Queued(Generic[T]):
    """A fragment that was delivered, and the version of the parameters that acted in it."""

    version: int
    fragment: T


@dataclass
class Slot(Generic[T]):
    """One runner: its status, its health, and the fragments that it has delivered."""

    status: SlotStatus = SlotStatus.STARTING
    health: Health = field(default_factory=Health)
    acted: int = 0
    """The version that the fragment under way was asked with."""
    num_failures: int = 0
    """Failures since the last delivery, also those that are not counted."""
    queue: deque[Queued[T]] = field(default_factory=deque)

    def answer(self) -> None:
        """Note that the runner has answered, which ends a row of failures."""
        self.status = SlotStatus.READY
        if self.num_failures:
            self.num_failures, self.health = 0, Health(num_faults=self.health.num_faults)

    @property
    def is_up(self) -> bool:
        return self.status in (SlotStatus.READY, SlotStatus.OUT, SlotStatus.BUSY)


class Rounds(Generic[T]):
    """Decides which runners are asked and what an update learns from. A round is what one update learns from.

    A round takes the oldest fragment of every slot that has one. It waits for `min_ready` of the runners at work, and
    for every runner whose fragment would otherwise be older than `max_staleness` versions. So all experience is at
    most that old, nothing is dropped for its age, and with `max_staleness=0` every round waits for all runners.
    While fewer than `min_runners` are up there is no round.
    """

    def __init__(
        self,
        num_slots: int,
        max_staleness: int = 0,
        min_ready: float = 1.0,
        restart: RestartPolicy | None = None,
        min_runners: int = 1,
    ) -> None:
        check_count("num_slots", num_slots)
        if max_staleness < 0 or not 0.0 < min_ready <= 1.0:
            raise InvalidInputError(
                f"max_staleness={max_staleness} must be at least 0, and min_ready={min_ready:g} above 0 and at most 1."
            )
        if min_ready < 1.0 and max_staleness == 0:
            raise InvalidInputError(
                f"min_ready={min_ready:g} lets slow runners fall behind: it needs max_staleness of at least 1."
            )
        check_count("min_runners", min_runners)
        if min_runners > num_slots:
            raise InvalidInputError(f"min_runners={min_runners} must be at most the number of runners, {num_slots}.")
        self.version = 0
        """The number of the newest parameters."""
        self.slots: list[Slot[T]] = [Slot() for _ in range(num_slots)]
        self.num_restarts = 0
        self.num_fragments_lost = 0
        self._max_staleness = max_staleness
        self._min_ready = min_ready
        self._restart = restart or RestartPolicy()
        self._min_runners = min_runners
        self._is_settled = False
        self._last_start: float | None = None
        """When a runner last became ready, before the first round."""

    # What happened.

    def publish(self) -> int:
        """Note that there are new parameters; return their version."""
        self.version += 1
        return self.version

    def start(self, index: int, now: float) -> None:
        """Note that a runner is ready for its first request."""
        self.slots[index].status = SlotStatus.READY
        self._last_start = now

    def send(self, index: int) -> None:
        """Note that a runner was asked for a fragment with the newest parameters."""
        slot = self.slots[index]
        assert slot.status is SlotStatus.READY, f"slot {index} is {slot.status}"
        slot.status, slot.acted = SlotStatus.OUT, self.version

    def deliver(self, index: int, fragment: T) -> None:
        """Note that a runner has delivered its fragment, which ends a row of failures."""
        slot = self.slots[index]
        assert slot.status is SlotStatus.OUT, f"slot {index} is {slot.status}"
        slot.queue.append(Queued(slot.acted, fragment))
        slot.answer()

    def occupy(self, index: int) -> None:
        """Note that a runner was asked for something else than a fragment."""
        slot = self.slots[index]
        assert slot.status is SlotStatus.READY, f"slot {index} is {slot.status}"
        slot.status = SlotStatus.BUSY

    def release(self, index: int) -> None:
        """Note that a runner has answered, which ends a row of failures."""
        slot = self.slots[index]
        assert slot.status is SlotStatus.BUSY, f"slot {index} is {slot.status}"
        slot.answer()

    def fail(self, index: int, now: float, is_counted: bool = True, num_losses: int | None = None) -> SlotStatus:
        """Note that a runner failed; it waits for its restart or is lost. What it has delivered stays.

        A failure that is not counted, such as that of a node, delays the restart and does not use it up. With
        `num_losses` the failure counts against what the runner played, which has now lost as many runners.
        """
        slot = self.slots[index]
        self.num_fragments_lost += slot.status is SlotStatus.OUT
        slot.num_failures += 1
        if not is_counted:
            slot.health = slot.health.after_loss_elsewhere(self._restart, now, slot.num_failures)
        elif num_losses is None:
            slot.health = slot.health.after_fault(self._restart, now)
        else:
            slot.health = slot.health.after_episode_fault(self._restart, now, num_losses)
        slot.status = SlotStatus.LOST if slot.health.status is Status.LOST else SlotStatus.SUSPECT
        return slot.status

    def restart(self, index: int) -> None:
        """Note that a suspect runner is being restarted."""
        slot = self.slots[index]
        slot.status, slot.health = SlotStatus.STARTING, slot.health.after_restart()
        self.num_restarts += 1

    def discard(self) -> list[T]:
        """Take all fragments out of the queues and return them."""
        fragments = [queued.fragment for slot in self.slots for queued in slot.queue]
        for slot in self.slots:
            slot.queue.clear()
        return fragments

    # What follows.

    def due(self, now: float) -> list[int]:
        """Return the suspect slots that may be restarted by now."""
        return [index for index, slot in enumerate(self.slots) if slot.health.may_restart(now)]

    def seconds_to_restart(self, now: float) -> float:
        """Return the seconds until the first suspect slot may be restarted; infinite if there is none."""
        retries = [slot.health.retry_at for slot in self.slots if slot.status is SlotStatus.SUSPECT]
        return max(0.0, min(retries, default=math.inf) - now)

    def to_send(self, is_updating: bool, now: float, is_ahead: bool = True) -> list[int]:
        """Return the ready slots that may be asked for a fragment; none before the first round may begin.

        Without `is_ahead` only those are asked that have none for the next round.
        """
        if not self._has_settled(now):
            return []
        room = (self._max_staleness if is_ahead else 0) - is_updating
        return [
            index
            for index, slot in enumerate(self.slots)
            if slot.status is SlotStatus.READY and len(slot.queue) <= room
        ]

    def may_take(self, is_asking: bool = True) -> bool:
        """Return whether there are enough fragments for a round.

        `min_ready` is a share of the runners that are up; what others delivered goes along. With `is_asking`, ready
        runners without a fragment are about to be asked, so the share counts them; otherwise it does not.
        """
        if not any(slot.queue for slot in self.slots):
            return False
        if self.num_up < self._min_runners and not self.has_lost_all:  # then what is left is learned from
            return False
        up = [slot for slot in self.slots if slot.is_up and (is_asking or slot.status is SlotStatus.OUT or slot.queue)]
        num_needed = math.ceil(self._min_ready * len(up) - 1e-9)  # 0.28 * 25 is a little more than 7
        if sum(bool(slot.queue) for slot in up) < num_needed:
            return False
        return not any(
            slot.status is SlotStatus.OUT and not slot.queue and self.version - slot.acted >= self._max_staleness
            for slot in self.slots
        )

    @property
    def ready(self) -> list[int]:
        """The slots that wait to be asked."""
        return [index for index, slot in enumerate(self.slots) if slot.status is SlotStatus.READY]

    def take(self) -> dict[int, Queued[T]]:
        """Return the oldest fragment of every slot that has one, by slot."""
        return {index: slot.queue.popleft() for index, slot in enumerate(self.slots) if slot.queue}

    def count(self, status: SlotStatus) -> int:
        return sum(slot.status is status for slot in self.slots)

    @property
    def num_up(self) -> int:
        """The number of runners that are ready or at work."""
        return sum(slot.is_up for slot in self.slots)

    @property
    def has_lost_too_many(self) -> bool:
        """Whether there will never again be `min_runners`."""
        return len(self.slots) - self.count(SlotStatus.LOST) < self._min_runners

    @property
    def has_lost_all(self) -> bool:
        """Whether no runner will deliver again."""
        return all(slot.status is SlotStatus.LOST for slot in self.slots)

    @property
    def has_never_started(self) -> bool:
        """Whether every runner had a failure that counts before any of them was ready."""
        return self._last_start is None and all(slot.health.num_failures for slot in self.slots)

    def _has_settled(self, now: float) -> bool:
        """Return whether the first round may begin: it waits for all runners, or until no other becomes ready.

        Otherwise the order of starting would change the results.
        """
        if not self._is_settled and self._last_start is not None:
            are_all_there = self.count(SlotStatus.STARTING) + self.count(SlotStatus.SUSPECT) == 0
            has_waited = now - self._last_start >= SETTLING_SECONDS
            self._is_settled = are_all_there or (self.num_up >= self._min_runners and has_waited)
        return self._is_settled
