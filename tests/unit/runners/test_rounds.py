"""Rounds: each event changes one slot, and the two rules bound staleness without waiting for the dead."""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.runners.groups.rounds import SETTLING_SECONDS, Rounds
from rookery.runners.groups.slots import SlotStatus
from rookery.runners.health import RestartPolicy

NOW = 1_000.0
RESTART = RestartPolicy(max_restarts=2, first_delay=1.0, max_delay=8.0)


def started(num_slots: int, max_staleness: int = 0, min_ready: float = 1.0) -> Rounds[str]:
    """Make rounds whose runners are all ready, and which have begun."""
    rounds: Rounds[str] = Rounds(num_slots, max_staleness, min_ready, RESTART)
    for index in range(num_slots):
        rounds.start(index, NOW)
    rounds.publish()
    rounds.to_send(False, NOW)
    return rounds


def send(rounds: Rounds[str], *indexes: int) -> None:
    for index in indexes:
        rounds.send(index)


def deliver(rounds: Rounds[str], *names: str) -> None:
    """Deliver fragments that are named after their slots: `0a`, `0b`."""
    for name in names:
        rounds.deliver(int(name[0]), name)


def statuses(rounds: Rounds[str]) -> list[SlotStatus]:
    return [slot.status for slot in rounds.slots]


def names(round_: dict) -> list[str]:
    return [queued.fragment for queued in round_.values()]


# Events.


def test_a_runner_is_starting_then_ready_then_out_then_ready_with_a_fragment() -> None:
    rounds: Rounds[str] = Rounds(2)
    assert statuses(rounds) == [SlotStatus.STARTING] * 2
    rounds.start(1, NOW)
    assert statuses(rounds) == [SlotStatus.STARTING, SlotStatus.READY]
    rounds.send(1)
    assert statuses(rounds) == [SlotStatus.STARTING, SlotStatus.OUT]
    rounds.deliver(1, "1a")
    assert statuses(rounds) == [SlotStatus.STARTING, SlotStatus.READY]
    assert [len(slot.queue) for slot in rounds.slots] == [0, 1]
    assert rounds.num_up == 1


def test_a_fragment_keeps_the_version_that_it_was_asked_with() -> None:
    rounds = started(2, max_staleness=1)
    assert rounds.version == 1
    send(rounds, 0, 1)
    assert rounds.publish() == rounds.version == 2
    deliver(rounds, "0a", "1a")
    assert [queued.version for queued in rounds.take().values()] == [1, 1]


def test_a_runner_has_at_most_one_request_under_way() -> None:
    rounds = started(1, max_staleness=3)
    rounds.send(0)
    assert rounds.to_send(False, NOW) == []
    with pytest.raises(AssertionError, match="slot 0 is out"):
        rounds.send(0)


def test_only_a_runner_that_was_asked_delivers() -> None:
    with pytest.raises(AssertionError, match="slot 0 is ready"):
        started(1).deliver(0, "0a")


def test_a_failure_costs_the_fragment_under_way_and_leaves_those_delivered() -> None:
    rounds = started(2, max_staleness=1)
    send(rounds, 0, 1)
    deliver(rounds, "0a")
    send(rounds, 0)
    assert rounds.fail(0, NOW) is SlotStatus.SUSPECT
    assert rounds.num_fragments_lost == 1
    assert [len(slot.queue) for slot in rounds.slots] == [1, 0]
    assert rounds.slots[1].status is SlotStatus.OUT


def test_a_runner_that_does_something_else_is_up_and_answers_without_a_fragment() -> None:
    rounds = started(2)
    rounds.occupy(0)
    assert (rounds.ready, rounds.num_up) == ([1], 2)
    assert rounds.to_send(False, NOW) == [1]
    rounds.release(0)
    assert rounds.ready == [0, 1]
    assert not rounds.slots[0].queue


def test_a_failure_of_something_else_counts_against_that_and_loses_no_fragment() -> None:
    rounds: Rounds[str] = Rounds(1, restart=RestartPolicy(max_restarts=0))
    rounds.start(0, NOW)
    rounds.occupy(0)
    assert rounds.fail(0, NOW, num_losses=3) is SlotStatus.SUSPECT
    assert rounds.num_fragments_lost == 0
    rounds.restart(0)
    assert rounds.fail(0, NOW) is SlotStatus.LOST


