"""When Python looks for cycles of objects: rarely while a command starts, as usual while it trains."""

import atexit
import gc

OBJECTS_PER_COLLECTION = 50_000
"""The number of new objects after which Python looks for cycles; its own default is 700."""


def collect_rarely() -> None:
    """Spare the search for cycles among the objects that imports and programs make: nearly all of them stay."""
    gc.set_threshold(OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # the memory of a process that ends is freed anyway


class CollectAsUsual:
    """A hook that begins to collect the garbage of a long run; what was there before is not looked at again."""

    def __init__(self) -> None:
        self._is_first = True

    def __call__(self, event: object) -> None:
        if self._is_first:
            self._is_first = False
            gc.freeze()
            gc.set_threshold(700, 10, 10)
