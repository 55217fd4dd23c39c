"""The episode book: random calls against a model, and requests that are doubled, late, lost or another's."""

from typing import Any

import numpy as np
import pytest

from rookery.runners.envs.base_env import SINGLE_AGENT, End
from rookery.runners.envs.episode_book import MAX_JOINED, TOMBSTONE_SECONDS, EpisodeBook
from rookery.runners.envs.episode_messages import (
    Acted,
    Answer,
    Code,
    Ended,
    Mode,
    Noted,
    Refused,
    Report,
    Stage,
    Started,
    StartRequest,
    StepRequest,
)

OVER = (Stage.ENDED, Stage.LEFT, Stage.EXPIRED)
REFUSALS = (Code.SEQUENCE, Code.OVER, Code.UNKNOWN, Code.PENDING)
OWNER = "owner"
ACTION = {SINGLE_AGENT: 1}


def shown(obs: Any, reward: float = 0.0, **fields: Any) -> StepRequest:
    return StepRequest({SINGLE_AGENT: Report(obs=obs, reward=reward)}, **fields)


def rewarded(reward: float) -> StepRequest:
    return StepRequest({SINGLE_AGENT: Report(reward=reward)}, asks=False)


class Client:
    """Calls a book of one env, which waits for an episode, and keeps the answers."""

    def __init__(self, **start: Any) -> None:
        self.book = EpisodeBook(1, [SINGLE_AGENT])
        self.book.request(0, now=0.0)
        self.book.start(OWNER, StartRequest("a", **start), now=0.0)
        self.answers: list[Answer] = []

    def step(self, request: StepRequest, owner: str = OWNER, episode: str = "a", now: float = 0.0) -> None:
        self.book.step(owner, episode, request, now, self.answers.append)

    def act(self, now: float = 0.0) -> None:
        for row in self.book.take_rows():
            self.book.answer(row.id, ACTION, 7, now)


class Model:
    """What a book is expected to do: the stage and the last request of each episode."""

    def __init__(self, num_envs: int) -> None:
        self.stages: dict[str, Stage] = {}
        self.last: dict[str, tuple[int, int]] = {}
        """Number and content of the last request."""
        self.num_envs, self.heard = num_envs, dict[str, float]()

    def open(self) -> list[str]:
        return [name for name, stage in self.stages.items() if stage in (Stage.OPEN, Stage.ASKED, Stage.ANSWERED)]

    def start(self, name: str, now: float) -> type:
        if name in self.open() or len(self.open()) == self.num_envs:
            return Refused
        self.stages[name], self.heard[name], self.last[name] = Stage.OPEN, now, (-1, 0)
        return Started

    def step(self, name: str, seq: int, content: int, is_last: bool, now: float) -> type | Code | None:
        if name not in self.stages:
            return Code.UNKNOWN
        stage, (last_seq, last_content) = self.stages[name], self.last[name]
        is_open, is_repeated = name in self.open(), seq == last_seq
        if is_open:
            self.heard[name] = now
        elif stage is not Stage.ENDED or not is_repeated:
            return Code.OVER
        if is_repeated and content != last_content:
            return Code.SEQUENCE
        if is_repeated:
            return {Stage.ENDED: Ended, Stage.ANSWERED: Acted}.get(stage)
        if seq != last_seq + 1:
            return Code.SEQUENCE
        if stage is Stage.ASKED:
            return Code.PENDING
        self.last[name] = seq, content
        self.stages[name] = Stage.ENDED if is_last else Stage.ASKED
        return Ended if is_last else None

    def leave(self, name: str) -> None:
        if name in self.open():
            self.stages[name] = Stage.LEFT

    def expire(self, now: float, lease: float) -> list[str]:
        late = [n for n in self.open() if self.stages[n] is not Stage.ASKED and now - self.heard[n] >= lease]
        self.stages |= dict.fromkeys(late, Stage.EXPIRED)
        return late

    def answer(self, name: str, now: float) -> None:
        if self.stages.get(name) is Stage.ASKED:
            self.stages[name], self.heard[name] = Stage.ANSWERED, now


