"""When a command looks for cycles of objects."""

import gc
from collections.abc import Iterator

import pytest

from rookery.cli.garbage import OBJECTS_PER_COLLECTION, CollectAsUsual, collect_rarely


@pytest.fixture(autouse=True)
def threshold() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_a_command_collects_rarely_at_first_and_as_usual_from_the_first_record_on() -> None:
    gc.unfreeze()
    collect_rarely()
    assert gc.get_threshold()[0] == OBJECTS_PER_COLLECTION
    hook = CollectAsUsual()
    hook(None)
    assert gc.get_threshold() == (700, 10, 10)
    num_frozen = gc.get_freeze_count()
    assert num_frozen > 0
    kept = [[] for _ in range(1000)]
    hook(None)
    assert gc.get_freeze_count() == num_frozen, f"{len(kept)} later objects are collected"
