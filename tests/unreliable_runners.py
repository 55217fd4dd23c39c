"""A group of runners whose replies arrive later, in any order, and whose runners die when a test says so."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.groups.episodes import EpisodesRequest, EvaluationRequest, RandomRequest
from rookery.runners.groups.group import (
    ActingSpec,
    Description,
    HostedRunner,
    Ready,
    Reply,
    Request,
    RunnerFailed,
    RunnerGroup,
    RunnerSpec,
    RunnerStart,
)
from rookery.runners.health import RestartPolicy

Fails = Callable[[int, Any], FaultKind | None]
"""How the runner of a slot dies of a request; None: it answers. The request of a start is None."""


def killed(kind: FaultKind = FaultKind.KILLED) -> RunnerFailed:
    return RunnerFailed(Failed(kind, Phase.STEP, "the process is gone"), "the process is gone.")


class UnreliableRunners(RunnerGroup):
    """Answers by `answer(slot, request)`. Of all slots that have a reply, some random ones deliver it at a time."""

    works_in_receive = False

    def __init__(
        self,
        num_runners: int,
        answer: Callable[[int, Any], Reply],
        fails: Fails = lambda index, request: None,
        max_restarts: int = 2,
        seed: int = 0,
        description: Description | None = None,
    ) -> None:
        self.num_runners = num_runners
        self.restart = RestartPolicy(max_restarts=max_restarts, first_delay=0.0, max_delay=0.0)
        self.requests: list[tuple[int, Request]] = []
        self.num_rebuilt = 0
        self._answer, self._fails = answer, fails
        self._random = random.Random(seed)
        self._description = description
        self._under_way: dict[int, Request | None] = {}
        self._broken: set[int] = set()

    def describe(self) -> Description:
        assert self._description is not None
        return self._description

    def start(self, acting: ActingSpec, starts: Sequence[RunnerStart] = ()) -> None:
        self._under_way = dict.fromkeys(range(self.num_runners))

    def put(self, tree: Any) -> Any:
        return tree

    def send(self, index: int, request: Request) -> None:
        assert index not in self._under_way, "one request at a time"
        assert index not in self._broken, "a runner that failed is rebuilt first"
        self.requests.append((index, request))
        self._under_way[index] = request

    def receive(self, timeout: float | None = None) -> dict[int, Reply]:
        slots = list(self._under_way)
        self._random.shuffle(slots)
        replies: dict[int, Reply] = {}
        for index in slots[: self._random.randint(1, max(len(slots), 1))]:
            request = self._under_way.pop(index)
            if (kind := self._fails(index, request)) is not None:
                self._broken.add(index)
                replies[index] = killed(kind)
            else:
                replies[index] = Ready() if request is None else self._answer(index, request)
        return replies

    def rebuild(self, index: int, start: RunnerStart) -> None:
        self.num_rebuilt += 1
        self._broken.discard(index)
        self._under_way[index] = None

    def close(self) -> None:
        self._under_way.clear()
        self._broken.clear()


class UnreliableHosts(UnreliableRunners):
    """Real runners in this process, each with environments of its own, that die when a test says so."""

    def __init__(self, spec: RunnerSpec, num_runners: int, **options: Any) -> None:
        super().__init__(num_runners, self._hosted_answer, **options)
        self._hosted = [HostedRunner(spec, index) for index in range(num_runners)]

    def describe(self) -> Description:
        return self._hosted[0].describe()

    def start(self, acting: ActingSpec, starts: Sequence[RunnerStart] = ()) -> None:
        super().start(acting, starts)
        self._acting = acting
        for hosted in self._hosted:
            hosted.start(acting, RunnerStart())

    def rebuild(self, index: int, start: RunnerStart) -> None:
        super().rebuild(index, start)
        self._hosted[index].close()
        self._hosted[index].start(self._acting, start)

    def close(self) -> None:
        super().close()
        for hosted in self._hosted:
            hosted.close()

    def _hosted_answer(self, index: int, request: Any) -> Reply:
        match request:
            case EpisodesRequest(plan, chunk, individuals):
                return self._hosted[index].play(plan, chunk, individuals)  # type: ignore[arg-type]
            case EvaluationRequest(agent_states, seed, num_episodes, chunk):
                return self._hosted[index].evaluate(agent_states, seed, num_episodes, chunk)
            case RandomRequest():
                return self._hosted[index].play_at_random(request)
        raise NotImplementedError(request)
