"""When things happen, against a walk through the steps."""

import numpy as np

from rookery.runs.timetable import Timetable


def test_a_timetable_keeps_its_intervals_whatever_divides_what() -> None:
    # Iterations take any number of steps, as the generations of evolution do. Everything happens at the first record
    # after its time has come, never twice for one time, and at the end.
    generator = np.random.default_rng(0)
    for _ in range(200):
        total, record, evaluation, checkpoint = (int(number) for number in generator.integers(1, 5000, size=4))
        timetable = Timetable.of(total, record, evaluation, checkpoint)
        position, records, due = 0, [], {"evaluation": [], "checkpoint": []}
        while position < total:
            record_at = timetable.next_record(position)
            while position < record_at:
                position += int(generator.integers(1, 900))
            records.append(position)
            for name, positions in due.items():
                if timetable.is_due(getattr(timetable, f"{name}_interval"), record_at, position):
                    positions.append(position)
        assert records == first_past_multiples(records, timetable.record_interval, total)
        for name, positions in due.items():
            assert positions == first_past_multiples(records, getattr(timetable, f"{name}_interval"), total)


def first_past_multiples(positions: list[int], interval: int, total: int) -> list[int]:
    chosen, num_passed = [], 0
    for position in positions:
        if position // interval > num_passed or position >= total:
            chosen.append(position)
        num_passed = position // interval
    return chosen


def test_intervals_that_are_not_given_are_shares_of_the_run() -> None:
    timetable = Timetable.of(total_timesteps=100_000)
    assert timetable.record_interval == 2_000
    assert (timetable.evaluation_interval, timetable.checkpoint_interval) == (10_000, 10_000)
