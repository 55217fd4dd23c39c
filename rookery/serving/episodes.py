"""Episodes of HTTP clients: the asyncio face of an `EpisodeBook`."""

import contextlib
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence

from rookery.runners.envs.base_env import AgentID
from rookery.runners.envs.episode_book import EpisodeBook
from rookery.runners.envs.episode_messages import Answer, Refused, Started, StartRequest, StepRequest
from rookery.spaces import Space


class Episodes:
    """The episodes of an `EpisodeBook`, for coroutines of one event loop.

    In training the book is shared with the thread of the runner: `mutex` guards it, `notify` wakes the runner.
    """

    def __init__(
        self,
        book: EpisodeBook,
        spaces: Mapping[AgentID, tuple[Space, Space]],
        mutex: contextlib.AbstractContextManager | threading.Lock | None = None,
        notify: Callable[[], None] = lambda: None,
        lease: float = 60.0,
        max_abs: float | None = None,
        needs_log_prob: Callable[[], bool] = lambda: False,
    ) -> None:
        self.book = book
        self.spaces = spaces
        self.lease = lease

    def start(self, owner: Hashable, request: StartRequest) -> Started | Refused:
        """Begin an episode."""
        raise NotImplementedError

    async def steps(self, owner: Hashable, requests: Sequence[tuple[str, StepRequest]]) -> list[Answer]:
        """Take in steps of episodes; wait for all answers, at most for the time of the limits."""
        raise NotImplementedError
