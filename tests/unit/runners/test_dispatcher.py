"""Dispatching: results do not depend on which runner answers when, nor on runners that die."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from rookery.errors import RookeryError
from rookery.runners.faults import FaultKind
from rookery.runners.groups.dispatcher import JobDispatcher
from rookery.runners.groups.episodes import EpisodesRequest, Played, RandomlyPlayed, RandomRequest
from rookery.runners.groups.group import ActingSpec
from rookery.runners.groups.jobs import Chunk
from tests.runner_envs import FakeTime
from tests.unreliable_runners import UnreliableRunners

NUM_INDIVIDUALS = 11


def answer(index: int, request: Any) -> Any:
    """The return of an individual is its number."""
    if isinstance(request, RandomRequest):
        return RandomlyPlayed(np.arange(request.num_envs), np.ones(request.num_envs))
    chunk = request.chunk
    returns = np.arange(chunk.first, chunk.first + chunk.count, dtype=np.float32)
    return Played(returns, np.ones(chunk.count), np.zeros((chunk.count, 0)), None, (), (), 0, Counter(raised=1), 2)


def request(chunk: Chunk) -> EpisodesRequest:
    return EpisodesRequest(None, chunk)  # type: ignore[arg-type]


def individuals_of(asked: Any) -> range:
    if not isinstance(asked, EpisodesRequest):
        return range(0)
    return range(asked.chunk.first, asked.chunk.first + asked.chunk.count)


def play(dispatcher: JobDispatcher, chunk_size: int = 3) -> dict[int, float]:
    """Play a generation; return the returns by individual."""
    dispatcher.begin(NUM_INDIVIDUALS, chunk_size, request)
    for _ in range(2_000):
        if dispatcher.is_finished or dispatcher.failure:
            break
        dispatcher.pump(0.0)
    returns: dict[int, float] = {}
    for chunk, played in dispatcher.played.items():
        for offset, number in enumerate(played.returns.tolist()):
            assert chunk.first + offset not in returns, "played once"
            returns[chunk.first + offset] = number
    return returns


ALL = {individual: float(individual) for individual in range(NUM_INDIVIDUALS)}


def dispatcher_of(group: UnreliableRunners, **settings: Any) -> JobDispatcher:
    return JobDispatcher(group, ActingSpec({}), **settings)


@pytest.mark.parametrize("num_runners", [1, 2, 4, 8])
@pytest.mark.parametrize("chunk_size", [1, 3, NUM_INDIVIDUALS])
def test_every_individual_is_played_once_by_any_number_of_runners(num_runners: int, chunk_size: int) -> None:
    for seed in range(5):
        dispatcher = dispatcher_of(UnreliableRunners(num_runners, answer, seed=seed))
        for _ in range(2):
            assert play(dispatcher, chunk_size) == ALL
        assert dispatcher.given_up == []


@pytest.mark.parametrize("kind", [FaultKind.KILLED, FaultKind.UNREACHABLE])
@pytest.mark.parametrize("nth", range(4))
def test_a_runner_that_dies_in_any_chunk_changes_nothing(nth: int, kind: FaultKind) -> None:
    died: list[int] = []

    def fails(index: int, asked: Any) -> FaultKind | None:
        if 3 * nth in individuals_of(asked) and not died:
            died.append(index)
            return kind
        return None

    group = UnreliableRunners(3, answer, fails)
    dispatcher = dispatcher_of(group)
    assert play(dispatcher) == ALL
    assert len(died) == group.num_rebuilt == 1
    assert dispatcher.report()["runners/chunks_lost"] == dispatcher.report()["runners/restarts"] == 1


@pytest.mark.parametrize("num_runners", [1, 3])
@pytest.mark.parametrize("deadly", [0, 4, NUM_INDIVIDUALS - 1])
def test_an_individual_that_always_kills_its_runner_is_given_up_alone(num_runners: int, deadly: int) -> None:
    def fails(index: int, asked: Any) -> FaultKind | None:
        return FaultKind.KILLED if deadly in individuals_of(asked) else None

    dispatcher = dispatcher_of(UnreliableRunners(num_runners, answer, fails))
    assert play(dispatcher) == {individual: value for individual, value in ALL.items() if individual != deadly}
    assert dispatcher.given_up == [deadly]
    assert dispatcher.failure is None


@pytest.mark.parametrize("seed", range(10))
def test_all_may_die_at_random(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def fails(index: int, asked: Any) -> FaultKind | None:
        return FaultKind.UNREACHABLE if rng.random() < 0.4 else None

    assert play(dispatcher_of(UnreliableRunners(4, answer, fails, seed=seed))) == ALL


def test_if_no_runner_ever_starts_the_failure_is_that_of_the_first() -> None:
    dispatcher = dispatcher_of(UnreliableRunners(2, answer, lambda index, asked: FaultKind.RAISED))
    assert play(dispatcher) == {}
    assert "the process is gone" in str(dispatcher.failure)


def test_the_others_play_for_a_slot_that_never_starts() -> None:
    def fails(index: int, asked: Any) -> FaultKind | None:
        return FaultKind.RAISED if index == 1 else None

    group = UnreliableRunners(2, answer, fails, max_restarts=1)
    dispatcher = dispatcher_of(group)
    assert play(dispatcher, chunk_size=1) == ALL
    assert {index for index, _ in group.requests} == {0}
    play(dispatcher, chunk_size=1)
    assert dispatcher.report()["runners/lost"] == 1


def test_too_few_runners_for_too_long_are_a_failure() -> None:
    times = FakeTime()
    dispatcher = dispatcher_of(
        UnreliableRunners(2, answer, lambda index, asked: FaultKind.UNREACHABLE if index else None),
        min_runners=2,
        wait_timeout=60.0,
        clock=times.clock,
    )
    dispatcher.begin(NUM_INDIVIDUALS, 1, request)
    for _ in range(100):
        dispatcher.pump(0.0)
        assert dispatcher.failure is None
    times.sleep(61.0)
    dispatcher.pump(0.0)
    assert "ray.min_env_runners=2 are needed" in str(dispatcher.failure)


def test_a_new_generation_drops_the_replies_of_the_one_before() -> None:
    group = UnreliableRunners(3, answer)
    dispatcher = dispatcher_of(group)
    dispatcher.begin(100, 1, request)
    while not group.requests:
        dispatcher.pump(0.0)
    assert play(dispatcher, chunk_size=4) == ALL


def test_random_play_is_asked_of_another_runner_if_one_dies() -> None:
    num_tries: list[int] = []

    def fails(index: int, asked: Any) -> FaultKind | None:
        if isinstance(asked, RandomRequest):
            num_tries.append(index)
        return FaultKind.KILLED if len(num_tries) == 1 else None

    dispatcher = dispatcher_of(UnreliableRunners(2, answer, fails))
    played = dispatcher.play_at_random(RandomRequest(5, 3, seed=1))
    np.testing.assert_array_equal(played.obs, np.arange(5))
    assert len(num_tries) == 2
    assert play(dispatcher) == ALL


def test_counts_outlive_runners_and_closing() -> None:
    group = UnreliableRunners(1, answer)
    dispatcher = dispatcher_of(group)
    play(dispatcher)
    assert (dispatcher.counts["raised"], dispatcher.num_lost_envs) == (1, 2), "those of its last reply"
    dispatcher.close()
    assert (dispatcher.counts["raised"], dispatcher.num_lost_envs) == (1, 0)
    play(dispatcher)
    assert dispatcher.counts["raised"] == 2
    saved = dispatcher.get_counts()
    dispatcher.set_counts(saved)
    assert dispatcher.get_counts() == saved
    resumed = dispatcher_of(UnreliableRunners(1, answer))
    resumed.set_counts(saved)
    play(resumed)
    assert resumed.counts["raised"] == 3


def test_an_error_names_the_first_failure() -> None:
    dispatcher = dispatcher_of(UnreliableRunners(1, answer, lambda index, asked: asked and FaultKind.KILLED))
    play(dispatcher)
    assert len(dispatcher.given_up) == NUM_INDIVIDUALS
    assert isinstance(dispatcher.error("nothing"), RookeryError)
    assert str(dispatcher.error("nothing")) == "nothing; the first failure: the process is gone."
