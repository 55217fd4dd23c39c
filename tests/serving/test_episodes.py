"""Episodes in training: the book is shared with the thread of a runner."""

import asyncio
import threading
import time
from typing import Any

from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.envs.episode_book import EpisodeBook
from rookery.runners.envs.episode_messages import Acted, Mode, Refused, Report, StartRequest, StepRequest
from rookery.serving.episodes import Episodes
from rookery.spaces import Box, Discrete

SPACES = {SINGLE_AGENT: (Box(-1.0, 1.0, (1,)), Discrete(2))}


class CountingLoopWakes:
    """Counts how often another thread wakes a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.count = 0
        self._wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = self  # type: ignore[assignment, method-assign]

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        return self._wake(*arguments)


def shown(seq: int) -> StepRequest:
    return StepRequest({SINGLE_AGENT: Report(obs=[0.0])}, seq=seq, digest=seq)


def answer_rows(book: EpisodeBook, mutex: Any, num_rows: int, before: Any = None) -> None:
    """Answer as a runner does: all rows under the mutex."""
    rows = []
    while len(rows) < num_rows:
        with mutex:
            rows += book.take_rows()
    if before is not None:
        before.wait(10.0)
    with mutex:
        for row in rows:
            book.answer(row.id, {SINGLE_AGENT: 1}, 3, time.monotonic())


def make(num_envs: int, **settings: Any) -> tuple[EpisodeBook, Any, Episodes]:
    book, mutex = EpisodeBook(num_envs, SPACES), threading.Lock()
    for env in range(num_envs):
        book.request(env, time.monotonic())
    return book, mutex, Episodes(book, SPACES, mutex, **settings)


def test_answers_of_another_thread_wake_the_loop_once() -> None:
    async def scenario() -> None:
        book, mutex, episodes = make(4)
        wakes = CountingLoopWakes(asyncio.get_running_loop())
        for name in "abcd":
            episodes.start("me", StartRequest(name))
        runner = threading.Thread(target=answer_rows, args=(book, mutex, 4))
        steps = [asyncio.create_task(episodes.steps("me", [(name, shown(0))])) for name in "abcd"]
        await asyncio.sleep(0)
        runner.start()
        for step in steps:
            (answer,), is_repeated = await asyncio.wait_for(step, 10.0)
            assert answer == Acted({SINGLE_AGENT: 1}, 3)
            assert not is_repeated
        runner.join()
        assert wakes.count == 1
        assert episodes.num_waiting == 0

    asyncio.run(scenario())


def test_of_many_steps_those_without_an_answer_are_pending_and_may_be_repeated() -> None:
    async def scenario() -> None:
        book, mutex, episodes = make(2, pending_seconds=0.1)
        for name in "ab":
            episodes.start("me", StartRequest(name))
        may_answer = threading.Event()
        runner = threading.Thread(target=answer_rows, args=(book, mutex, 2, may_answer))
        runner.start()
        requests = [("a", shown(0)), ("nobody", shown(0)), ("b", shown(0))]
        answers, _ = await asyncio.wait_for(episodes.steps("me", requests), 10.0)
        assert [answer.code for answer in answers if isinstance(answer, Refused)] == ["pending", "unknown", "pending"]
        assert episodes.num_waiting == 0
        joined = asyncio.create_task(episodes.steps("me", requests))
        await asyncio.sleep(0)
        may_answer.set()
        answers, is_repeated = await asyncio.wait_for(joined, 10.0)
        runner.join()
        assert [type(answer) for answer in answers] == [Acted, Refused, Acted]
        assert is_repeated
        assert book.counts["steps"] == 0  # the first observations are no steps
        assert book.counts["repeated"] == 2

    asyncio.run(scenario())


def test_expired_episodes_wake_the_runner() -> None:
    async def scenario() -> None:
        notified = asyncio.Event()
        book, _, episodes = make(1, notify=notified.set)
        episodes.start("me", StartRequest("a", Mode.LEARN, lease=0.01))
        await asyncio.wait_for(notified.wait(), 10.0)
        assert book.num_open == 0

    asyncio.run(scenario())


def test_requests_that_wait_no_more_leave_their_place_to_repeated_ones() -> None:
    async def scenario() -> None:
        _book, _, episodes = make(1, pending_seconds=0.01)
        episodes.start("me", StartRequest("a"))
        for _ in range(6):
            (answer,), _ = await episodes.steps("me", [("a", shown(0))])
            assert isinstance(answer, Refused)
            assert answer.message == "the step waits for its action: send it again."

    asyncio.run(asyncio.wait_for(scenario(), 30.0))
