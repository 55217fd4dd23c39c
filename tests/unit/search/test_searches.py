"""Searches: who takes over from whom, and which numbers are tried next."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.sac import SACHyperparameters
from rookery.errors import InvalidInputError
from rookery.search import SearchHyperparameters, SearchSpace
from rookery.search.searches import Competition, RandomSearch, Search, Selection, Truncation

SIZE = 10
SPACE = SearchSpace.of(
    {
        "critic_learning_rate": {"low": 1e-5, "high": 1e-1, "scale": "log"},
        "target_update_rate": {"low": 0.001, "high": 1.0},
    },
    SACHyperparameters(),
)
NUMBERS = {"critic_learning_rate": jnp.full(SIZE, 1e-3), "target_update_rate": jnp.linspace(0.01, 0.1, SIZE)}
FITNESS = jnp.arange(SIZE, dtype=jnp.float32)
TRUNCATION = Truncation(SPACE, SIZE, num_top=2, num_bottom=2)
COMPETITION = Competition(SPACE, SIZE)


def select(search: Search, fitness: jax.Array, seed: int = 0, **hyperparameters: float) -> Selection:
    values = jax.tree.map(jnp.float32, SearchHyperparameters(**hyperparameters))
    return search.select(NUMBERS, fitness, search.init(), values, jax.random.key(seed))


def heirs(selection: Selection) -> list[int]:
    return np.flatnonzero(np.asarray(selection.parents) != np.arange(SIZE)).tolist()


def test_the_worst_take_over_from_the_best_and_all_others_go_on() -> None:
    parents = set()
    for seed in range(20):
        selection = select(TRUNCATION, FITNESS, seed)
        assert heirs(selection) == [0, 1]
        parents |= set(np.asarray(selection.parents)[:2].tolist())
        for name, numbers in selection.numbers.items():
            np.testing.assert_array_equal(numbers[2:], NUMBERS[name][2:])
    assert parents == {8, 9}


def test_the_numbers_of_an_heir_are_those_of_its_parent_times_or_divided_by_the_factor() -> None:
    selection = select(TRUNCATION, FITNESS, resample_probability=0.0, perturb_factor=2.0)
    for name, numbers in selection.numbers.items():
        ratios = np.asarray(numbers)[:2] / np.asarray(NUMBERS[name])[np.asarray(selection.parents)[:2]]
        assert all(np.isclose(ratio, 2.0) or np.isclose(ratio, 0.5) for ratio in ratios)


def test_numbers_of_an_heir_are_perturbed_independently() -> None:
    """A peer draws one factor for all names."""
    rises = []
    for seed in range(40):
        selection = select(TRUNCATION, FITNESS, seed, resample_probability=0.0)
        parents = np.asarray(selection.parents)[:2]
        rises += [
            [bool(selection.numbers[name][place] > NUMBERS[name][parents[place]]) for name in NUMBERS]
            for place in range(2)
        ]
    assert 0.25 < np.mean([first == second for first, second in rises]) < 0.75


def test_members_that_diverged_are_replaced_first_and_never_win() -> None:
    fitness = FITNESS.at[jnp.array([4, 9])].set(jnp.nan)
    for seed in range(20):
        selection = select(TRUNCATION, fitness, seed)
        assert heirs(selection) == [4, 9]
        assert {8, 7} >= set(np.asarray(selection.parents)[jnp.array([4, 9])].tolist())


def test_more_diverged_members_than_the_bottom_share_are_all_replaced() -> None:
    selection = select(TRUNCATION, jnp.full(SIZE, jnp.nan).at[3].set(1.0))
    assert heirs(selection) == [place for place in range(SIZE) if place != 3]
    np.testing.assert_array_equal(selection.parents, 3)


@pytest.mark.parametrize("search", [TRUNCATION, COMPETITION], ids=lambda search: type(search).__name__)
def test_nobody_takes_over_if_all_diverged(search: Search) -> None:
    selection = select(search, jnp.full(SIZE, jnp.nan))
    assert heirs(selection) == []
    for name, numbers in selection.numbers.items():
        np.testing.assert_array_equal(numbers, NUMBERS[name])


def test_of_every_pair_the_loser_takes_over_and_moves_to_the_numbers_of_the_winner() -> None:
    selection = select(COMPETITION, FITNESS, social_factor=0.0)
    losers = heirs(selection)
    winners = np.asarray(selection.parents)[losers]
    assert sorted([*losers, *winners.tolist()]) == list(range(SIZE))
    assert all(FITNESS[winner] > FITNESS[loser] for winner, loser in zip(winners, losers, strict=True))
    before, after = SPACE.to_unit(NUMBERS), SPACE.to_unit(selection.numbers)
    for name in SPACE.names:
        gap = np.asarray(before[name])[winners] - np.asarray(before[name])[losers]
        step = np.asarray(after[name] - before[name])[losers]
        assert np.all(step * np.sign(gap) >= -1e-6)
        assert np.all(np.abs(step) <= np.abs(gap) + 1e-6)
        np.testing.assert_array_equal(np.asarray(selection.numbers[name])[winners], np.asarray(NUMBERS[name])[winners])
        np.testing.assert_allclose(np.asarray(selection.search_state[name])[losers], step, atol=1e-5)


def test_a_velocity_stays_with_its_place_and_moves_a_loser_further() -> None:
    values = jax.tree.map(jnp.float32, SearchHyperparameters(social_factor=0.0))
    still = {name: jnp.full(SIZE, 0.5) for name in SPACE.names}
    velocity = {name: jnp.full(SIZE, 0.2) for name in SPACE.names}
    numbers = SPACE.from_unit(still)
    selection = COMPETITION.select(numbers, FITNESS, velocity, values, jax.random.key(0))
    losers = heirs(selection)
    winners = np.asarray(selection.parents)[losers]
    for name, places in SPACE.to_unit(selection.numbers).items():
        steps = np.asarray(places)[losers] - 0.5
        assert np.all((steps >= 0.0) & (steps <= 0.2 + 1e-5))
        assert len(np.unique(steps.round(5))) == len(losers)  # draws of their own
        np.testing.assert_array_equal(np.asarray(selection.search_state[name])[winners], np.float32(0.2))


def test_random_search_changes_nothing() -> None:
    selection = select(RandomSearch(SPACE, SIZE), FITNESS.at[0].set(jnp.nan))
    assert heirs(selection) == []
    assert selection.numbers is NUMBERS


def test_shares_that_overlap_and_pairs_that_do_not_come_out_even_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="the best 6 and the worst 5 members overlap in a population of 10"):
        Truncation(SPACE, SIZE, num_top=6, num_bottom=5)
    with pytest.raises(InvalidInputError, match=r"agent\.population_size=7 must be even"):
        Competition(SPACE, 7)
