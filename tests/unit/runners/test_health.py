"""The health of environments, and the sets that they are in."""

import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.runners.health import EnvStates, Health, RestartPolicy, Status


def sets_of(states: EnvStates) -> list[set[int]]:
    return [states.over, states.out, states.waiting, states.suspect, states.lost]


@pytest.mark.parametrize("seed", range(5))
def test_every_env_is_in_exactly_one_set_whatever_happens(seed: int) -> None:
    random = np.random.default_rng(seed)
    states, now = EnvStates(6, RestartPolicy(max_restarts=2, good_steps=3)), 0.0

    def some(envs: set[int]) -> set[int]:
        return {env for env in envs if random.random() < 0.5}

    for _ in range(400):
        now += float(random.exponential(0.05))
        match random.integers(6):
            case 0:
                states.request_episodes(some(states.over))
            case 1:
                states.begin_episodes(some(states.out))
            case 2:
                states.send(some(states.waiting))
            case 3:
                answered = some(states.out - states.restarting)
                states.answer(answered)
                states.trust(answered)
            case 4:
                states.end_episodes(some(states.waiting))
            case 5:
                for env in some(states.out) if random.random() < 0.5 else ():
                    states.fail(env, now)
                for env in states.due(now):
                    states.restart(env)
        assert sum(map(len, sets_of(states))) == 6
        assert frozenset().union(*sets_of(states)) == states.everyone
        assert states.restarting <= states.out
        assert states.restored <= states.everyone - states.suspect - states.lost
    assert states.lost


def test_an_env_is_restarted_at_once_then_later_and_later_and_then_given_up() -> None:
    states = EnvStates(2, RestartPolicy(max_restarts=2, first_delay=1.0))
    states.request_episodes([0, 1])
    states.fail(1, now=10.0)
    assert states.due(now=10.0) == [1]
    states.restart(1)
    states.fail(1, now=10.0)
    assert states.seconds_to_restart(10.25, states.suspect) == 0.75
    assert states.due(now=10.25) == []
    assert states.due(now=11.0) == [1]
    states.restart(1)
    assert states.fail(1, now=11.0).status is Status.LOST
    assert states.lost == {1}
    assert states.out == {0}


def test_good_steps_earn_the_tries_back() -> None:
    states = EnvStates(1, RestartPolicy(max_restarts=1, good_steps=2))
    for _ in range(3):
        states.fail(0, now=0.0)
        assert states.due(now=0.0) == [0]
        states.restart(0)
        states.begin_episodes([0])
        for _ in range(2):
            states.send(states.waiting)
            states.answer([0])
            states.trust([0])
        assert not states.restored
    assert not states.lost


def test_envs_that_answer_join_those_that_wait_already() -> None:
    states = EnvStates(3, RestartPolicy())
    states.request_episodes([0, 1, 2])
    states.begin_episodes([0, 1, 2])
    states.send([0])
    states.answer([0])
    assert (states.waiting, states.out) == ({0, 1, 2}, set())
    states.send([0, 1])
    states.send([2])
    assert (states.waiting, states.out) == (set(), {0, 1, 2})


