"""How much each environment has to give for a sample."""

import numpy as np
import pytest

from rookery.runners.quota import AGENT_STEPS, ENV_STEPS, EPISODES, Quota


def play(quota: Quota, num_envs: int, random: np.random.Generator) -> np.ndarray:
    """Step random envs that have something left until nobody has; return the steps of each."""
    given = np.zeros(num_envs, np.int64)
    while quota.largest > 0:
        able = [env for env in range(num_envs) if quota.has_left(env)]
        stepped = np.array([env for env in able if random.random() < 0.7], np.int64)
        quota.use(ENV_STEPS, stepped)
        given[stepped] += 1
    return given


@pytest.mark.parametrize("num_envs", [1, 2, 3])
@pytest.mark.parametrize("total", [0, 1, 5, 7])
def test_all_give_the_same_but_for_the_rest(total: int, num_envs: int) -> None:
    given = play(Quota(total, num_envs, ENV_STEPS), num_envs, np.random.default_rng(0))
    assert given.sum() == total
    assert given.max() - given.min() <= 1


@pytest.mark.parametrize("kept", [[2, 0], [0, 2], [1, 1], [5, 4], [0, 0]])
def test_steps_that_were_kept_back_count_for_the_env_that_made_them(kept: list[int]) -> None:
    quota = Quota(7, 2, ENV_STEPS)
    quota.credit(np.array(kept))
    given = play(quota, 2, np.random.default_rng(1))
    assert given.sum() == max(0, 7 - sum(kept))


def test_what_a_lost_env_cannot_give_is_given_by_the_others() -> None:
    quota = Quota(9, 3, ENV_STEPS)
    quota.use(ENV_STEPS, np.arange(3))
    quota.take_from(1)
    assert [quota.has_left(env) for env in range(3)] == [True, False, True]
    assert play(quota, 3, np.random.default_rng(2)).tolist() == [3, 0, 3]


def test_other_units_are_not_counted() -> None:
    quota = Quota(2, 1, EPISODES)
    quota.use(ENV_STEPS, np.array([0]))
    assert quota.largest == 2
    quota.use(EPISODES, [0])
    assert quota.largest == 1


def test_an_env_may_give_several_steps_of_agents_at_once() -> None:
    quota = Quota(4, 2, AGENT_STEPS)
    quota.use(AGENT_STEPS, np.array([0, 0]))
    assert [quota.has_left(env) for env in range(2)] == [False, True]


def test_where_all_share_one_quota_the_last_steps_are_the_ones_too_many() -> None:
    quota = Quota(3, 2, ENV_STEPS, is_shared=True)
    for envs in ([0], [1], [0, 1]):
        quota.use(ENV_STEPS, np.array(envs))
    assert quota.overdraft is not None
    assert quota.overdraft.tolist() == [0, 1]