@pytest.mark.parametrize("is_started", [False, True])
def test_a_runner_that_fails_without_a_request_loses_no_fragment(is_started: bool) -> None:
    rounds = started(1) if is_started else Rounds(1, restart=RESTART)
    rounds.fail(0, NOW)
    assert rounds.num_fragments_lost == 0


def test_a_suspect_runner_restarts_at_once_then_later_and_is_then_lost() -> None:
    rounds = started(2)
    for failed_at, due_at in ((NOW, NOW), (NOW, NOW + 1.0)):
        assert rounds.fail(1, failed_at) is SlotStatus.SUSPECT
        assert rounds.due(math.nextafter(due_at, 0.0)) == []
        assert rounds.due(due_at) == [1]
        rounds.restart(1)
        assert rounds.slots[1].status is SlotStatus.STARTING
        assert rounds.due(due_at + 100.0) == []
    assert rounds.num_restarts == 2
    assert rounds.fail(1, NOW) is SlotStatus.LOST
    assert rounds.due(NOW + 100.0) == []
    assert rounds.count(SlotStatus.LOST) == 1
    assert not rounds.has_lost_all


def test_the_time_to_the_next_restart_is_that_of_the_first_suspect_runner() -> None:
    rounds = started(3)
    assert rounds.seconds_to_restart(NOW) == math.inf
    for index in (0, 0, 0, 1, 1):
        rounds.fail(index, NOW)  # slot 0 is lost
    assert rounds.seconds_to_restart(NOW) == 1.0
    assert rounds.seconds_to_restart(NOW + 0.75) == 0.25
    assert rounds.seconds_to_restart(NOW + 5.0) == 0.0
    rounds.restart(1)
    assert rounds.seconds_to_restart(NOW) == math.inf


def test_a_delivery_ends_a_row_of_failures_and_being_ready_does_not() -> None:
    rounds = started(1)
    for _ in range(RESTART.max_restarts):
        rounds.fail(0, NOW)
        rounds.restart(0)
        rounds.start(0, NOW)
    send(rounds, 0)
    deliver(rounds, "0a")
    assert rounds.fail(0, NOW) is SlotStatus.SUSPECT
    assert rounds.due(NOW) == [0]
    for _ in range(RESTART.max_restarts):
        rounds.restart(0)
        rounds.start(0, NOW)
        status = rounds.fail(0, NOW)
    assert status is SlotStatus.LOST


def test_a_failure_that_is_not_counted_delays_the_restart_and_never_loses_the_runner() -> None:
    rounds = started(1)
    for delay in (0.0, 1.0, 2.0, 4.0, 8.0, 8.0):
        assert rounds.fail(0, NOW, is_counted=False) is SlotStatus.SUSPECT
        assert rounds.slots[0].health.retry_at == NOW + delay
        rounds.restart(0)


def test_a_delivery_ends_the_backoff_of_failures_that_are_not_counted() -> None:
    rounds = started(1)
    for _ in range(5):
        rounds.fail(0, NOW, is_counted=False)
        rounds.restart(0)
    rounds.start(0, NOW)
    send(rounds, 0)
    deliver(rounds, "0a")
    rounds.fail(0, NOW, is_counted=False)
    assert rounds.due(NOW) == [0]


def test_a_failure_that_is_not_counted_does_not_forgive_those_that_are() -> None:
    rounds = started(1)
    for _ in range(RESTART.max_restarts):
        rounds.fail(0, NOW)
        rounds.restart(0)
    rounds.fail(0, NOW, is_counted=False)
    rounds.restart(0)
    assert rounds.fail(0, NOW) is SlotStatus.LOST


def test_when_every_runner_is_lost_none_will_deliver_again() -> None:
    rounds = started(2)
    for index in (0, 1):
        assert not rounds.has_lost_all
        for _ in range(RESTART.max_restarts):
            rounds.fail(index, NOW)
            rounds.restart(index)
        rounds.fail(index, NOW)
    assert rounds.has_lost_all
    assert rounds.num_up == 0


