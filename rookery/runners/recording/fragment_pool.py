"""A buffer in which every column is one fragment, for agents that fill theirs at their own pace."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.runners.recording.fragments import ROW_FIELDS, ColumnIndex, FragmentBuffer


@dataclass(frozen=True)
class FullColumn:
    """The fragment of one agent: its place in the pool, and its rows."""

    place: int
    num_rows: int
    oldest_version: int
    """The version of the parameters that acted in the oldest row."""
    first_carry: Any
    """The recurrent state before the first row."""


class FragmentPool(FragmentBuffer):
    """The transitions of one policy, a column for each fragment.

    Callers name the agents. An agent writes into a place of its own; when its fragment is full, it goes on in a free
    one. Full fragments stay where they are until `release`.
    """

    def __init__(self, num_rows: int, num_agents: int) -> None:
        super().__init__(num_rows, 0)
        self.row = None
        self._places = np.zeros(0, np.int64)
        """The place where each agent writes."""
        self._free: list[int] = []
        self.add_columns(num_agents)

    def add_columns(self, num_columns: int) -> None:
        """Make room for more agents."""
        num_new = num_columns - len(self._places)
        self._places = np.append(self._places, [self._take_place() for _ in range(num_new)]).astype(np.int64)

    def complete(self, columns: ColumnIndex, *results: Any) -> None:
        super().complete(self._named(columns), *results)

    def next_fragment(self, agent: int, is_open: bool) -> tuple[int, int]:
        """Let an agent go on in another place, with its present row; return the place before, and its rows."""
        old, row, new = int(self._places[agent]), int(self.cursor[agent]), self._take_place()
        self._copy_row(self.obs, (row, old), (0, new))
        if is_open:
            for block in (self.next_obs, self.acts):
                self._copy_row(block, (row, old), (0, new))
            for name in ROW_FIELDS:
                array = getattr(self, name)
                array[0, new] = array[row, old]
        self._places[agent] = new
        self.cursor[agent] = self.episode_begin[agent] = 0
        return old, row

    def release(self, place: int) -> None:
        """Let a place be written again."""
        self._free.append(place)

    def _now(self, columns: ColumnIndex) -> tuple[Any, Any]:
        return super()._now(self._named(columns))

    def _places_of(self, columns: Any) -> Any:
        return self._places[columns]

    def _named(self, columns: ColumnIndex) -> np.ndarray:
        return np.arange(len(self._places)) if isinstance(columns, slice) else columns

    def _take_place(self) -> int:
        if not self._free:
            num_places = self.num_columns
            super().add_columns(max(8, 2 * num_places))
            self._free = list(reversed(range(num_places, self.num_columns)))
        return self._free.pop()

    @staticmethod
    def _copy_row(block: Any, source: tuple[int, int], target: tuple[int, int]) -> None:
        for array in block.arrays or ():
            array[target] = array[source]
