"""Full fragments of envs that fill theirs at their own pace, until a sample takes them."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.ledger import Steps
from rookery.runners.recording.fragment_pool import FullColumn


@dataclass(frozen=True)
class FilledFragment:
    """The fragment of one env: the columns of its agents, by policy."""

    steps: Steps
    columns: Mapping[PolicyID, Sequence[FullColumn]]

    @property
    def oldest_version(self) -> int:
        """The version of the parameters that acted in the oldest row."""
        return min((column.oldest_version for columns in self.columns.values() for column in columns), default=0)


class FilledFragments:
    """Fragments of `length` env steps, oldest first."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._queue: deque[FilledFragment] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def clear(self) -> None:
        """Forget all of them."""
        self._queue.clear()

    def add(self, fragment: FilledFragment) -> None:
        self._queue.append(fragment)

    def take(self, num_fragments: int) -> list[FilledFragment]:
        """Return the oldest fragments."""
        return [self._queue.popleft() for _ in range(num_fragments)]

    def take_older(self, version: int) -> list[FilledFragment]:
        """Return the fragments with rows of parameters before this version."""
        older = [fragment for fragment in self._queue if fragment.oldest_version < version]
        self._queue = deque(fragment for fragment in self._queue if fragment.oldest_version >= version)
        return older

    @property
    def steps(self) -> Steps:
        return sum((fragment.steps for fragment in self._queue), Steps())