def test_no_runner_ever_started_if_each_failed_before_any_was_ready() -> None:
    rounds: Rounds[str] = Rounds(2, restart=RESTART)
    rounds.fail(0, NOW)
    assert not rounds.has_never_started
    rounds.fail(1, NOW, is_counted=False)
    assert not rounds.has_never_started  # its node may come back
    rounds.fail(1, NOW)
    assert rounds.has_never_started
    assert not started(2).has_never_started


def test_discarding_empties_all_queues_and_leaves_requests_alone() -> None:
    rounds = started(3, max_staleness=1)
    send(rounds, 0, 1, 2)
    deliver(rounds, "0a", "1a")
    send(rounds, 0)
    deliver(rounds, "0b")
    assert rounds.discard() == ["0a", "0b", "1a"]
    assert not any(slot.queue for slot in rounds.slots)
    assert rounds.slots[2].status is SlotStatus.OUT
    assert rounds.discard() == []


# The rule of taking.


def test_a_round_takes_the_oldest_fragment_of_every_slot_in_slot_order() -> None:
    rounds = started(3, max_staleness=2)
    send(rounds, 0, 1, 2)
    deliver(rounds, "2a", "0a", "1a")
    send(rounds, 2)
    deliver(rounds, "2b")
    assert rounds.may_take()
    assert names(rounds.take()) == ["0a", "1a", "2a"]
    assert names(rounds.take()) == ["2b"]


def test_there_is_no_round_without_a_fragment() -> None:
    rounds = started(2, max_staleness=1, min_ready=0.25)
    assert not rounds.may_take()
    send(rounds, 0, 1)
    assert not rounds.may_take()


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_there_is_no_round_while_fewer_runners_are_up_than_training_needs(max_staleness: int) -> None:
    rounds: Rounds[str] = Rounds(3, max_staleness, restart=RESTART, min_runners=2)
    for index in range(3):
        rounds.start(index, NOW)
    assert rounds.to_send(False, NOW) == [0, 1, 2]
    send(rounds, 0, 1, 2)
    deliver(rounds, "0a")
    rounds.fail(1, NOW)
    deliver(rounds, "2a")
    assert rounds.may_take()
    rounds.fail(2, NOW)
    assert not rounds.may_take()
    assert not rounds.may_take(is_asking=False)
    rounds.restart(2)
    assert not rounds.may_take()
    rounds.start(2, NOW)
    assert rounds.may_take()
    assert names(rounds.take()) == ["0a", "2a"]


def test_what_is_left_when_all_runners_are_lost_is_a_round() -> None:
    rounds: Rounds[str] = Rounds(2, 1, restart=RestartPolicy(max_restarts=0), min_runners=2)
    for index in range(2):
        rounds.start(index, NOW)
    send(rounds, 0, 1)
    deliver(rounds, "0a", "1a")
    rounds.fail(0, NOW)
    assert rounds.has_lost_too_many
    assert not rounds.may_take()
    rounds.fail(1, NOW)
    assert rounds.may_take()


def test_too_many_are_lost_if_those_that_are_left_are_fewer_than_training_needs() -> None:
    rounds: Rounds[str] = Rounds(3, restart=RestartPolicy(max_restarts=0), min_runners=2)
    rounds.fail(0, NOW)
    rounds.fail(1, NOW, is_counted=False)
    assert not rounds.has_lost_too_many
    rounds.fail(1, NOW)
    assert rounds.has_lost_too_many
    assert not rounds.has_lost_all


def test_without_staleness_a_round_waits_for_every_runner() -> None:
    rounds = started(3)
    send(rounds, 0, 1, 2)
    for name in ("1a", "2a"):
        deliver(rounds, name)
        assert not rounds.may_take()
    deliver(rounds, "0a")
    assert rounds.may_take()


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_round_waits_for_a_runner_that_is_ready_and_about_to_be_asked(max_staleness: int) -> None:
    rounds = started(2, max_staleness)
    rounds.fail(1, NOW)
    send(rounds, 0)
    deliver(rounds, "0a")
    assert rounds.may_take()
    rounds.restart(1)
    assert rounds.may_take()
    rounds.start(1, NOW)
    assert not rounds.may_take()
    send(rounds, 1)
    assert not rounds.may_take()
    deliver(rounds, "1a")
    assert rounds.may_take()


