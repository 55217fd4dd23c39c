"""Optuna as a sampler: its tree-structured Parzen estimator proposes trials from the results of earlier ones.

Optuna sees every number as its place between the bounds, from 0 to 1 on the scale of the search, and every choice by
its index. It proposes the same trials again from the same seed and results, so a resumed search asks it again.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rookery.errors import missing_extra
from rookery.runs.trial_results import TrialResult
from rookery.tuning.samplers import Sampler, Trial
from rookery.tuning.space import Choices, Dimension, TuneSpace

if TYPE_CHECKING:
    import optuna


class OptunaSampler(Sampler):
    """Asks Optuna for rounds of `round_size` trials; trials that diverge or fail rank last."""

    def __init__(self, space: TuneSpace, num_trials: int, round_size: int, seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise missing_extra("optuna", "tune") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._num_trials, self._round_size = space, num_trials, round_size
        # `constant_liar` spreads the trials of a round.
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._worst = optuna.trial.TrialState.PRUNED
        self._asked: list[optuna.trial.Trial] = []

    def ask(self) -> list[Trial]:
        num_left = self._num_trials - len(self._study.trials)
        self._asked = [self._study.ask() for _ in range(min(self._round_size, num_left))]
        return [Trial(trial.number, self._values(trial)) for trial in self._asked]

    def tell(self, results: Sequence[TrialResult]) -> None:
        for trial, result in zip(self._asked, results, strict=True):
            if result.fitness is None:
                self._study.tell(trial, state=self._worst)
            else:
                self._study.tell(trial, result.fitness)

    def _values(self, trial: "optuna.trial.Trial") -> dict[str, Any]:
        return self._space.values({own.key: suggested(trial, own) for own in self._space.dimensions})


def suggested(trial: "optuna.trial.Trial", dimension: Dimension) -> float:
    """Return the place that Optuna suggests for a dimension."""
    if isinstance(dimension, Choices):
        return trial.suggest_categorical(dimension.key, range(len(dimension.values)))
    return float(dimension.places.from_unit(trial.suggest_float(dimension.key, 0.0, 1.0)))
