"""Which policy each agent has in an episode: drawn by the number of the episode alone, and never all frozen."""

import pickle
from collections import Counter
from typing import Any

import pytest

from rookery.errors import InvalidInputError
from rookery.runners.acting.assignment import Assignment
from rookery.runners.recording.episode import LiveEpisode

PLAYERS = ("player_1", "player_2")
NUM_EPISODES = 4000


def assignment_of(*choices: str, frozen: tuple[str, ...] = ("past",), **settings: Any) -> Assignment:
    return Assignment(dict.fromkeys(PLAYERS, choices), frozenset(frozen), **settings)


def team(assignment: Assignment, number: int) -> tuple[str, ...]:
    episode = LiveEpisode(number, env_index=number % 4, seed=None)
    return tuple(assignment(agent, episode) for agent in assignment.choices)


def teams(assignment: Assignment) -> list[tuple[str, ...]]:
    return [team(assignment, number) for number in range(NUM_EPISODES)]


def shares(drawn: list[Any]) -> dict[Any, float]:
    return {value: count / len(drawn) for value, count in Counter(drawn).items()}


def test_draws_depend_on_the_seeds_and_the_number_of_the_episode_and_not_on_the_order() -> None:
    assignment = assignment_of("main", "past").with_seeds(3, 1)
    forward = [team(assignment, number) for number in range(100)]
    backward = [team(assignment, number) for number in reversed(range(100))]
    assert forward == backward[::-1]
    for other in ((4, 1), (3, 2)):
        assert forward != [team(assignment.with_seeds(*other), number) for number in range(100)]


def test_policies_are_drawn_uniformly_and_one_that_is_listed_twice_twice_as_often() -> None:
    drawn = teams(assignment_of("a", "b", "b", frozen=()))
    for agent in range(2):
        assert shares([names[agent] for names in drawn]) == pytest.approx({"a": 1 / 3, "b": 2 / 3}, abs=0.03)
    assert shares(drawn)["a", "a"] == pytest.approx(1 / 9, abs=0.02)  # independent of each other


def test_in_every_episode_somebody_has_a_trained_policy() -> None:
    expected = {("main", "main"): 1 / 4, ("main", "past"): 3 / 8, ("past", "main"): 3 / 8}
    assert shares(teams(assignment_of("main", "past"))) == pytest.approx(expected, abs=0.03)
    choices = {"player_1": ("past",), "player_2": ("main", "past")}
    assert set(teams(Assignment(choices, frozenset({"past"})))) == {("past", "main")}


def test_an_agent_with_a_pool_plays_each_member_equally_often() -> None:
    assignment = assignment_of("main", "past", pool_sizes={"past": 3})
    assert list(assignment.name_of) == ["main", "past_0", "past_1", "past_2"]
    members = [policy for names in teams(assignment) for policy in names if policy != "main"]
    assert shares(members) == pytest.approx(dict.fromkeys(("past_0", "past_1", "past_2"), 1 / 3), abs=0.03)
    assert list(assignment_of("main", "past", pool_sizes={"past": 1}).name_of) == ["main", "past"]


def first_is_main(agent: Any, episode: LiveEpisode) -> str:
    return "main" if agent == PLAYERS[episode.number % 2] else "past"


def test_a_mapping_chooses_among_the_listed_policies() -> None:
    assignment = assignment_of("main", "past", mapping_fn=first_is_main)
    assert team(assignment, 4) == ("main", "past")
    assert team(assignment, 5) == ("past", "main")
    with pytest.raises(InvalidInputError, match=r"returned 'past' for agent 'player_2'; .* env.policies: main\."):
        team(assignment_of("main", mapping_fn=first_is_main), 4)


def test_an_assignment_can_be_sent_to_other_processes() -> None:
    assignment = assignment_of("main", "past", pool_sizes={"past": 3}, mapping_fn=first_is_main)
    assert teams(pickle.loads(pickle.dumps(assignment)))[:50] == teams(assignment)[:50]