def test_a_round_does_not_wait_for_a_ready_runner_once_nobody_is_asked_any_more() -> None:
    rounds = started(3, max_staleness=1)
    send(rounds, 0, 2)
    deliver(rounds, "0a")
    assert not rounds.may_take(is_asking=False)
    deliver(rounds, "2a")
    assert not rounds.may_take()
    assert rounds.may_take(is_asking=False)


@pytest.mark.parametrize(
    ("num_slots", "min_ready", "num_needed"),
    [(1, 0.25, 1), (4, 0.25, 1), (5, 0.25, 2), (3, 0.5, 2), (4, 0.5, 2), (4, 0.75, 3), (25, 0.28, 7), (5, 1.0, 5)],
)
def test_a_round_waits_for_a_share_of_the_runners_rounded_up(num_slots: int, min_ready: float, num_needed: int) -> None:
    rounds = started(num_slots, max_staleness=1, min_ready=min_ready)
    send(rounds, *range(num_slots))
    for index in range(num_needed):
        assert not rounds.may_take()
        rounds.deliver(index, "fragment")
    assert rounds.may_take()


def test_the_share_is_of_the_runners_that_are_up() -> None:
    rounds = started(4, max_staleness=1, min_ready=0.5)
    send(rounds, 0, 1, 2, 3)
    deliver(rounds, "0a")
    assert not rounds.may_take()
    rounds.fail(2, NOW)
    assert not rounds.may_take()
    rounds.fail(3, NOW)
    assert rounds.may_take()


def test_a_round_waits_for_a_runner_whose_fragment_would_become_too_old() -> None:
    rounds = started(2, max_staleness=2, min_ready=0.5)
    send(rounds, 0, 1)
    for letter in "ab":  # slot 1 is late
        deliver(rounds, f"0{letter}")
        assert rounds.may_take()
        rounds.take()
        rounds.publish()
        send(rounds, 0)
    deliver(rounds, "0c")
    assert rounds.version - rounds.slots[1].acted == 2
    assert not rounds.may_take()
    deliver(rounds, "1a")
    assert rounds.may_take()
    round_ = rounds.take()
    assert names(round_) == ["0c", "1a"]
    assert rounds.version - round_[1].version == 2


def test_a_late_runner_is_not_waited_for_if_it_has_delivered_before() -> None:
    rounds = started(2, max_staleness=1, min_ready=0.5)
    send(rounds, 0, 1)
    deliver(rounds, "1a")
    send(rounds, 1)
    rounds.publish()
    deliver(rounds, "0a")
    assert rounds.may_take()  # slot 1 is as late as it may be, and slot 0 as well


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_a_round_never_waits_for_a_runner_that_failed(max_staleness: int) -> None:
    rounds = started(2, max_staleness)
    send(rounds, 0, 1)
    deliver(rounds, "0a")
    assert not rounds.may_take()
    rounds.fail(1, NOW)
    assert rounds.may_take()
    rounds.restart(1)
    assert rounds.may_take()


def test_what_a_dead_runner_delivered_does_not_stand_in_for_a_live_one() -> None:
    rounds = started(2, max_staleness=1)
    send(rounds, 0, 1)
    deliver(rounds, "0a")
    rounds.fail(0, NOW)
    assert not rounds.may_take()
    deliver(rounds, "1a")
    assert rounds.may_take()
    assert names(rounds.take()) == ["0a", "1a"]


def test_what_a_lost_runner_delivered_is_taken() -> None:
    rounds = started(1, max_staleness=1)
    send(rounds, 0)
    deliver(rounds, "0a")
    for _ in range(RESTART.max_restarts):
        rounds.fail(0, NOW)
        rounds.restart(0)
    rounds.fail(0, NOW)
    assert rounds.has_lost_all
    assert rounds.may_take()
    assert names(rounds.take()) == ["0a"]


# The first round.


def partly_started(min_runners: int) -> Rounds[str]:
    """Make rounds of which runners 0 and 1 are ready, and runner 2 is starting."""
    rounds: Rounds[str] = Rounds(3, restart=RESTART, min_runners=min_runners)
    rounds.publish()
    for index in (0, 1):
        rounds.start(index, NOW + index)
    return rounds


