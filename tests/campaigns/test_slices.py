"""A small slice of the campaigns that need no trained run."""

from collections.abc import Iterable

from tests.campaigns import mutations, records


def failures(cases: Iterable[tuple[str, str | None]]) -> list[tuple[str, str]]:
    return [(name, failure) for name, failure in cases if failure is not None]


def test_reports_on_odd_records_are_made() -> None:
    assert failures(records.cases(count=12, seed=1)) == []


def test_damaged_checkpoints_are_refused() -> None:
    assert failures(mutations.cases(count=25, seed=1)) == []
