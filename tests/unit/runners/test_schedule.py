"""Schedules of numbered episodes: who plays which, with which seed, and how often after faults."""

import pytest

from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.health import EnvStates, RestartPolicy
from rookery.runners.schedule import NO_EPISODE, DealtEpisodes, EpisodeQueue
from rookery.runners.seeds import episode_seed

AT_STEP, AT_RESET = (Failed(FaultKind.RAISED, phase, "bad leg") for phase in (Phase.STEP, Phase.RESET))
STATES = EnvStates(2, RestartPolicy())


def test_free_envs_take_the_next_episode() -> None:
    queue = EpisodeQueue(4, 2, seed=7)
    assert [queue.begin_episode(env)[0] for env in (0, 1, 1, 1)] == [0, 1, 2, 3]
    assert not queue.may_begin(0)


def test_dealt_episodes_belong_to_one_env() -> None:
    dealt = DealtEpisodes(5, 2, seed=7)
    assert [dealt.begin_episode(env)[0] for env in (1, 1, 0, 0, 0)] == [1, 3, 0, 2, 4]
    assert not dealt.may_begin(0)
    assert not dealt.may_restart(1)


@pytest.mark.parametrize("kind", [EpisodeQueue, DealtEpisodes])
def test_seeds_depend_on_the_number_of_the_episode_and_its_tries(kind: type[EpisodeQueue]) -> None:
    schedule = kind(3, 2, seed=7)
    seeds = [schedule.begin_episode(0)]
    for _ in range(2):
        schedule.discard_episode(0, is_given_up=False)
        seeds.append(schedule.begin_episode(0))
    assert seeds == [(0, episode_seed(7, 0, number)) for number in (0, 3, 6)]


def test_a_fault_within_an_episode_counts_against_it_and_one_before_against_the_env() -> None:
    queue = EpisodeQueue(2, 2, seed=7)
    for num_faults in (1, 2):
        queue.begin_episode(num_faults % 2)
        assert queue.count_fault(num_faults % 2, AT_STEP) == num_faults
        queue.discard_episode(num_faults % 2, is_given_up=False)
    queue.begin_episode(0)
    assert queue.count_fault(0, AT_RESET) is None


def test_all_is_played_when_every_episode_has_ended_or_was_given_up() -> None:
    queue = EpisodeQueue(2, 2, seed=7)
    for env in range(2):
        queue.begin_episode(env)
    queue.end_episode(1, num_steps=3)
    assert not queue.is_finished(STATES)
    queue.discard_episode(0, is_given_up=True)
    assert queue.is_finished(STATES)
    assert (queue.num_left, queue.num_given_up) == (0, 1)
    assert not queue.may_begin(0)


def test_what_a_lost_env_leaves_is_dealt_to_the_others() -> None:
    dealt = DealtEpisodes(9, 3, seed=7)
    assert dealt.begin_episode(0)[0] == 0
    dealt.discard_episode(0, is_given_up=False)
    dealt.lose(0)
    assert not dealt.may_restart(0)
    assert [[dealt.begin_episode(env)[0] for _ in range(num)] for env, num in ((1, 5), (2, 4))] == [
        [1, 4, 7, 0, 6],
        [2, 5, 8, 3],
    ]


def test_some_of_the_episodes_have_the_seeds_that_they_have_among_all() -> None:
    whole, some = EpisodeQueue(9, 1, seed=7), EpisodeQueue(9, 4, seed=7, played=range(3, 6))
    seeds = dict(whole.begin_episode(0) for _ in range(9))
    assert [some.begin_episode(env) for env in range(3)] == [(number, seeds[number]) for number in (3, 4, 5)]
    assert some.begin_episode(3)[0] == NO_EPISODE
    some.end_episode(3, 5)
    assert some.num_left == 3, "an episode that was not wanted does not count"
    some.discard_episode(3, is_given_up=True)
    assert (some.num_left, some.num_given_up) == (3, 0)