def test_nobody_is_asked_until_no_other_runner_has_started_for_a_minute() -> None:
    rounds = partly_started(min_runners=2)
    settled_at = NOW + 1 + SETTLING_SECONDS
    assert SETTLING_SECONDS == 60.0
    assert rounds.to_send(False, math.nextafter(settled_at, 0.0)) == []
    assert rounds.to_send(False, settled_at) == [0, 1]


def test_the_first_round_waits_for_the_least_number_of_runners() -> None:
    assert partly_started(min_runners=3).to_send(False, NOW + 10 * SETTLING_SECONDS) == []


def test_the_first_round_begins_once_all_runners_are_ready_and_asks_all() -> None:
    rounds = partly_started(min_runners=1)
    assert rounds.to_send(False, NOW + 2) == []
    rounds.start(2, NOW + 2)
    assert rounds.to_send(False, NOW + 2) == [0, 1, 2]


def test_the_first_round_waits_for_a_suspect_runner_and_not_for_a_lost_one() -> None:
    rounds = partly_started(min_runners=1)
    for _ in range(RESTART.max_restarts):
        rounds.fail(2, NOW)
        assert rounds.to_send(False, NOW) == []
        rounds.restart(2)
    assert rounds.fail(2, NOW) is SlotStatus.LOST
    assert rounds.to_send(False, NOW) == [0, 1]


def test_later_rounds_do_not_wait_for_runners_that_start() -> None:
    rounds = started(2)
    send(rounds, 0, 1)
    deliver(rounds, "0a", "1a")
    rounds.take()
    rounds.publish()
    rounds.fail(1, NOW)
    rounds.restart(1)
    assert rounds.to_send(False, NOW) == [0]
    send(rounds, 0)
    deliver(rounds, "0b")
    assert rounds.may_take()


# The rule of sending.


def test_without_staleness_nobody_is_asked_during_an_update_or_twice_in_a_round() -> None:
    rounds = started(3)
    assert rounds.to_send(True, NOW) == []
    assert rounds.to_send(False, NOW) == [0, 1, 2]
    send(rounds, 0, 1)
    deliver(rounds, "0a")
    assert rounds.to_send(False, NOW) == [2]


@pytest.mark.parametrize("max_staleness", [1, 2, 5])
def test_a_runner_has_as_many_fragments_ahead_as_may_become_stale(max_staleness: int) -> None:
    for is_updating in (False, True):
        rounds = started(1, max_staleness)
        num_ahead = 0
        while rounds.to_send(is_updating, NOW):
            rounds.send(0)
            rounds.deliver(0, "fragment")
            num_ahead += 1
        assert num_ahead == max_staleness + 1 - is_updating


@pytest.mark.parametrize("is_updating", [False, True])
def test_only_ready_runners_are_asked(is_updating: bool) -> None:
    rounds = started(5, max_staleness=1)
    rounds.send(0)
    rounds.fail(1, NOW)
    rounds.fail(2, NOW)
    rounds.restart(2)
    for _ in range(RESTART.max_restarts):
        rounds.fail(3, NOW)
        rounds.restart(3)
    rounds.fail(3, NOW)
    assert rounds.to_send(is_updating, NOW) == [4]


