"""Rounds: when runners are asked for fragments, and when there are enough of them for an update.

Everything here is pure: the caller passes the time and reports what happened.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rookery.errors import InvalidInputError
from rookery.runners.groups.slots import Slot, Slots, SlotStatus
from rookery.runners.health import RestartPolicy

T = TypeVar("T")

SETTLING_SECONDS = 60.0
"""How long the first round waits for another runner to become ready, once `min_runners` are."""


@dataclass(frozen=True)
class Queued(Generic[T]):
    """A fragment that was delivered, and the version of the parameters that acted in it."""

    version: int
    fragment: T


@dataclass
class RoundSlot(Slot, Generic[T]):
    """A slot, and the fragments that its runner has delivered."""

    acted: int = 0
    """The version that the fragment under way was asked with."""
    queue: deque[Queued[T]] = field(default_factory=deque)


class Rounds(Slots[RoundSlot[T]], Generic[T]):
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
        super().__init__([RoundSlot() for _ in range(num_slots)], restart, min_runners)
        if max_staleness < 0 or not 0.0 < min_ready <= 1.0:
            raise InvalidInputError(
                f"max_staleness={max_staleness} must be at least 0, and min_ready={min_ready:g} above 0 and at most 1."
            )
        if min_ready < 1.0 and max_staleness == 0:
            raise InvalidInputError(
                f"min_ready={min_ready:g} lets slow runners fall behind: it needs max_staleness of at least 1."
            )
        self.version = 0
        """The number of the newest parameters."""
        self.num_fragments_lost = 0
        self._max_staleness = max_staleness
        self._min_ready = min_ready
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
        self._start(index)
        self._last_start = now

    def send(self, index: int) -> None:
        """Note that a runner was asked for a fragment with the newest parameters."""
        self._ask(index, SlotStatus.OUT).acted = self.version

    def deliver(self, index: int, fragment: T) -> None:
        """Note that a runner has delivered its fragment, which ends a row of failures."""
        slot = self._answer(index, SlotStatus.OUT)
        slot.queue.append(Queued(slot.acted, fragment))

    def occupy(self, index: int) -> None:
        """Note that a runner was asked for something else than a fragment."""
        self._ask(index, SlotStatus.BUSY)

    def release(self, index: int) -> None:
        """Note that a runner has answered, which ends a row of failures."""
        self._answer(index, SlotStatus.BUSY)

    def fail(self, index: int, now: float, is_counted: bool = True, num_losses: int | None = None) -> SlotStatus:
        """Note that a runner failed; it waits for its restart or is lost. What it has delivered stays; see `_fail`."""
        self.num_fragments_lost += self.slots[index].status is SlotStatus.OUT
        return self._fail(index, now, is_counted, num_losses)

    def discard(self) -> list[T]:
        """Take all fragments out of the queues and return them."""
        fragments = [queued.fragment for slot in self.slots for queued in slot.queue]
        for slot in self.slots:
            slot.queue.clear()
        return fragments

    # What follows.

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
        if self.num_up < self.min_runners and not self.has_lost_all:  # then what is left is learned from
            return False
        up = [slot for slot in self.slots if slot.is_up and (is_asking or slot.status is SlotStatus.OUT or slot.queue)]
        num_needed = math.ceil(self._min_ready * len(up) - 1e-9)  # 0.28 * 25 is a little more than 7
        if sum(bool(slot.queue) for slot in up) < num_needed:
            return False
        return not any(
            slot.status is SlotStatus.OUT and not slot.queue and self.version - slot.acted >= self._max_staleness
            for slot in self.slots
        )

    def take(self) -> dict[int, Queued[T]]:
        """Return the oldest fragment of every slot that has one, by slot."""
        return {index: slot.queue.popleft() for index, slot in enumerate(self.slots) if slot.queue}

    def _has_settled(self, now: float) -> bool:
        """Return whether the first round may begin: it waits for all runners, or until no other becomes ready.

        Otherwise the order of starting would change the results.
        """
        if not self._is_settled and self._last_start is not None:
            are_all_there = self.count(SlotStatus.STARTING) + self.count(SlotStatus.SUSPECT) == 0
            has_waited = now - self._last_start >= SETTLING_SECONDS
            self._is_settled = are_all_there or (self.num_up >= self.min_runners and has_waited)
        return self._is_settled
