"""What strategies share whose state contains the next population, on every device."""

from typing import Any, ClassVar

import jax

from rookery.evolution.optimizer import EvoOptimizer
from rookery.types import Array, Key, Params


class PopulationOptimizer(EvoOptimizer):
    """A strategy that keeps its individuals: `sample` returns those that the last `update` made.

    An individual injected before `ask` belongs to the next population.
    """

    has_population = True
    next_population: ClassVar[str] = "population"
    """The field of the state with the individuals `[P, ...]` to evaluate next."""

    def sample(self, state: Any, key: Key) -> Params:
        return self.share(getattr(state, self.next_population))

    def put(self, state: Any, individuals: Params, places: Array) -> Any:
        individuals, places = self.gathered((individuals, places))
        before = getattr(state, self.next_population)
        population = jax.tree.map(lambda leaf, new: leaf.at[places].set(new), before, individuals)
        asked = None if state.asked is None else self.share(population)
        return state.replace(**{self.next_population: population}, asked=asked)