@pytest.mark.parametrize("seed", range(5))
def test_random_calls_do_what_the_model_does(seed: int) -> None:
    rng, num_envs, lease = np.random.default_rng(seed), 3, 10.0
    book, model, now = EpisodeBook(num_envs, [SINGLE_AGENT]), Model(num_envs), 0.0
    waiting: dict[str, list[list[Answer]]] = {}
    names = [f"episode {number}" for number in range(6)]
    steps_taken = 0
    for env in range(num_envs):
        book.request(env, now)
    for _ in range(3000):
        name, call = str(rng.choice(names)), rng.integers(8)
        now += float(rng.exponential(0.3))
        match call:
            case 0 | 1:
                started = book.start(OWNER, StartRequest(name, lease=lease, may_repeat=False), now)
                assert isinstance(started, model.start(name, now))
            case 2 | 3 | 4:
                answers: list[Answer] = []
                seq = max(0, model.last.get(name, (-1, 0))[0] + int(rng.choice([0, 0, 1, 1, 1, 2])))
                content = int(rng.integers(2))
                expected = model.step(name, seq, content, bool(call == 4), now)
                if expected is None and len(waiting.get(name, [])) == MAX_JOINED:
                    expected = Code.PENDING
                end = End.TERMINATED if call == 4 else End.RUNNING
                request = shown(0, end=end, seq=seq, digest=content)
                book.step(OWNER, name, request, now, answers.append)
                given = [answer.code if isinstance(answer, Refused) else type(answer) for answer in answers]
                assert given == ([] if expected is None else [expected])
                if expected is None:
                    waiting.setdefault(name, []).append(answers)
            case 5:
                was_open = name in model.open() or model.stages.get(name) is Stage.LEFT
                assert isinstance(book.leave(OWNER, name, True, now), Refused) is not was_open
                model.leave(name)
            case 6:
                assert sorted(book.expire(now)) == sorted(model.expire(now, lease))
            case 7:
                for row in book.take_rows():
                    steps_taken += row.is_step and not row.is_reset
                    book.answer(row.id, ACTION, 0, now)
                    if row.is_over or row.is_abandoned:
                        book.request(row.env, now)
                    else:
                        model.answer(row.id, now)
        for answered in [name for name in waiting if model.stages[name] is not Stage.ASKED]:
            assert {len(answers) for answers in waiting.pop(answered)} == {1}, "each request is answered once"
        assert book.num_acting == sum(model.stages[name] is not Stage.ASKED for name in model.open())
    assert all(book.counts[stage] > 0 for stage in (*OVER, *REFUSALS, "repeated"))
    assert book.counts["started"] == sum(book.counts[stage] for stage in OVER) + len(model.open())
    assert 0 < steps_taken <= book.counts["steps"]


def test_rewards_add_up_to_the_next_observation() -> None:
    client = Client()
    client.step(shown(0))
    client.act()
    client.step(rewarded(1.0))
    client.step(rewarded(2.0))
    client.step(shown(1, reward=4.0))
    (row,) = client.book.take_rows()
    assert row.reports[SINGLE_AGENT].reward == 7.0
    assert client.answers == [Acted(ACTION, 7), Noted(), Noted()]


def test_a_reward_before_the_first_observation_is_refused() -> None:
    client = Client()
    client.step(rewarded(1.0))
    assert client.answers[0].code is Code.REWARD


def test_a_repeated_step_counts_once_and_gets_the_same_answer() -> None:
    client = Client()
    request = shown(0, seq=0, digest=5)
    client.step(request)
    client.step(request)  # joins
    client.act()
    client.step(request)  # gets the stored answer
    assert client.answers == [Acted(ACTION, 7)] * 3
    assert client.book.take_rows() == []


