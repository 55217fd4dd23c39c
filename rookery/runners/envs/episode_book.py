"""The book of outside episodes: which are open, whose they are, what they report, and what they are answered.

It has no sockets, threads or clock: its callers wait, and pass the time. Threads of this process and clients elsewhere
play by the same rules.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Mapping
from typing import Any

from rookery.runners.envs.base_env import AgentID, End
from rookery.runners.envs.episode_messages import (
    Acted,
    Answer,
    AnswerFn,
    Code,
    Ended,
    Mode,
    Noted,
    Refused,
    Row,
    Stage,
    Started,
    StartRequest,
    Status,
    StepRequest,
)
from rookery.runners.envs.episode_records import Episode, Place, Tombstone

TOMBSTONE_SECONDS = 600.0
"""How long the outcome of an episode is known."""
MAX_TOMBSTONES = 100_000
MAX_JOINED = 4
"""The number of requests that may wait for the same answer."""


class EpisodeBook:
    """The state machine of the episodes that simulators begin and end.

    An episode that learns takes one of `num_envs` envs of the runner. Its steps become rows, which the runner takes and
    answers. Every request is answered once, at once or later, by the function that came with it.
    At most `max_others` episodes that do not learn are open.
    """

    def __init__(self, num_envs: int, agents: Collection[AgentID], max_others: int = 1024) -> None:
        self.counts: Counter[str] = Counter()
        """Episodes `started` and by outcome, `steps`, `repeated` requests, and refusals by code."""
        self._agents = frozenset(agents)
        self._places = [Place() for _ in range(num_envs)]
        self._open: dict[str, Episode] = {}
        self._over: OrderedDict[str, Tombstone] = OrderedDict()
        self._ready: dict[Episode, Row] = {}
        self._ready_of_guests: dict[Episode, Row] = {}
        self._num_asked = 0
        self._max_others = max_others
        self._is_closed = False

    # For simulators.

    def start(self, owner: Hashable, request: StartRequest, now: float) -> Started | Refused:
        """Begin an episode."""
        found = self._open.get(request.id)
        if self._is_closed:
            return self._refuse_closed()
        if found is not None and request.may_repeat and (found.owner, found.request) == (owner, request):
            self.counts["repeated"] += 1
            found.heard_at = now
            return Started(request.id, found.env, is_repeated=True)
        if found is not None:
            return self._refuse(
                Code.TAKEN, f"episode {request.id!r} is open already: end it first, or choose another id."
            )
        env = self._free_env() if request.mode is Mode.LEARN else None
        if env is None and (request.mode is Mode.LEARN or self._num_others >= self._max_others):
            most = len(self._places) if request.mode is Mode.LEARN else self._max_others
            return self._refuse(
                Code.FULL, f"max_episodes={most} episodes are open already: end one first, or allow more."
            )
        self._over.pop(request.id, None)
        agents = self._agents if request.policies is None else request.policies.keys()
        episode = self._open[request.id] = Episode(owner, request, env, agents, now)
        if env is not None:
            self._places[env].episode = episode
        self.counts["started"] += 1
        return Started(request.id, env)

    def step(self, owner: Hashable, episode_id: str, request: StepRequest, now: float, answer: AnswerFn) -> None:
        """Take in a step of an episode."""
        episode = self._find(owner, episode_id)
        if isinstance(episode, Refused):
            answer(self._answer_of_the_last(owner, episode_id, request) or episode)
            return
        episode.heard_at = now
        if request.seq is not None and request.seq == episode.seq:
            self._repeat(episode, request, answer)
            return
        refused = self._check(episode, request)
        if refused is not None:
            answer(refused)
            return
        if request.seq is not None:
            episode.seq, episode.digest = request.seq, request.digest
        episode.waiting.append(answer)
        episode.answer = None
        self._take_in(episode, request, now)

    def leave(self, owner: Hashable, episode_id: str, keep: bool, now: float) -> Refused | None:
        """Leave an episode before its end; with `keep`, its complete rows stay. May be repeated."""
        stone = self._over.get(episode_id)
        if episode_id not in self._open and stone is not None and (stone.owner, stone.outcome) == (owner, Stage.LEFT):
            return None
        episode = self._find(owner, episode_id)
        if isinstance(episode, Refused):
            return episode
        self._abandon(episode, Stage.LEFT, keep, now)
        return None

    def look(self, owner: Hashable, episode_id: str, now: float) -> Status | Refused:
        """Return where an episode is. It renews the lease, as each request does."""
        episode = self._find(owner, episode_id)
        if isinstance(episode, Refused):
            return episode
        episode.heard_at = now
        return Status(episode.seq, episode.answer, episode.request.lease)

    def request_of(self, owner: Hashable, episode_id: str) -> StartRequest | None:
        """Return how an episode was started, if it is open."""
        episode = self._open.get(episode_id)
        return None if episode is None or episode.owner != owner else episode.request

    def expire(self, now: float) -> list[str]:
        """End the episodes whose simulators were silent for the time of their lease; return their ids."""
        expired = [episode for episode in self._open.values() if episode.is_silent(now)]
        for episode in expired:
            self._abandon(episode, Stage.EXPIRED, True, now)
        return [episode.request.id for episode in expired]

    # For the runner.

    def request(self, env: int, now: float) -> None:
        """Ask for the next episode of an env. One that is played there is lost."""
        place = self._places[env]
        if place.episode is not None and place.episode.is_known:
            self.lose(env, now)
        place.is_requested, place.is_failed = True, False
        if place.episode is not None and place.episode.row is not None:
            self._offer(place.episode, place.episode.row)

    def lose(self, env: int, now: float, is_failed: bool = False) -> None:
        """Give up the episode of an env. If the env has failed, none begins there before the next request."""
        place = self._places[env]
        place.is_failed = is_failed
        place.is_requested = place.is_requested and not is_failed
        if (episode := place.episode) is not None:
            self._drop_row(episode)
            self._finish(episode, Stage.LOST, now)

    def awaited(self, env: int) -> Stage | None:
        """Return what the runner waits for in an env: an `OPEN` episode, a step of one, or nothing."""
        place = self._places[env]
        if place.is_requested:
            return Stage.OPEN
        if place.episode is not None and place.episode.is_known:
            return place.episode.stage
        return None

    def take_rows(self) -> list[Row]:
        """Return the steps that were reported since the last call; they wait for actions unless they are the last."""
        ready, self._ready = self._ready, {}
        for row in ready.values():
            if row.is_reset and row.env is not None:
                self._places[row.env].is_requested = False
        return self._taken(ready)

    def take_rows_of_guests(self) -> list[Row]:
        """Return those of episodes that do not learn, in the order of reports: an id may be used again."""
        ready, self._ready_of_guests = self._ready_of_guests, {}
        return self._taken(ready)

    def answer(self, episode_id: str, actions: Mapping[AgentID, Any], version: int, now: float) -> None:
        """Answer a step that was taken; an episode that is over meanwhile needs no answer."""
        self._answer(episode_id, Acted(actions, version), now)

    def fail(self, episode_id: str, message: str, now: float) -> bool:
        """Answer that there is no action for a step that was taken; return whether it still waited for one."""
        return self._answer(episode_id, self._refuse(Code.POLICY_FAULT, message), now)

    def _answer(self, episode_id: str, answer: Answer, now: float) -> bool:
        episode = self._open.get(episode_id)
        if episode is None or episode.stage is not Stage.ASKED or episode.row is not None:
            return False
        self._num_asked -= 1
        episode.stage, episode.heard_at = Stage.ANSWERED, now
        episode.reply(answer)
        return True

    def forget(self, episode_id: str, answer: AnswerFn) -> None:
        """Answer a request no more that does not wait any longer."""
        episode = self._open.get(episode_id)
        if episode is not None and answer in episode.waiting:
            episode.waiting.remove(answer)

    def close(self) -> None:
        """Refuse all requests from now on, also those that wait."""
        self._is_closed = True
        for episode in self._open.values():
            episode.reply(self._refuse_closed())

    @property
    def num_ready(self) -> int:
        """The number of rows to take from episodes that learn."""
        return len(self._ready)

    @property
    def num_of_guests(self) -> int:
        """The number of rows to take from episodes that do not learn."""
        return len(self._ready_of_guests)

    @property
    def num_open(self) -> int:
        """The number of open episodes."""
        return len(self._open)

    @property
    def num_acting(self) -> int:
        """The number of open episodes that do not wait for an action."""
        return len(self._open) - self._num_asked

    # Steps.

    def _check(self, episode: Episode, request: StepRequest) -> Refused | None:
        """Return why a new request is refused."""
        name = episode.request.id
        if request.seq is not None and request.seq != episode.seq + 1:
            expected = episode.seq + 1
            message = f"episode {name!r} got seq {request.seq}; expected {expected}, the next one."
            return self._refuse(Code.SEQUENCE, message, expected=expected)
        if episode.stage is Stage.ASKED:
            return self._refuse(Code.PENDING, f"episode {name!r} waits for its action: report the next step after it.")
        for agent, report in request.reports.items():
            if agent not in episode.agents:
                known = ", ".join(sorted(map(repr, episode.agents)))
                return self._refuse(Code.AGENT, f"episode {name!r} has no agent {agent!r}: its agents are {known}.")
            if agent in episode.ended:
                what = "a reward" if report.obs is None else "an observation"
                return self._refuse(
                    Code.AGENT, f"agent {agent!r} of episode {name!r} gets {what}, but has ended before."
                )
            if not episode.num_rows and report.reward:
                return self._refuse(
                    Code.REWARD,
                    f"episode {name!r} gets a reward before its first observation: it can be for no action.",
                )
        return None

    def _repeat(self, episode: Episode, request: StepRequest, answer: AnswerFn) -> None:
        """Answer a request with the number of the last one."""
        if request.digest != episode.digest:
            answer(self._refuse_other_content(request, episode.request.id))
            return
        if episode.answer is None and len(episode.waiting) >= MAX_JOINED:
            answer(self._refuse(Code.PENDING, f"{MAX_JOINED} requests wait for this answer already."))
            return
        self.counts["repeated"] += 1
        if episode.answer is None:
            episode.waiting.append(answer)
        else:
            answer(episode.answer)

    def _answer_of_the_last(self, owner: Hashable, episode_id: str, request: StepRequest) -> Answer | None:
        """Return the answer of the last request of an episode that has ended, if this has its number."""
        stone = self._over.get(episode_id)
        if stone is None or stone.owner != owner or stone.outcome is not Stage.ENDED or request.seq != stone.seq:
            return None
        if request.digest != stone.digest:
            return self._refuse_other_content(request, episode_id)
        self.counts["repeated"] += 1
        return stone.answer

    def _take_in(self, episode: Episode, request: StepRequest, now: float) -> None:
        episode.note(request.reports)
        if not request.asks and request.end is End.RUNNING:
            episode.reply(Noted())
            return
        row = episode.next_row(request.end)
        self.counts["steps"] += not row.is_reset
        if not row.is_over:
            episode.stage = Stage.ASKED
            self._num_asked += 1
        if not (row.is_over and row.is_reset):  # an episode without a step leaves no trace
            self._offer(episode, row)
        if row.is_over:
            episode.reply(Ended(episode.episode_return, episode.num_rows - 1))
            self._finish(episode, Stage.ENDED, now)

    def _offer(self, episode: Episode, row: Row) -> None:
        """Let the runner take a row, once it has requested the episode."""
        episode.row = row
        if row.env is None or not row.is_reset or self._places[row.env].is_requested:
            self._ready_with(episode)[episode] = row

    def _ready_with(self, episode: Episode) -> dict[Episode, Row]:
        """Return the rows among which those of an episode wait to be taken."""
        return self._ready if episode.request.mode is Mode.LEARN else self._ready_of_guests

    def _taken(self, ready: Mapping[Episode, Row]) -> list[Row]:
        for episode in ready:
            episode.row, episode.is_known = None, True
        return list(ready.values())

    # Ends.

    def _abandon(self, episode: Episode, outcome: Stage, is_kept: bool, now: float) -> None:
        """End an episode with which its simulator does not go on."""
        if not episode.is_known:
            self._drop_row(episode)
        else:
            row = episode.row or Row(episode.request, episode.env, {}, is_step=False)
            row.is_abandoned, row.is_kept = True, is_kept
            self._offer(episode, row)
        self._finish(episode, outcome, now)

    def _drop_row(self, episode: Episode) -> None:
        self._ready_with(episode).pop(episode, None)
        episode.row = None

    def _finish(self, episode: Episode, outcome: Stage, now: float) -> None:
        """Close an episode, free its env and leave a tombstone."""
        self._num_asked -= episode.stage is Stage.ASKED
        episode.stage = outcome
        self.counts[outcome] += 1
        del self._open[episode.request.id]
        if episode.env is not None:
            self._places[episode.env].episode = None
        answer = episode.answer if outcome is Stage.ENDED else None
        stone = Tombstone(episode.owner, outcome, episode.seq, episode.digest, answer, now)
        self._over[episode.request.id] = stone
        if episode.waiting:
            episode.reply(self._refuse_over(episode.request.id, outcome))
        while len(self._over) > MAX_TOMBSTONES or now - next(iter(self._over.values())).over_at > TOMBSTONE_SECONDS:
            self._over.popitem(last=False)

    def _free_env(self) -> int | None:
        """Return an env without an episode; first those where the runner waits for one."""
        free = [env for env, place in enumerate(self._places) if place.episode is None and not place.is_failed]
        return next((env for env in free if self._places[env].is_requested), free[0] if free else None)

    # Refusals.

    def _find(self, owner: Hashable, episode_id: str) -> Episode | Refused:
        """Return the open episode of an owner; those of others are as good as unknown."""
        if self._is_closed:
            return self._refuse_closed()
        episode, stone = self._open.get(episode_id), self._over.get(episode_id)
        if episode is not None and episode.owner == owner:
            return episode
        if episode is None and stone is not None and stone.owner == owner:
            return self._refuse_over(episode_id, stone.outcome)
        return self._refuse(Code.UNKNOWN, f"no open episode {episode_id!r}: it was never started.")

    @property
    def _num_others(self) -> int:
        """The number of open episodes that do not learn."""
        return len(self._open) - sum(place.episode is not None for place in self._places)

    def _refuse(self, code: Code, message: str, outcome: Stage | None = None, expected: int | None = None) -> Refused:
        self.counts[code] += 1
        return Refused(code, message, outcome, expected)

    def _refuse_over(self, episode_id: str, outcome: Stage) -> Refused:
        return self._refuse(Code.OVER, f"no open episode {episode_id!r}: it {OUTCOMES[outcome]}.", outcome)

    def _refuse_other_content(self, request: StepRequest, episode_id: str) -> Refused:
        message = f"episode {episode_id!r} got seq {request.seq} before, with other content: count on."
        return self._refuse(Code.SEQUENCE, message, expected=(request.seq or 0) + 1)

    def _refuse_closed(self) -> Refused:
        return self._refuse(Code.CLOSED, "the environment was closed: end the simulator.")


OUTCOMES = {
    Stage.ENDED: "has ended",
    Stage.LEFT: "was left",
    Stage.EXPIRED: "has expired after silence for the time of its lease; start another",
    Stage.LOST: "was discarded by the runner; start another",
}
