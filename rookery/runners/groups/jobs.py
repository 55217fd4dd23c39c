"""Jobs: which runner plays which individuals, and what becomes of individuals whose runner is lost.

Job j is episode j % E of individual j // E, if each plays E episodes. Everything here is pure: the caller passes the
time and reports what happened.
"""

from collections import deque
from dataclasses import dataclass, replace

from rookery.errors import check_count
from rookery.runners.groups.slots import Slot, Slots, SlotStatus
from rookery.runners.health import RestartPolicy

CHUNKS_PER_SLOT = 4
"""So that runners finish at about the same time, and a lost one costs little."""
MAX_CHUNK_LOSSES = 2
"""The number of lost runners after which the individuals of a chunk are dealt one by one."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive individuals for one runner, and the number of runners that were lost with them."""

    first: int
    count: int
    num_losses: int = 0

    @property
    def jobs(self) -> slice:
        """Its place among all individuals."""
        return slice(self.first, self.first + self.count)


class ChunkQueue:
    """Chunks that wait for a runner.

    One whose runner is lost is dealt again, before all others. After the second loss its individuals are dealt one by
    one. An individual that loses more than `max_restarts` runners by itself is given up.
    """

    def __init__(self, num_individuals: int, chunk_size: int, restart: RestartPolicy) -> None:
        check_count("chunk_size", chunk_size)
        firsts = range(0, num_individuals, chunk_size)
        self.given_up: list[int] = []
        self._restart = restart
        self._chunks = deque(Chunk(first, min(chunk_size, num_individuals - first)) for first in firsts)

    def __len__(self) -> int:
        return len(self._chunks)

    def pop(self) -> Chunk:
        return self._chunks.popleft()

    def put_back(self, chunk: Chunk) -> None:
        """Deal a chunk again whose runner was lost."""
        if chunk.count == 1 and chunk.num_losses > self._restart.max_restarts:
            self.given_up.append(chunk.first)
        elif chunk.count > 1 and chunk.num_losses >= MAX_CHUNK_LOSSES:
            self._chunks.extendleft(Chunk(chunk.first + offset, 1) for offset in reversed(range(chunk.count)))
        else:
            self._chunks.appendleft(chunk)


@dataclass
class JobSlot(Slot):
    """A slot, and the chunk that its runner plays."""

    chunk: Chunk | None = None
    """None if the runner plays nothing, plays at random, or plays for an earlier generation."""


class Deal(Slots[JobSlot]):
    """Deals the individuals of a generation to runners, in chunks; whoever is free gets the next.

    `ChunkQueue` says what becomes of chunks whose runner is lost. A runner that is lost while it starts counts against
    its slot, which is lost after `max_restarts` restarts in a row.
    """

    def __init__(self, num_slots: int, restart: RestartPolicy | None = None, min_runners: int = 1) -> None:
        super().__init__([JobSlot() for _ in range(num_slots)], restart, min_runners)
        self.num_chunks_lost = 0
        self._queue = ChunkQueue(0, 1, self._restart)

    def begin(self, num_individuals: int, chunk_size: int) -> None:
        """Start a generation; an earlier one is dropped."""
        self._queue = ChunkQueue(num_individuals, chunk_size, self._restart)
        for slot in self.slots:
            slot.chunk = None

    # What happened.

    def start(self, index: int) -> None:
        """Note that a runner is ready for its first request."""
        self._start(index)

    def send(self, index: int) -> Chunk:
        """Give the next chunk to a runner; return the chunk."""
        chunk = self._queue.pop()
        self.occupy(index)
        self.slots[index].chunk = chunk
        return chunk

    def occupy(self, index: int) -> None:
        """Note that a runner was asked for something else."""
        self._ask(index, SlotStatus.OUT)

    def deliver(self, index: int) -> Chunk | None:
        """Note that a runner has answered, which ends a row of failures; return its chunk of this generation."""
        slot = self._answer(index, SlotStatus.OUT)
        chunk, slot.chunk = slot.chunk, None
        return chunk

    def fail(self, index: int, now: float, is_counted: bool = True, is_by_envs: bool = False) -> SlotStatus:
        """Note that a runner failed; it waits for its restart or is lost, and its chunk is dealt again.

        The failure counts against the chunk. If the runner had none, or failed because of its environments, it counts
        against the slot; see `_fail`.
        """
        slot = self.slots[index]
        chunk, slot.chunk = slot.chunk, None
        num_losses = None
        if chunk is not None:
            self.num_chunks_lost += 1
            if not is_by_envs:
                chunk = replace(chunk, num_losses=chunk.num_losses + is_counted)
                num_losses = chunk.num_losses
            self._queue.put_back(chunk)
        return self._fail(index, now, is_counted, num_losses)

    # What follows.

    def to_send(self) -> list[int]:
        """Return the ready slots for which there is a chunk."""
        return self.ready[: len(self._queue)]

    @property
    def given_up(self) -> list[int]:
        """The individuals of this generation that were given up."""
        return self._queue.given_up

    @property
    def is_finished(self) -> bool:
        """Whether all individuals of the generation were played or given up."""
        return not self._queue and all(slot.chunk is None for slot in self.slots)


def default_chunk_size(num_individuals: int, num_slots: int, min_size: int = 1, group_size: int = 1) -> int:
    """Return the number of individuals in a chunk: about four chunks for each slot, of whole groups.

    A chunk has at least `min_size` individuals, such as are played at a time, unless slots would be left without one.
    """
    most = -(-num_individuals // num_slots)
    size = min(max(-(-num_individuals // (CHUNKS_PER_SLOT * num_slots)), min_size), most)
    return -(-size // group_size) * group_size