def test_only_a_few_requests_wait_for_one_answer() -> None:
    client = Client()
    for _ in range(MAX_JOINED + 1):
        client.step(shown(0, seq=0))
    assert [answer.code for answer in client.answers] == [Code.PENDING]


@pytest.mark.parametrize(("seq", "digest"), [(0, 6), (2, 5), (-1, 5)])
def test_other_content_or_another_number_is_a_conflict(seq: int, digest: int) -> None:
    client = Client()
    client.step(shown(0, seq=0, digest=5))
    client.act()
    client.step(shown(1, seq=seq, digest=digest))
    assert client.answers[-1].code is Code.SEQUENCE


def test_the_last_step_may_be_repeated_after_the_end() -> None:
    client = Client()
    client.step(shown(0, seq=0))
    client.act()
    last = shown(1, reward=3.0, seq=1, end=End.TERMINATED)
    client.step(last)
    client.step(last)
    client.step(shown(2, seq=2))
    assert client.answers[1:3] == [Ended(3.0, 1)] * 2
    assert (client.answers[3].code, client.answers[3].outcome) == (Code.OVER, Stage.ENDED)
    assert [row.is_over for row in client.book.take_rows()] == [True]


def test_a_started_episode_is_the_same_for_its_owner_and_taken_for_others() -> None:
    client = Client()
    assert client.book.start(OWNER, StartRequest("a"), 0.0) == Started("a", 0)
    assert client.book.start(OWNER, StartRequest("a", lease=3.0), 0.0).code is Code.TAKEN
    assert client.book.start("other", StartRequest("a"), 0.0).code is Code.TAKEN
    assert client.book.start(OWNER, StartRequest("b"), 0.0).code is Code.FULL


def test_the_episode_of_another_owner_is_unknown() -> None:
    client = Client()
    client.step(shown(0), owner="other")
    client.step(shown(0, end=End.TERMINATED), owner="other")
    assert [answer.code for answer in client.answers] == [Code.UNKNOWN] * 2
    assert client.book.leave("other", "a", True, 0.0).code is Code.UNKNOWN
    client.step(shown(0))
    assert len(client.book.take_rows()) == 1


def test_a_left_episode_keeps_the_step_that_was_not_taken() -> None:
    client = Client()
    client.step(shown(0))
    client.act()
    client.step(shown(1, reward=1.0))
    client.book.leave(OWNER, "a", True, 0.0)
    (row,) = client.book.take_rows()
    assert (row.is_step, row.is_abandoned, row.reports[SINGLE_AGENT].reward) == (True, True, 1.0)
    assert client.answers[-1].outcome is Stage.LEFT


def test_an_episode_that_the_runner_has_not_seen_leaves_no_trace() -> None:
    client = Client()
    client.step(shown(0))
    client.book.leave(OWNER, "a", True, 0.0)
    assert client.book.take_rows() == []
    assert client.book.awaited(0) is Stage.OPEN


def test_the_next_episode_waits_until_the_runner_requests_it() -> None:
    client = Client()
    client.step(shown(0))
    client.act()
    client.step(shown(1, end=End.TRUNCATED))
    assert client.book.start(OWNER, StartRequest("b"), 0.0) == Started("b", 0)
    client.step(shown(2), episode="b")
    assert [row.id for row in client.book.take_rows()] == ["a"]
    client.book.request(0, 0.0)
    assert [(row.id, row.is_reset) for row in client.book.take_rows()] == [("b", True)]


def test_silence_counts_only_while_the_simulator_acts() -> None:
    client = Client(lease=10.0)
    client.step(shown(0), now=1.0)
    assert client.book.expire(now=100.0) == []  # the action is owed to it
    client.act(now=100.0)
    assert client.book.expire(now=109.0) == []
    assert client.book.expire(now=110.0) == ["a"]
    client.step(shown(1), now=111.0)
    assert client.answers[-1].outcome is Stage.EXPIRED


