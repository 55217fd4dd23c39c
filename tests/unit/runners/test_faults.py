"""Faults as values: what they say, and what they do to the health of an env, on a clock that nobody waits for."""

import pickle

import pytest

from rookery.errors import InvalidInputError
from rookery.runners.faults import EnvFaultError, Failed, Fault, FaultKind, Health, Phase, RestartPolicy, Status


def failure_of(error: BaseException) -> Failed:
    try:
        raise error
    except BaseException as raised:
        return Failed.by_exception(raised, Phase.STEP)


def fault_of(failed: Failed, consequence: str = "") -> Fault:
    return Fault(failed, "LunarLander-v3", 3, 91, episode=5, step=412, action=2, consequence=consequence)


def test_a_fault_names_env_index_seed_step_action_error_and_consequence() -> None:
    fault = fault_of(failure_of(ValueError("bad leg")), "episode discarded, restart 1 of 5")
    assert str(fault) == (
        "env 3 (LunarLander-v3, seed 91) raised at step 412 on action 2: ValueError('bad leg'); "
        "episode discarded, restart 1 of 5."
    )


def test_a_fault_outside_a_step_names_what_was_asked_instead() -> None:
    failed = Failed(FaultKind.HUNG, Phase.RESET, "no answer within 5.0 s")
    assert str(fault_of(failed)) == "env 3 (LunarLander-v3, seed 91) hung at reset: no answer within 5.0 s."


def test_an_error_without_arguments_still_has_a_name_and_a_traceback() -> None:
    failed = failure_of(RuntimeError())
    assert failed.error == "RuntimeError()"
    assert "in failure_of" in failed.traceback


def test_the_final_error_holds_the_traceback_and_the_fault() -> None:
    fault = fault_of(failure_of(KeyError("leg")))
    error = EnvFaultError("all envs are lost.", fault)
    assert str(error).startswith("all envs are lost.\nTraceback")
    assert "in failure_of" in str(error)
    assert error.fault is fault


def test_a_failure_can_be_sent_to_another_process() -> None:
    failed = failure_of(ValueError("bad leg"))
    assert pickle.loads(pickle.dumps(failed)) == failed


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


def test_a_suspect_env_may_be_built_anew_when_its_time_has_come_and_no_healthy_one_ever() -> None:
    policy = RestartPolicy(first_delay=2.0)
    suspect = Health(num_tries=1).after_fault(policy, now=10.0)
    assert [suspect.may_restart(now) for now in (10.0, 11.9, 12.0)] == [False, False, True]
    assert not Health().may_restart(1e9)
    assert not suspect.after_restart().may_restart(1e9)


def test_enough_good_steps_end_the_row_and_fewer_do_not() -> None:
    policy, health = RestartPolicy(good_steps=3), Health().after_fault(RestartPolicy(), 0.0).after_restart()
    statuses = []
    for _ in range(3):
        health = health.after_good_step(policy)
        statuses.append((health.status, health.num_tries))
    assert statuses == [(Status.RESTORED, 1), (Status.RESTORED, 1), (Status.HEALTHY, 0)]
    assert health.after_fault(policy, 0.0).after_restart().num_good_steps == 0


def test_a_good_step_ends_the_row_and_a_restart_alone_does_not() -> None:
    policy = RestartPolicy(max_restarts=2, good_steps=1)
    health = Health()
    for _ in range(10):
        health = health.after_fault(policy, 0.0).after_restart()
        assert health.num_tries == 1
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


def test_no_restarts_lose_an_env_with_its_first_fault() -> None:
    assert Health().after_fault(RestartPolicy(max_restarts=0), 0.0).status is Status.LOST


@pytest.mark.parametrize(
    "wrong", [{"max_restarts": -1}, {"first_delay": -0.1}, {"first_delay": 2.0, "max_delay": 1.0}, {"max_faults": -1}]
)
def test_a_policy_that_cannot_be_is_refused_by_name(wrong: dict) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        RestartPolicy(**wrong)
