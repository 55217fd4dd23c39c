"""Where each environment of a runner stands."""

import numpy as np
import pytest

from rookery.runners.env_states import EnvStates
from rookery.runners.faults import RestartPolicy, Status


def sets_of(slots: EnvStates) -> list[set[int]]:
    return [slots.over, slots.out, slots.waiting, slots.suspect, slots.lost]


@pytest.mark.parametrize("seed", range(5))
def test_every_env_is_in_exactly_one_set_whatever_happens(seed: int) -> None:
    random = np.random.default_rng(seed)
    slots, now = EnvStates(6, RestartPolicy(max_restarts=2, good_steps=3)), 0.0

    def some(envs: set[int]) -> set[int]:
        return {env for env in envs if random.random() < 0.5}

    for _ in range(400):
        now += float(random.exponential(0.05))
        match random.integers(6):
            case 0:
                slots.ask_for_episodes(some(slots.over))
            case 1:
                slots.begin_episodes(some(slots.out))
            case 2:
                slots.send(some(slots.waiting))
            case 3:
                answered = some(slots.out - slots.restarting)
                slots.answer(answered)
                slots.trust(answered)
            case 4:
                slots.end_episodes(some(slots.waiting))
            case 5:
                for env in some(slots.out) if random.random() < 0.5 else ():
                    slots.fail(env, now)
                slots.restart_due(now)
        assert sum(map(len, sets_of(slots))) == 6
        assert frozenset().union(*sets_of(slots)) == slots.everyone
        assert slots.restarting <= slots.out
        assert slots.restored <= slots.everyone - slots.suspect - slots.lost
    assert slots.lost


def test_an_env_is_built_anew_at_once_then_later_and_later_and_then_given_up() -> None:
    slots = EnvStates(2, RestartPolicy(max_restarts=2, first_delay=1.0))
    slots.ask_for_episodes([0, 1])
    slots.fail(1, now=10.0)
    assert slots.restart_due(now=10.0) == [1]
    slots.fail(1, now=10.0)
    assert slots.seconds_to_restart(now=10.25) == 0.75
    assert slots.restart_due(now=10.25) == []
    assert slots.restart_due(now=11.0) == [1]
    assert slots.fail(1, now=11.0).status is Status.LOST
    assert slots.lost == {1}
    assert slots.out == {0}


def test_good_steps_earn_the_tries_back() -> None:
    slots = EnvStates(1, RestartPolicy(max_restarts=1, good_steps=2))
    for _ in range(3):
        slots.fail(0, now=0.0)
        assert slots.restart_due(now=0.0) == [0]
        slots.begin_episodes([0])
        for _ in range(2):
            slots.send(slots.waiting)
            slots.answer([0])
            slots.trust([0])
        assert not slots.restored
    assert not slots.lost


def test_envs_that_answer_join_those_that_wait_already() -> None:
    slots = EnvStates(3, RestartPolicy())
    slots.ask_for_episodes([0, 1, 2])
    slots.begin_episodes([0, 1, 2])
    slots.send([0])
    slots.answer([0])
    assert (slots.waiting, slots.out) == ({0, 1, 2}, set())
    slots.send([0, 1])
    slots.send([2])
    assert (slots.waiting, slots.out) == (set(), {0, 1, 2})
