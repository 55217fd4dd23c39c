"""Deal: every individual is played once or given up for its own losses, whatever happens to runners."""

import random
from collections import Counter

import pytest

from rookery.errors import InvalidInputError
from rookery.runners.groups.jobs import Chunk, Deal, default_chunk_size
from rookery.runners.groups.slots import SlotStatus
from rookery.runners.health import RestartPolicy

NO_DELAY = RestartPolicy(max_restarts=2, first_delay=0.0, max_delay=0.0)


def started(num_slots: int, num_individuals: int, chunk_size: int, restart: RestartPolicy = NO_DELAY) -> Deal:
    deal = Deal(num_slots, restart)
    deal.begin(num_individuals, chunk_size)
    for index in range(num_slots):
        deal.start(index)
    return deal


def lose(deal: Deal, index: int = 0, **how: bool) -> None:
    """Lose a runner and start it again."""
    deal.fail(index, now=0.0, **how)
    for due in deal.due(now=100.0):
        deal.restart(due)
        deal.start(due)


def spans(deal: Deal, count: int) -> list[tuple[int, int]]:
    """Play the next chunks in slot 0; return their first individuals and sizes."""
    played = []
    for _ in range(count):
        chunk = deal.send(0)
        played.append((chunk.first, chunk.count))
        deal.deliver(0)
    return played


def test_chunks_have_one_size_and_the_last_has_the_rest() -> None:
    deal = started(1, num_individuals=8, chunk_size=3)
    assert spans(deal, 3) == [(0, 3), (3, 3), (6, 2)]
    assert deal.is_finished


def test_whoever_is_free_gets_the_next_chunk() -> None:
    deal = started(2, num_individuals=3, chunk_size=1)
    assert deal.to_send() == [0, 1]
    assert [deal.send(index).first for index in (0, 1)] == [0, 1]
    assert deal.to_send() == []
    assert deal.deliver(1) == Chunk(1, 1)
    assert deal.to_send() == [1]
    assert deal.send(1).first == 2
    assert not deal.is_finished
    deal.deliver(1)
    assert not deal.is_finished, "slot 0 plays"
    deal.deliver(0)
    assert deal.is_finished


def test_a_slot_is_dealt_nothing_before_it_is_ready() -> None:
    deal = Deal(2)
    deal.begin(4, 1)
    deal.start(1)
    assert deal.to_send() == [1]


def test_a_lost_chunk_is_dealt_before_all_others() -> None:
    deal = started(1, num_individuals=6, chunk_size=2)
    deal.send(0)
    lose(deal)
    assert deal.num_chunks_lost == deal.num_restarts == 1
    assert deal.send(0) == Chunk(0, 2, num_losses=1)


def test_after_its_second_loss_a_chunk_is_dealt_one_by_one() -> None:
    deal = started(1, num_individuals=6, chunk_size=3)
    for _ in range(2):
        deal.send(0)
        lose(deal)
    assert spans(deal, 4) == [(0, 1), (1, 1), (2, 1), (3, 3)]
    assert deal.is_finished
    assert deal.given_up == []


def test_an_individual_that_loses_too_many_runners_is_given_up_alone() -> None:
    deal = started(1, num_individuals=4, chunk_size=2)
    played: list[int] = []
    for _ in range(20):
        if deal.is_finished:
            break
        chunk = deal.send(0)
        individuals = range(chunk.first, chunk.first + chunk.count)
        if 1 in individuals:
            lose(deal)
        else:
            deal.deliver(0)
            played += individuals
    assert deal.is_finished
    assert (deal.given_up, sorted(played)) == ([1], [0, 2, 3])
    assert deal.num_restarts == 2 + NO_DELAY.max_restarts + 1
    deal.begin(4, 2)
    assert deal.given_up == []


def test_a_loss_while_starting_counts_against_the_slot_and_not_against_a_chunk() -> None:
    deal = Deal(2, NO_DELAY)
    deal.begin(2, 2)
    deal.start(1)
    for _ in range(NO_DELAY.max_restarts):
        assert deal.fail(0, now=0.0) is SlotStatus.SUSPECT
        deal.restart(0)
    assert deal.fail(0, now=0.0) is SlotStatus.LOST
    assert not deal.has_lost_all
    assert deal.num_chunks_lost == 0
    assert deal.send(1) == Chunk(0, 2)


def test_a_runner_that_loses_its_environments_counts_against_the_slot_and_not_against_its_chunk() -> None:
    deal = started(1, num_individuals=2, chunk_size=2)
    for _ in range(NO_DELAY.max_restarts):
        assert deal.send(0) == Chunk(0, 2)
        assert deal.fail(0, now=0.0, is_by_envs=True) is SlotStatus.SUSPECT
        deal.restart(0)
        deal.start(0)
    deal.send(0)
    assert deal.fail(0, now=0.0, is_by_envs=True) is SlotStatus.LOST
    assert deal.has_lost_all


def test_a_failure_that_is_not_counted_costs_neither_the_chunk_nor_the_slot_a_try() -> None:
    deal = started(1, num_individuals=2, chunk_size=2)
    for _ in range(10):
        assert deal.send(0) == Chunk(0, 2)
        lose(deal, is_counted=False)
    assert spans(deal, 1) == [(0, 2)]


