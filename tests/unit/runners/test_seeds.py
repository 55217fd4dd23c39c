"""Seeds of episodes: no two alike, in an order that another seed of the run changes."""

import gymnasium
import numpy as np
import pytest

from rookery.runners.seeds import NUM_SEEDS, episode_seed


def test_no_two_episodes_of_a_run_have_the_same_seed() -> None:
    seeds = [episode_seed(3, runner, number) for runner in range(5) for number in range(40_000)]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 0
    assert max(seeds) < NUM_SEEDS


def test_seeds_do_not_repeat_before_all_have_been_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # The same permutation on 18 bits, where all numbers can be tried.
    monkeypatch.setattr("rookery.runners.seeds.NUM_SEEDS", 2**18)
    assert {episode_seed(3, 0, number) for number in range(2**18)} == set(range(2**18))


def test_runners_share_the_numbers_up_to_the_last() -> None:
    per_runner = NUM_SEEDS // 4
    for number in (0, 1, per_runner - 2, per_runner - 1):
        seeds = {episode_seed(0, runner, number + delta) for runner in range(4) for delta in (0, -number)}
        assert len(seeds) == (4 if number == 0 else 8)
    assert episode_seed(0, 0, NUM_SEEDS - 1) != episode_seed(0, 0, 0) == episode_seed(0, 0, NUM_SEEDS)


def test_another_run_has_its_seeds_in_another_order() -> None:
    first, second = ([episode_seed(run_seed, 0, number) for number in range(2_000)] for run_seed in (0, 1))
    assert not set(first) & set(second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    # In an order that is only shifted, the differences of neighbors would come again.
    assert len(set(np.diff(first).tolist()) & set(np.diff(second).tolist())) < 10


def test_seeds_are_spread_evenly() -> None:
    seeds = np.array([episode_seed(0, 0, number) for number in range(16_000)])
    counts, _ = np.histogram(seeds, 16, (0, NUM_SEEDS))
    assert counts.min() > 900
    assert counts.max() < 1100
    is_set = seeds[:, None] >> np.arange(31) & 1
    np.testing.assert_allclose(is_set.mean(axis=0), 0.5, atol=0.02)


@pytest.mark.parametrize("run_seed", [0, -1, 2**63, 10**30])
def test_any_integer_is_a_seed_of_a_run(run_seed: int) -> None:
    seed = episode_seed(run_seed, 0, 0)
    np.random.RandomState(seed)
    gymnasium.utils.seeding.np_random(seed)
