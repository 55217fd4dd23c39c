"""The state of a population of trainings, and its history."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.learners.learner import LearnerState
from rookery.learning.counter import Counter
from rookery.search import Numbers, Search, SearchSpace
from rookery.types import Array, PyTree, PyTreeData
from rookery.workflows.training import TrainingState

MAX_ROUNDS = 512
"""The number of newest rounds whose fitness, numbers and parents a state holds, for the report."""


class History(PyTreeData):
    """What happened in the newest rounds, `[MAX_ROUNDS, P]`: round r is in row `r % MAX_ROUNDS`."""

    fitness: Array
    parents: Array
    numbers: Numbers

    @classmethod
    def empty(cls, search: Search) -> Self:
        shape = MAX_ROUNDS, search.population_size
        return cls(
            fitness=jnp.full(shape, jnp.nan, jnp.float32),
            parents=jnp.zeros(shape, jnp.int32),
            numbers={name: jnp.zeros(shape) for name in search.space.names},
        )

    def with_round(self, row: Array, fitness: Array, parents: Array, numbers: Numbers) -> Self:
        """Add a round: its fitness, the numbers that reached it, and the parents that were chosen after it."""
        new = History(fitness=fitness, parents=parents, numbers=numbers)
        return jax.tree.map(lambda rows, value: rows.at[row].set(value), self, new)


class PopulationState(LearnerState):
    """The state of a population; `agent_state` is that of the best member after the last round.

    An iteration is a round. Env steps and updates are sums over the members; `hyperparameters` are those of the search.
    """

    members: TrainingState
    """The states of all members, `[P, ...]`."""
    fitness: Array
    """The fitness of the members in the last round; NaN for those that diverged."""
    best_member: Array
    search_state: PyTree
    num_heirs: Counter
    num_diverged: Counter
    history: History

    @property
    def lacks_replay(self) -> bool:
        return self.members.learner.lacks_replay

    def without_replay(self) -> Self:
        return self.replace(members=self.members.replace(learner=self.members.learner.without_replay()))


def describe_history(population: PopulationState, space: SearchSpace) -> dict[str, Any]:
    """Describe the newest rounds of a population on the host as JSON data, the oldest first."""
    num_rounds = int(population.iterations)
    first = max(0, num_rounds - MAX_ROUNDS)
    rows = np.arange(first, num_rounds) % MAX_ROUNDS
    history = jax.tree.map(lambda leaf: np.asarray(leaf)[rows].tolist(), population.history)
    return {
        "kind": "members",
        "first_round": first,
        "env_steps_per_round": int(population.env_steps) / max(num_rounds, 1),
        "fitness": [[value if np.isfinite(value) else None for value in row] for row in history.fitness],
        "parents": history.parents,
        "numbers": history.numbers,
        "scales": {name: own.scale for name, own in space.ranges},
        "best_member": int(population.best_member),
    }
