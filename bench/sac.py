"""Training SAC on Pendulum against rejax and SBX with the same sizes, and with a small and a large replay buffer."""

from collections.abc import Iterator

from bench.off_policy import rows_against_peers, rows_by_capacity
from bench.peers.off_policy_sizes import LARGE_CAPACITY
from bench.table import Row


def rows() -> Iterator[Row]:
    yield from rows_against_peers("sac")
    yield from rows_by_capacity("sac", 10_000, LARGE_CAPACITY)