def test_an_answer_ends_a_row_of_failures() -> None:
    deal = started(1, num_individuals=20, chunk_size=1)
    for _ in range(10):
        deal.send(0)
        lose(deal, is_by_envs=True)
        spans(deal, 1)
    assert deal.slots[0].status is SlotStatus.READY


def test_restarts_wait_for_their_delay() -> None:
    deal = started(1, 1, 1, RestartPolicy(max_restarts=5, first_delay=2.0))
    delays = [0.0, 2.0, 4.0]
    for delay in delays:
        deal.send(0)
        deal.fail(0, now=10.0)
        if delay:
            assert deal.due(10.0 + delay - 0.1) == []
        assert deal.due(10.0 + delay) == [0]
        deal.restart(0)
        deal.start(0)


def test_the_answer_for_an_earlier_generation_is_dropped() -> None:
    deal = started(2, num_individuals=2, chunk_size=1)
    deal.send(0)
    deal.begin(3, 3)
    assert deal.to_send() == [1]
    assert deal.deliver(0) is None
    assert deal.to_send() == [0]
    assert not deal.is_finished


def test_a_slot_that_does_something_else_gets_no_chunk() -> None:
    deal = started(1, num_individuals=1, chunk_size=1)
    deal.occupy(0)
    assert deal.to_send() == []
    assert deal.deliver(0) is None
    assert deal.to_send() == [0]


def test_all_that_fail_before_any_is_ready_have_never_started() -> None:
    deal = Deal(2)
    deal.fail(0, now=0.0)
    assert not deal.has_never_started
    deal.fail(1, now=0.0)
    assert deal.has_never_started
    deal.restart(0)
    deal.start(0)
    assert not deal.has_never_started


@pytest.mark.parametrize("seed", range(60))
def test_random_losses_change_neither_what_is_played_nor_how_often(seed: int) -> None:
    rng = random.Random(seed)
    num_slots, num_individuals = rng.randint(1, 8), rng.randint(1, 40)
    restart = RestartPolicy(max_restarts=rng.randint(0, 3), first_delay=0.0, max_delay=0.0)
    deadly = {individual for individual in range(num_individuals) if rng.random() < 0.05}
    deal = Deal(num_slots, restart)
    deal.begin(num_individuals, rng.randint(1, num_individuals))
    played: Counter[int] = Counter()
    num_alone: Counter[int] = Counter()
    for _ in range(5_000):
        if deal.is_finished:
            break
        for index in deal.due(0.0):
            deal.restart(index)
        for index in deal.to_send():
            deal.send(index)
        index = rng.randrange(num_slots)
        slot = deal.slots[index]
        if slot.status is SlotStatus.STARTING:
            deal.start(index)
        elif slot.status is SlotStatus.OUT:
            assert slot.chunk is not None
            individuals = range(slot.chunk.first, slot.chunk.first + slot.chunk.count)
            if deadly.intersection(individuals):
                num_alone.update(individuals if len(individuals) == 1 else ())
                deal.fail(index, 0.0)
            elif rng.random() < 0.2:
                deal.fail(index, 0.0, is_counted=False)
            else:
                played.update(individuals)
                deal.deliver(index)
    assert deal.is_finished, "every generation ends"
    assert played == Counter(set(range(num_individuals)) - deadly)
    assert sorted(deal.given_up) == sorted(deadly)
    assert all(num_alone[individual] == restart.max_restarts + 1 for individual in deadly)


@pytest.mark.parametrize(
    ("num_individuals", "num_slots", "min_size", "group_size", "expected"),
    [
        (64, 2, 1, 1, 8),
        (64, 2, 16, 1, 16),  # as many as are played at a time
        (64, 8, 16, 1, 8),  # or some slots would have nothing to do
        (60, 4, 1, 2, 4),  # whole pairs, not 4 individuals and a half
        (10, 3, 1, 2, 2),
        (1, 8, 1, 1, 1),
    ],
)
def test_chunks_are_four_for_each_slot_of_whole_groups(
    num_individuals: int, num_slots: int, min_size: int, group_size: int, expected: int
) -> None:
    assert default_chunk_size(num_individuals, num_slots, min_size, group_size) == expected


def test_a_chunk_without_individuals_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="chunk_size"):
        Deal(1).begin(4, 0)


def test_the_loss_of_machines_before_anybody_was_ready_is_no_failed_start() -> None:
    deal = Deal(2, NO_DELAY)
    for index in range(2):
        deal.fail(index, now=0.0, is_counted=False)
    assert not deal.has_never_started
    for index in range(2):
        deal.restart(index)
        deal.fail(index, now=0.0)
    assert deal.has_never_started


def test_the_wait_after_a_lost_machine_does_not_grow_with_those_before_an_answer() -> None:
    deal = started(1, num_individuals=40, chunk_size=1, restart=RestartPolicy(max_restarts=2))
    for _ in range(14):
        deal.send(0)
        deal.fail(0, now=0.0, is_counted=False)
        assert deal.due(now=0.0) == [0]
        deal.restart(0)
        deal.start(0)
        deal.send(0)
        deal.deliver(0)
