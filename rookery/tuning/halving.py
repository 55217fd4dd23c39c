"""Successive halving: after each rung, the worse half of the trials stops (Jamieson & Talwalkar, 2016)."""

from collections.abc import Sequence

from rookery.runs.trial_results import TrialResult, ranked
from rookery.tuning.samplers import Trial


def survivors(trials: Sequence[Trial], results: Sequence[TrialResult]) -> list[Trial]:
    """Return the better half of the trials, in their order; those without a fitness stop anyway."""
    best_first = [result.trial for result in ranked(results) if result.fitness is not None]
    kept = set(best_first[: (len(trials) + 1) // 2])
    return [trial for trial in trials if trial.number in kept]


def budgets(total_timesteps: int, num_rungs: int) -> list[int]:
    """Return the env steps of a trial at the end of each rung."""
    return [-(-total_timesteps * rung // num_rungs) for rung in range(1, num_rungs + 1)]
