"""Which runner plays which episodes of an evaluation."""

from typing import Any

import numpy as np
import pytest

from rookery.evaluators.evaluation_player import joined
from rookery.runners.groups.episodes import Evaluated
from rookery.runners.groups.evaluations import EpisodeDeal
from rookery.runners.groups.jobs import Chunk
from rookery.runners.health import RestartPolicy


def make_deal(num_episodes: int = 5, chunk_size: int = 2, max_restarts: int = 2) -> EpisodeDeal:
    return EpisodeDeal(num_episodes, chunk_size, RestartPolicy(max_restarts=max_restarts))


def evaluated(chunk: Chunk, **options: Any) -> Evaluated:
    """Return episodes whose returns and lengths tell their numbers."""
    numbers = np.arange(chunk.first, chunk.first + chunk.count)
    return Evaluated(
        numbers[:, None].astype(float), numbers.astype(np.int32) + 1, [{"number": n} for n in numbers], **options
    )


def test_chunks_are_dealt_in_order_and_their_results_joined_in_order() -> None:
    deal = make_deal()
    chunks = [deal.send(index) for index in range(3)]
    assert deal.num_waiting == 0
    for index in (2, 0, 1):
        assert not deal.is_finished
        deal.deliver(index, evaluated(chunks[index]))
    assert deal.is_finished
    whole = joined(deal.evaluated, 5, 1)
    assert whole.returns[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert whole.lengths.tolist() == [1, 2, 3, 4, 5]
    assert [metrics["number"] for metrics in whole.metrics] == [0, 1, 2, 3, 4]


def test_the_episodes_of_a_lost_runner_are_dealt_next_and_count_their_losses() -> None:
    deal = make_deal()
    lost = deal.send(0)
    assert deal.fail(0, is_counted=True) == 1
    again = deal.send(1)
    assert (again.first, again.count) == (lost.first, lost.count)
    assert deal.fail(1, is_counted=False) == 1
    assert deal.fail(1, is_counted=True) is None


def test_an_episode_that_loses_too_many_runners_stays_unfinished_alone() -> None:
    deal = make_deal(num_episodes=4)
    while not deal.is_finished:
        chunk = deal.send(0)
        if chunk.first <= 2 < chunk.first + chunk.count:
            deal.fail(0, is_counted=True)
        else:
            deal.deliver(0, evaluated(chunk))
    whole = joined(deal.evaluated, 4, 1, "their runners were lost")
    assert whole.lengths.tolist() == [1, 2, 0, 4]
    assert np.isnan(whole.returns[:, 0]).tolist() == [False, False, True, False]
    assert whole.problem == "their runners were lost"


def test_a_reply_to_an_earlier_evaluation_is_dropped() -> None:
    deal = make_deal()
    deal.deliver(0, evaluated(Chunk(0, 2)))
    assert deal.evaluated == {}


@pytest.mark.parametrize("problem", ["", "the first fault: it raised"])
def test_the_first_problem_of_a_runner_is_that_of_the_evaluation(problem: str) -> None:
    played = {
        Chunk(2, 2): evaluated(Chunk(2, 2), problem="later"),
        Chunk(0, 2): evaluated(Chunk(0, 2), problem=problem),
    }
    assert joined(played, 4, 1).problem == (problem or "later")
