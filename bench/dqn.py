"""Training DQN on CartPole with replay buffers of three sizes, and against rejax and SBX with the same sizes."""

from collections.abc import Iterator

from bench.off_policy import rows_against_peers, rows_by_capacity
from bench.peers.off_policy_sizes import BUFFER_CAPACITY, LARGE_CAPACITY, SMALL_CAPACITY
from bench.table import Row


def rows() -> Iterator[Row]:
    yield from rows_by_capacity("dqn", SMALL_CAPACITY, BUFFER_CAPACITY, LARGE_CAPACITY)
    yield from rows_against_peers("dqn")
