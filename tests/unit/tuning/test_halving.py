"""Successive halving."""

import pytest

from rookery.runs.trial_results import DIVERGED, FINISHED, TrialResult
from rookery.tuning.halving import budgets, survivors
from rookery.tuning.samplers import Trial


def results_of(*fitness: float | None) -> list[TrialResult]:
    return [
        TrialResult(number, 1, {}, DIVERGED if value is None else FINISHED, fitness=value)
        for number, value in enumerate(fitness)
    ]


@pytest.mark.parametrize(
    ("fitness", "kept"),
    [
        ((1.0, 4.0, 3.0, 2.0), [1, 2]),
        ((1.0, 4.0, 3.0), [1, 2]),
        ((2.0, 2.0, 2.0, 2.0), [0, 1]),
        ((None, 1.0, None, None), [1]),
        ((None, None), []),
    ],
    ids=["half", "odd", "ties", "diverged", "all diverged"],
)
def test_the_better_half_goes_on_and_no_trial_that_diverged(fitness: tuple[float | None, ...], kept: list[int]) -> None:
    trials = [Trial(number, {}) for number in range(len(fitness))]
    assert [trial.number for trial in survivors(trials, results_of(*fitness))] == kept


def test_the_budgets_are_equal_and_end_with_the_whole() -> None:
    assert budgets(90, 3) == [30, 60, 90]
    assert budgets(100, 3) == [34, 67, 100]
    assert budgets(100, 1) == [100]