def test_outcomes_are_forgotten_after_a_while() -> None:
    client = Client()
    client.book.leave(OWNER, "a", True, 0.0)
    client.book.start(OWNER, StartRequest("b"), 1.0)
    client.book.leave(OWNER, "b", True, TOMBSTONE_SECONDS + 1.0)
    client.step(shown(0))
    client.step(shown(0), episode="b")
    assert [answer.code for answer in client.answers] == [Code.UNKNOWN, Code.OVER]


def test_an_answer_for_an_episode_that_was_left_is_nobodys() -> None:
    client = Client()
    client.step(shown(0))
    (row,) = client.book.take_rows()
    client.book.leave(OWNER, "a", True, 0.0)
    client.book.answer(row.id, ACTION, 1, 0.0)
    assert [answer.outcome for answer in client.answers] == [Stage.LEFT]


def test_watched_episodes_take_no_env() -> None:
    book = EpisodeBook(0, [SINGLE_AGENT])
    answers: list[Answer] = []
    assert book.start(OWNER, StartRequest("a", mode=Mode.WATCH), 0.0) == Started("a", None)
    book.step(OWNER, "a", shown(0), 0.0, answers.append)
    assert book.take_rows() == []
    assert [row.id for row in book.take_rows_of_guests()] == ["a"]
    book.answer("a", ACTION, 2, 0.0)
    assert answers == [Acted(ACTION, 2)]


def test_agents_end_on_their_own_and_get_nothing_afterwards() -> None:
    book, answers = EpisodeBook(1, ["a", "b"]), []
    book.request(0, 0.0)
    book.start(OWNER, StartRequest("x"), 0.0)

    def step(end: End = End.RUNNING, **reports: Report) -> dict[str, Report]:
        book.step(OWNER, "x", StepRequest(reports, end), 0.0, answers.append)
        rows = book.take_rows()
        for row in rows:
            book.answer(row.id, {}, 0, 0.0)
        return rows[0].reports if rows else {}

    step(a=Report(obs=0), b=Report(obs=0))
    ends = step(a=Report(obs=1, end=End.TERMINATED), b=Report(obs=1))
    assert [(ends[agent].end, ends[agent].obs) for agent in "ab"] == [(End.TERMINATED, 1), (End.RUNNING, 1)]
    step(a=Report(obs=2))
    step(c=Report(obs=2))
    assert [answer.code for answer in answers[-2:]] == [Code.AGENT] * 2
    last = step(End.TRUNCATED)
    assert (list(last), last["b"].end, last["b"].obs) == (["b"], End.GONE_TRUNCATED, None)


def test_steps_of_guests_are_taken_in_their_order_so_that_an_id_may_be_used_again() -> None:
    book = EpisodeBook(0, [SINGLE_AGENT])
    for mode, end in ((Mode.EVALUATE, End.TERMINATED), (Mode.WATCH, End.RUNNING)):
        book.start(OWNER, StartRequest("a", mode=mode), 0.0)
        book.step(OWNER, "a", shown(0), 0.0, [].append)
        if end is not End.RUNNING:
            book.take_rows_of_guests()
            book.answer("a", ACTION, 0, 0.0)
            book.step(OWNER, "a", shown(1, end=end), 0.0, [].append)
    assert [(row.request.mode, row.is_over) for row in book.take_rows_of_guests()] == [
        (Mode.EVALUATE, True),
        (Mode.WATCH, False),
    ]


def test_a_repeated_start_renews_the_lease() -> None:
    book, request = EpisodeBook(0, [SINGLE_AGENT]), StartRequest("a", mode=Mode.WATCH, lease=10.0)
    for now in (0.0, 8.0):
        book.start(OWNER, request, now)
    assert book.expire(17.0) == []
    assert book.expire(18.0) == ["a"]
