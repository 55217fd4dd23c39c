"""Samplers: which settings a search tries next."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from rookery.runs.trial_results import TrialResult
from rookery.tuning.config import OPTUNA, TuneConfig
from rookery.tuning.space import TuneSpace, Values
from rookery.types import make_key

SAMPLING = 2**32 - 2
"""Derives the key of a search from that of its first seed, which trains trials."""


@dataclass(frozen=True)
class Trial:
    """One setting to try."""

    number: int
    values: Mapping[str, Any]


class Sampler(ABC):
    """Proposes trials in rounds; it depends only on its seed and the results so far."""

    @abstractmethod
    def ask(self) -> list[Trial]:
        """Return the trials of the next round; empty at the end."""

    @abstractmethod
    def tell(self, results: Sequence[TrialResult]) -> None:
        """Learn the last results of the trials of a round, in the order of the trials."""


class RandomSampler(Sampler):
    """Draws all trials in one round; of no more combinations of choices than trials, it takes each once."""

    def __init__(self, space: TuneSpace, num_trials: int, seed: int) -> None:
        self._space, self._num_trials, self._seed = space, num_trials, seed
        self._has_asked = False

    def ask(self) -> list[Trial]:
        if self._has_asked:
            return []
        self._has_asked = True
        values = self._space.combinations(self._num_trials) or self._drawn()
        return [Trial(number, of_trial) for number, of_trial in enumerate(values)]

    def tell(self, results: Sequence[TrialResult]) -> None:
        pass

    def _drawn(self) -> list[Values]:
        return self._space.sample(jax.random.fold_in(make_key(self._seed), SAMPLING), range(self._num_trials))


def make_sampler(config: TuneConfig, space: TuneSpace, seed: int, round_size: int) -> Sampler:
    """Make the sampler that a config names; one that learns from results proposes `round_size` trials at a time."""
    if config.search == OPTUNA:
        from rookery.tuning.optuna import OptunaSampler

        return OptunaSampler(space, config.trials, round_size, seed)
    return RandomSampler(space, config.trials, seed)
