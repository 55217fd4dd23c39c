"""Faults as values: what they say, and what they do to the health of an env, on a clock that nobody waits for."""

import pickle
import traceback

import pytest

from rookery.runners.faults import EnvFaultError, Failed, Fault, FaultKind, Phase


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


def test_the_text_of_a_failure_is_bounded() -> None:
    failed = failure_of(ValueError("x" * 10_000_000))
    assert len(failed.error) < 1_100
    assert len(failed.traceback) < 21_000
    assert "in failure_of" in failed.traceback


def test_the_stack_of_a_failure_in_a_known_place_is_not_formatted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = failure_of(ValueError("one leg"))
    monkeypatch.setattr("rookery.runners.faults.traceback.format_tb", lambda *_: pytest.fail("it takes long"))
    second = failure_of(ValueError("two legs"))
    assert first.traceback.replace("one leg", "two legs") == second.traceback


def test_a_traceback_is_written_as_python_does_with_the_errors_it_comes_from() -> None:
    def fail() -> None:
        try:
            {}["leg"]
        except KeyError as cause:
            try:
                raise ValueError("bad leg") from cause
            finally:
                1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError) as raised:
        fail()
    expected = "".join(traceback.format_exception(raised.value))
    assert Failed.by_exception(raised.value, Phase.STEP).traceback == expected


def test_a_deep_recursion_is_told_by_its_last_frames() -> None:
    def fall() -> None:
        fall()

    with pytest.raises(RecursionError) as raised:
        fall()
    assert Failed.by_exception(raised.value, Phase.STEP).traceback.count("in fall") < 40