def test_the_first_retry_is_at_once_and_then_delays_double_up_to_the_longest() -> None:
    policy = RestartPolicy(first_delay=0.5, max_delay=3.0)
    assert [policy.delay(num_tries) for num_tries in range(6)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_an_env_that_fails_in_a_row_is_lost_after_its_last_restart() -> None:
    policy, health, now = RestartPolicy(max_restarts=3, first_delay=1.0), Health(), 100.0
    waits = []
    while (health := health.after_fault(policy, now)).status is Status.SUSPECT:
        waits.append(health.retry_at - now)
        now = health.retry_at
        health = health.after_restart()
        assert health.status is Status.RESTORED
    assert waits == [0.0, 1.0, 2.0]
    assert health.status is Status.LOST
    assert health.num_faults == 4
    assert not health.may_restart(now + 1e9)


def test_a_suspect_env_may_be_restarted_when_its_time_has_come_and_a_healthy_one_never() -> None:
    policy = RestartPolicy(first_delay=2.0)
    suspect = Health(num_failures=1).after_fault(policy, now=10.0)
    assert [suspect.may_restart(now) for now in (10.0, 11.9, 12.0)] == [False, False, True]
    assert not Health().may_restart(1e9)
    assert not suspect.after_restart().may_restart(1e9)


def test_enough_good_steps_end_the_row_and_fewer_do_not() -> None:
    policy, health = RestartPolicy(good_steps=3), Health().after_fault(RestartPolicy(), 0.0).after_restart()
    statuses = []
    for _ in range(3):
        health = health.after_good_step(policy)
        statuses.append((health.status, health.num_failures))
    assert statuses == [(Status.RESTORED, 1), (Status.RESTORED, 1), (Status.HEALTHY, 0)]
    assert health.after_fault(policy, 0.0).after_restart().num_good_steps == 0


def test_a_good_step_ends_the_row_and_a_restart_alone_does_not() -> None:
    policy = RestartPolicy(max_restarts=2, good_steps=1)
    health = Health()
    for _ in range(10):
        health = health.after_fault(policy, 0.0).after_restart()
        assert health.num_failures == 1
        health = health.after_good_step(policy)
        assert health.status is Status.HEALTHY
    assert health.num_faults == 10
    for _ in range(2):
        health = health.after_fault(policy, 0.0).after_restart()
    assert health.after_fault(policy, 0.0).status is Status.LOST


def test_max_faults_counts_over_the_whole_life_good_steps_or_not() -> None:
    policy, health = RestartPolicy(max_faults=3), Health()
    statuses = []
    for _ in range(4):
        health = health.after_good_step(policy).after_fault(policy, 0.0)
        statuses.append(health.status)
    assert statuses == [Status.SUSPECT] * 3 + [Status.LOST]


def test_a_fault_of_an_episode_delays_the_restart_and_never_costs_the_env() -> None:
    policy, health = RestartPolicy(max_restarts=0, first_delay=1.0), Health()
    for num_episode_faults, delay in ((1, 0.0), (2, 1.0), (3, 2.0)):
        health = health.after_episode_fault(policy, 10.0, num_episode_faults)
        assert (health.status, health.retry_at - 10.0) == (Status.SUSPECT, delay)
        health = health.after_restart()
    assert (health.num_failures, health.num_faults) == (0, 3)
    assert health.after_fault(policy, 0.0).status is Status.LOST


def test_no_restarts_lose_an_env_with_its_first_fault() -> None:
    assert Health().after_fault(RestartPolicy(max_restarts=0), 0.0).status is Status.LOST


@pytest.mark.parametrize(
    "wrong", [{"max_restarts": -1}, {"first_delay": -0.1}, {"first_delay": 2.0, "max_delay": 1.0}, {"max_faults": -1}]
)
def test_a_policy_that_cannot_be_is_refused_by_name(wrong: dict) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        RestartPolicy(**wrong)


def test_a_fault_within_an_episode_ends_the_failures_in_a_row_of_its_env() -> None:
    policy, health = RestartPolicy(max_restarts=1), Health()
    for _ in range(5):
        health = health.after_fault(policy, now=0.0).after_restart()
        health = health.after_episode_fault(policy, now=0.0, num_episode_faults=1)
        assert (health.status, health.num_failures) == (Status.SUSPECT, 0)
        health = health.after_restart()
    assert health.num_faults == 10
    health = health.after_fault(policy, now=0.0).after_restart()
    assert health.after_fault(policy, now=0.0).status is Status.LOST


def test_a_limit_on_all_faults_counts_those_within_episodes_too() -> None:
    policy, health = RestartPolicy(max_faults=1), Health()
    health = health.after_episode_fault(policy, now=0.0, num_episode_faults=1)
    assert health.status is Status.SUSPECT
    assert health.after_episode_fault(policy, now=0.0, num_episode_faults=1).status is Status.LOST
