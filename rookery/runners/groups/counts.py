"""Adds up what the runners of a group count."""

from collections import Counter
from typing import Generic, Protocol, TypeVar


class Counts(Protocol):
    """A reply of a runner with its counts since it was started."""

    @property
    def counts(self) -> Counter[str]: ...

    @property
    def num_lost_envs(self) -> int: ...


ReportT = TypeVar("ReportT", bound=Counts)


class GroupCounts(Generic[ReportT]):
    """The counts of a group: those of runners that are up, of runners that are gone, and `own` ones of the caller."""

    def __init__(self) -> None:
        self.own: Counter[str] = Counter()
        """The counts of the caller and of runners that are gone."""
        self.last: dict[int, ReportT] = {}
        """The last report of each runner since it was started."""

    def forget(self, index: int) -> None:
        """Keep the counts of a runner that is gone."""
        if index in self.last:
            self.own.update(self.last.pop(index).counts)

    def forget_all(self) -> None:
        for index in list(self.last):
            self.forget(index)

    def total(self) -> Counter[str]:
        counts = Counter(self.own)
        for report in self.last.values():
            counts.update(report.counts)
        return counts

    @property
    def num_lost_envs(self) -> int:
        return sum(report.num_lost_envs for report in self.last.values())
