"""Lets a group of runners play episodes: deals them out, rebuilds runners that fail, and collects the results."""

import time
from collections import Counter
from collections.abc import Callable

from rookery.errors import RookeryError
from rookery.runners.callbacks import FaultNotices
from rookery.runners.faults import EnvFaultError, FaultKind
from rookery.runners.groups.counts import GroupCounts
from rookery.runners.groups.episodes import (
    EpisodesRequest,
    Evaluated,
    EvaluationRequest,
    Played,
    RandomlyPlayed,
    RandomRequest,
)
from rookery.runners.groups.group import PATIENCE, ActingSpec, Ready, Reply, RunnerFailed, RunnerGroup, RunnerStart
from rookery.runners.groups.jobs import Chunk, Deal
from rookery.runners.groups.slots import SlotStatus
from rookery.runners.groups.supervision import Supervisor

RequestFn = Callable[[Chunk], EpisodesRequest | EvaluationRequest]


class JobDispatcher:
    """Deals the individuals of one generation after the other to the runners of a group; see `Deal`.

    If fewer than `min_runners` are up for `wait_timeout` seconds, or all are lost, `failure` says why.
    """

    def __init__(
        self,
        group: RunnerGroup,
        acting: ActingSpec,
        min_runners: int = 1,
        wait_timeout: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group = group
        self.played: dict[Chunk, Played] = {}
        """The results of this generation so far."""
        self.evaluated: dict[Chunk, Evaluated] = {}
        """Those of an evaluation, which takes the place of a generation."""
        self._acting = acting
        self._min_runners, self._wait_timeout = min_runners, wait_timeout
        self._clock = clock
        self._deal, self._supervisor = self._make_deal()
        self._request_fn: RequestFn | None = None
        self._random: RandomlyPlayed | None = None
        self._counts: GroupCounts[Played] = GroupCounts()
        self._notices = FaultNotices()
        self._is_started = False

    @property
    def failure(self) -> RookeryError | None:
        """Why no runner will play again, if that is so."""
        return self._supervisor.failure

    # One generation.

    def begin(self, num_individuals: int, chunk_size: int, request_fn: RequestFn) -> None:
        """Start a generation, whose chunks are asked for by requests that `request_fn` makes; drop an earlier one."""
        self._deal.begin(num_individuals, chunk_size)
        self._request_fn = request_fn
        self.played, self.evaluated = {}, {}

    @property
    def is_finished(self) -> bool:
        """Whether all individuals of the generation were played or given up."""
        return self._deal.is_finished

    @property
    def given_up(self) -> list[int]:
        """The individuals that lost too many runners."""
        return self._deal.given_up

    def error(self, message: str) -> RookeryError:
        """Make an error that names the first fault of an environment in this generation, or of a runner."""
        in_order = sorted(self.played, key=lambda chunk: chunk.first)
        for fault in (fault for chunk in in_order for fault in self.played[chunk].faults):
            return EnvFaultError(f"{message}; the first fault: {fault}", fault)
        first = self._supervisor.first_failure
        cause = f"; the first failure: {first.message}" if first else "."
        return RookeryError(message + cause)

    def pump(self, timeout: float | None = PATIENCE) -> None:
        """Restart runners and deal chunks; then wait for replies, at most `timeout` seconds, and note them."""
        self._restart()
        for index in self._deal.to_send():
            assert self._request_fn is not None, "there are no chunks before a generation"
            self.group.send(index, self._request_fn(self._deal.send(index)))
        self._receive(timeout)

    def play_at_random(self, request: RandomRequest) -> RandomlyPlayed:
        """Let the first runner that is ready play at random; wait for it."""
        self._random, asked = None, None
        while self._random is None:
            if self.failure is not None:
                raise self.failure
            self._restart()
            is_under_way = asked is not None and self._deal.slots[asked].status is SlotStatus.OUT
            if not is_under_way and self._deal.ready:
                asked = self._deal.ready[0]
                self._deal.occupy(asked)
                self.group.send(asked, request)
            self._receive(PATIENCE)
        return self._random

    def _restart(self) -> None:
        """Start the runners, and those again that failed and may be restarted by now."""
        if not self._is_started:
            self.group.start(self._acting)
            self._is_started = True
        for index in self._deal.due(self._clock()):
            self._counts.forget(index)
            self.group.rebuild(index, RunnerStart())
            self._deal.restart(index)

    def _receive(self, timeout: float | None) -> None:
        for index, reply in self.group.receive(timeout).items():
            self._note(index, reply)
        self._supervisor.check(self._clock())

    def _note(self, index: int, reply: Reply) -> None:
        match reply:
            case Ready():
                self._deal.start(index)
            case Played():
                self._counts.last[index] = reply
                for fault in reply.faults:
                    self._notices.notice(fault, index if self.group.num_runners > 1 else None)
                if (chunk := self._deal.deliver(index)) is not None:
                    self.played[chunk] = reply
            case Evaluated():
                if (chunk := self._deal.deliver(index)) is not None:
                    self.evaluated[chunk] = reply
            case RandomlyPlayed():
                self._deal.deliver(index)
                self._random = reply
            case RunnerFailed():
                self._note_failure(index, reply)

    def _note_failure(self, index: int, reply: RunnerFailed) -> None:
        self._counts.own[reply.failed.kind] += 1
        is_counted = reply.failed.kind is not FaultKind.UNREACHABLE
        self._deal.fail(index, self._clock(), is_counted, is_by_envs=reply.fault is not None)
        self._supervisor.note_failure(index, reply)

    def _make_deal(self) -> tuple[Deal, Supervisor]:
        deal = Deal(self.group.num_runners, self.group.restart, self._min_runners)
        return deal, Supervisor(deal, self._wait_timeout, "The others play its episodes.")

    # Counts.

    @property
    def counts(self) -> Counter[str]:
        """The faults of all environments by kind, `restarts` and `steps_discarded`."""
        return self._counts.total()

    @property
    def num_lost_envs(self) -> int:
        return self._counts.num_lost_envs

    def report(self) -> dict[str, float]:
        """Return the numbers of runners by what they do, and counts of restarts and lost chunks."""
        own, deal = self._counts.own, self._deal
        return deal.report(own["runner_restarts"]) | {"runners/chunks_lost": own["chunks_lost"] + deal.num_chunks_lost}

    def get_counts(self) -> Counter[str]:
        """Return all counts, to continue from."""
        counts = self.counts
        counts["runner_restarts"] += self._deal.num_restarts
        counts["chunks_lost"] += self._deal.num_chunks_lost
        return counts

    def set_counts(self, counts: Counter[str]) -> None:
        """Continue from `get_counts`."""
        self._counts.own = Counter(counts)
        self._counts.own.subtract(self.get_counts() - Counter(counts))

    def close(self) -> None:
        """Close the runners; the next generation starts them again. May be called twice."""
        self.group.close()
        self._counts.own, self._counts.last = self.get_counts(), {}
        self._deal, self._supervisor = self._make_deal()
        self._is_started = False
