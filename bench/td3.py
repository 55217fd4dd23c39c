"""Training TD3 on Pendulum against rejax and SBX with the same sizes."""

from collections.abc import Iterator

from bench.off_policy import rows_against_peers
from bench.table import Row


def rows() -> Iterator[Row]:
    yield from rows_against_peers("td3")
