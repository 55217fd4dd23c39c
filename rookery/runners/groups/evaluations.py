"""Evaluations by runners that have other work as well: who plays which episodes."""

from dataclasses import replace

from rookery.runners.groups.episodes import Evaluated
from rookery.runners.groups.jobs import Chunk, ChunkQueue
from rookery.runners.health import RestartPolicy


class EpisodeDeal:
    """Deals the episodes of one evaluation. The caller says which runners are free, and what they reply."""

    def __init__(self, num_episodes: int, chunk_size: int, restart: RestartPolicy) -> None:
        self.evaluated: dict[Chunk, Evaluated] = {}
        self._queue = ChunkQueue(num_episodes, chunk_size, restart)
        self._playing: dict[int, Chunk] = {}

    @property
    def num_waiting(self) -> int:
        """The number of chunks that wait for a runner."""
        return len(self._queue)

    @property
    def is_finished(self) -> bool:
        """Whether all episodes were played or given up."""
        return not self._queue and not self._playing

    def send(self, index: int) -> Chunk:
        """Give the next chunk to a runner; return the chunk."""
        chunk = self._playing[index] = self._queue.pop()
        return chunk

    def deliver(self, index: int, evaluated: Evaluated) -> None:
        """Note what a runner has played. A reply to an earlier evaluation is dropped."""
        if index in self._playing:
            self.evaluated[self._playing.pop(index)] = evaluated

    def fail(self, index: int, is_counted: bool) -> int | None:
        """Deal the chunk of a runner again that was lost; return how many it has lost, None if it had no chunk."""
        if index not in self._playing:
            return None
        chunk = self._playing.pop(index)
        chunk = replace(chunk, num_losses=chunk.num_losses + is_counted)
        self._queue.put_back(chunk)
        return chunk.num_losses
