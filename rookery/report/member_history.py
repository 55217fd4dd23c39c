"""The history of a population of trainings, read from `population.json` and validated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class MemberHistory:
    """Rounds of a population: `fitness[r, p]`, NaN for diverged members, `parents[r, p]` and `numbers[name][r, p]`.

    The parents are those chosen after a round. `steps[r]` are the env steps at its end, over all members.
    """

    steps: np.ndarray
    fitness: np.ndarray
    parents: np.ndarray
    numbers: dict[str, np.ndarray]
    scales: dict[str, str]
    best_member: int

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the numbers."""
        return tuple(self.numbers)

    def ancestors(self) -> np.ndarray:
        """Return the place of the ancestor of each last member in every round, `[R, P]`."""
        places = np.empty_like(self.parents)
        current = np.arange(self.parents.shape[1])
        for number in reversed(range(len(self.parents))):
            places[number] = current
            if number > 0:
                current = self.parents[number - 1][current]
        return places


def parse_member_history(entry: Mapping[str, Any]) -> MemberHistory:
    """Parse the entry of one seed; a `ValueError` says what is damaged."""
    fitness = _table(entry["fitness"], "fitness")
    parents = _table(entry["parents"], "parents", fitness.shape)
    size = fitness.shape[1]
    best_member = int(entry["best_member"])
    if not np.isin(parents, np.arange(size)).all() or not 0 <= best_member < size:
        raise ValueError(f"a parent or the best member is none of the {size} members")
    numbers = {str(name): _table(rows, str(name), fitness.shape) for name, rows in _mapping(entry, "numbers").items()}
    rounds = int(entry["first_round"]) + 1 + np.arange(len(fitness))
    return MemberHistory(
        steps=np.rint(rounds * float(entry["env_steps_per_round"])).astype(int),
        fitness=fitness,
        parents=parents.astype(int),
        numbers=numbers,
        scales={str(name): str(scale) for name, scale in _mapping(entry, "scales").items()},
        best_member=best_member,
    )


def _mapping(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(entry[name], Mapping):
        raise ValueError(f"{name} is {entry[name]!r:.80}, expected an object")
    return entry[name]


def _table(rows: Any, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    table = np.array(rows, np.float64)
    if table.ndim != 2 or table.size == 0 or (shape is not None and table.shape != shape):
        expected = "a row for each round" if shape is None else list(shape)
        raise ValueError(f"{name} has the shape {list(table.shape)}, expected {expected}")
    return table