# Errors.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_ready": 0.5}, r"min_ready=0\.5 .* needs max_staleness of at least 1"),
        ({"min_ready": 0.0, "max_staleness": 1}, r"min_ready=0 above 0"),
        ({"min_ready": 1.5, "max_staleness": 1}, r"min_ready=1\.5 .* at most 1"),
        ({"max_staleness": -1}, r"max_staleness=-1 must be at least 0"),
        ({"min_runners": 0}, r"min_runners=0"),
        ({"min_runners": 5}, r"min_runners=5 .* 4"),
    ],
)
def test_settings_that_contradict_one_another_are_errors(settings: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Rounds(4, **settings)


def test_rounds_need_a_slot() -> None:
    with pytest.raises(InvalidInputError, match="num_slots=0"):
        Rounds(0)


# Everything at once.


@dataclass
class Simulation:
    """Runners and a learner that act at random, and the checks that hold whatever they do."""

    rounds: Rounds[tuple[int, int]]
    max_staleness: int
    rng: np.random.Generator
    now: float = NOW
    is_updating: bool = False
    num_asked: Counter[int] = field(default_factory=Counter)
    """By slot; a fragment is its slot and its number."""
    num_rounds: int = 0
    last_taken: dict[int, int] = field(default_factory=dict)
    taken: int = 0
    lost: int = 0
    discarded: int = 0

    def slots(self, *wanted: SlotStatus) -> list[int]:
        return [index for index, slot in enumerate(self.rounds.slots) if slot.status in wanted]

    def some(self, *wanted: SlotStatus, share: float = 0.5) -> list[int]:
        """Return some slots of these statuses, in any order."""
        chosen = [index for index in self.slots(*wanted) if self.rng.random() < share]
        return self.rng.permutation(chosen).astype(int).tolist()

    def step(self) -> None:
        """Let some runners do something, then apply the rules in their order."""
        self.now += float(self.rng.exponential(3.0))
        for index in self.some(SlotStatus.STARTING):
            self.rounds.start(index, self.now)
        for index in self.some(SlotStatus.OUT):
            self.deliver(index)
        for index in self.some(SlotStatus.STARTING, SlotStatus.READY, SlotStatus.OUT, share=0.04):
            self.lost += self.rounds.slots[index].status is SlotStatus.OUT
            self.rounds.fail(index, self.now, is_counted=bool(self.rng.random() < 0.7))
        for index in self.rounds.due(self.now):
            self.rounds.restart(index)
        if self.rng.random() < 0.01:
            self.discarded += len(self.rounds.discard())
        self.apply_rules(ends_update=bool(self.rng.random() < 0.5))

    def deliver(self, index: int) -> None:
        self.rounds.deliver(index, (index, self.num_asked[index]))

    def apply_rules(self, ends_update: bool) -> None:
        if self.is_updating and ends_update:
            self.rounds.publish()
            self.is_updating = False
        if not self.is_updating and self.rounds.may_take():
            self.take()
        for index in self.rounds.to_send(self.is_updating, self.now):
            self.rounds.send(index)
            self.num_asked[index] += 1
        self.check_ledger()

    def take(self) -> None:
        live = self.slots(SlotStatus.READY, SlotStatus.OUT)
        round_ = self.rounds.take()
        assert round_
        assert self.max_staleness > 0 or set(live) <= set(round_)
        for index, queued in round_.items():
            slot, number = queued.fragment
            assert slot == index
            assert number > self.last_taken.get(slot, 0)
            assert 0 <= self.rounds.version - queued.version <= self.max_staleness
            self.last_taken[slot] = number
        self.taken += len(round_)
        self.num_rounds += 1
        self.is_updating = True

    def check_ledger(self) -> None:
        queued = sum(len(slot.queue) for slot in self.rounds.slots)
        num_out = len(self.slots(SlotStatus.OUT))
        assert sum(self.num_asked.values()) == self.taken + self.discarded + self.lost + queued + num_out
        assert self.rounds.num_fragments_lost == self.lost
        assert all(len(slot.queue) <= self.max_staleness + 1 for slot in self.rounds.slots)

    def check_progress(self) -> None:
        """Check that there is another round once all requests are answered, whoever is dead or starting."""
        self.now += SETTLING_SECONDS
        before, has_ready = self.num_rounds, bool(self.slots(SlotStatus.READY, SlotStatus.OUT))
        for _ in range(3):
            for index in self.slots(SlotStatus.OUT):
                self.deliver(index)
            self.apply_rules(ends_update=True)
        assert not has_ready or self.num_rounds > before


@pytest.mark.parametrize(("max_staleness", "min_ready"), [(0, 1.0), *itertools.product(range(1, 6), (0.25, 0.5, 1.0))])
def test_whatever_happens_staleness_is_bounded_order_is_kept_and_training_goes_on(
    max_staleness: int, min_ready: float
) -> None:
    num_lost = 0
    for num_slots in range(1, 9):
        rng = np.random.default_rng([num_slots, max_staleness, int(100 * min_ready)])
        rounds: Rounds[tuple[int, int]] = Rounds(num_slots, max_staleness, min_ready, RestartPolicy(max_restarts=1))
        simulation = Simulation(rounds, max_staleness, rng)
        rounds.publish()
        for step in range(400):
            simulation.step()
            if step % 10 == 9:
                simulation.check_progress()
        assert simulation.num_rounds > 10
        assert simulation.lost > 0
        num_lost += rounds.count(SlotStatus.LOST)
    assert num_lost > 0
