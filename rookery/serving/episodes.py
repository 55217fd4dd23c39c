"""Episodes of HTTP clients: the asyncio face of an `EpisodeBook`."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from rookery.runners.envs.base_env import AgentID
from rookery.runners.envs.episode_book import EpisodeBook
from rookery.runners.envs.episode_messages import (
    Answer,
    AnswerFn,
    Code,
    Refused,
    Started,
    StartRequest,
    Status,
    StepRequest,
)
from rookery.spaces import Space

PENDING = Refused(Code.PENDING, "the step waits for its action: send it again.")
SWEEP_SECONDS = 0.5
"""How often leases and waiting requests are checked: one timer for all."""


@dataclass(eq=False, slots=True)
class WaitingSteps:
    """The steps of a request, until all are answered."""

    answers: list[Answer | None]
    deadline: float
    num_missing: int
    future: "asyncio.Future[None] | None" = None


class Episodes:
    """The episodes of an `EpisodeBook`, for coroutines of one event loop.

    In training the book is shared with the thread of the runner: `mutex` guards it, `notify` tells the runner of steps.
    Otherwise `notify` tells the `PolicyServer`. A step waits at most `pending_seconds` for its answer.
    """

    def __init__(
        self,
        book: EpisodeBook,
        spaces: Mapping[AgentID, tuple[Space, Space]],
        mutex: "contextlib.AbstractContextManager[object] | None" = None,
        notify: Callable[[], None] = lambda: None,
        lease: float = 60.0,
        max_abs: float | None = None,
        needs_log_prob: Callable[[], bool] = lambda: False,
        pending_seconds: float = 30.0,
    ) -> None:
        self.book = book
        self.spaces = spaces
        self.lease = lease
        self.max_abs = max_abs
        """The largest number that observations may have; None: what their dtype holds."""
        self.needs_log_prob = needs_log_prob
        """Whether actions that simulators chose need their log-probability."""
        self._mutex = contextlib.nullcontext() if mutex is None else mutex
        self._notify = notify
        self._pending_seconds = pending_seconds
        self._waiting: dict[WaitingSteps, None] = {}
        self._done: list[WaitingSteps] = []
        """Calls whose last answer came from another thread."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for answers."""
        return len(self._waiting)

    def start(self, owner: Hashable, request: StartRequest) -> Started | Refused:
        """Begin an episode."""
        self._attend()
        with self._mutex:
            return self.book.start(owner, request, time.monotonic())

    def look(self, owner: Hashable, episode_id: str) -> Status | Refused:
        """Return where an episode is."""
        with self._mutex:
            return self.book.look(owner, episode_id, time.monotonic())

    def leave(self, owner: Hashable, episode_id: str, keep: bool) -> Refused | None:
        """Leave an episode before its end."""
        with self._mutex:
            refused = self.book.leave(owner, episode_id, keep, time.monotonic())
            self._notify()
        return refused

    async def steps(self, owner: Hashable, requests: Sequence[tuple[str, StepRequest]]) -> tuple[list[Answer], bool]:
        """Take in steps of episodes; return their answers, and whether some are those of an earlier request."""
        loop, now = self._attend(), time.monotonic()
        call = WaitingSteps([None] * len(requests), now + self._pending_seconds, len(requests))
        with self._mutex:
            repeated = self.book.counts["repeated"]
            answer_fns = [self._answer_fn(call, index) for index in range(len(requests))]
            for (episode_id, request), answer_fn in zip(requests, answer_fns, strict=True):
                self.book.step(owner, episode_id, request, now, answer_fn)
            is_repeated = self.book.counts["repeated"] != repeated
            self._notify()
            if call.num_missing:
                call.future = loop.create_future()
                self._waiting[call] = None
        if call.future is not None:
            try:
                await call.future
            finally:
                del self._waiting[call]
                if call.num_missing:
                    self._forget(requests, answer_fns)
        return [answer or PENDING for answer in call.answers], is_repeated

    def _forget(self, requests: Sequence[tuple[str, StepRequest]], answer_fns: Sequence[AnswerFn]) -> None:
        """Leave the place of requests that wait no more to repeated ones."""
        with self._mutex:
            for (episode_id, _), answer_fn in zip(requests, answer_fns, strict=True):
                self.book.forget(episode_id, answer_fn)

    def _answer_fn(self, call: WaitingSteps, index: int) -> Callable[[Answer], None]:
        """Return the function that takes the answer to one step of a call, in the thread of the loop or another."""

        def take(answer: Answer) -> None:
            call.answers[index] = answer
            call.num_missing -= 1
            if call.num_missing or call.future is None:
                return
            if threading.get_ident() == self._loop_thread:
                _wake(call)
            else:
                self._wake_soon(call)

        return take

    def _wake_soon(self, call: WaitingSteps) -> None:
        """Continue a call from another thread, which holds the mutex; the loop is woken once for many."""
        self._done.append(call)
        if len(self._done) == 1 and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has stopped
                self._loop.call_soon_threadsafe(self._wake_done)

    def _wake_done(self) -> None:
        with self._mutex:
            done, self._done = self._done, []
        for call in done:
            _wake(call)

    def _attend(self) -> asyncio.AbstractEventLoop:
        """Return the loop; from the first call on, check leases and waiting requests in it."""
        if self._loop is None:
            self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
            self._loop.call_later(SWEEP_SECONDS, self._sweep)
        return self._loop

    def _sweep(self) -> None:
        """End silent episodes and requests that have waited too long."""
        assert self._loop is not None
        self._loop.call_later(SWEEP_SECONDS, self._sweep)
        now = time.monotonic()
        with self._mutex:
            if self.book.expire(now):
                self._notify()
        for call in self._waiting:  # the oldest first
            if call.deadline > now:
                return
            _wake(call)


def _wake(call: WaitingSteps) -> None:
    if call.future is not None and not call.future.done():
        call.future.set_result(None)
