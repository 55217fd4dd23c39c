"""A signal asks for an end, and the loop decides when."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from rookery.runs.interruption import Interrupted, StopSignals


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """Python's own handlers, whatever the process of the tests was started with."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    """Send a signal to this process; its handler has run when this returns."""
    signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_is_noted_and_ends_nothing(number: signal.Signals) -> None:
    with StopSignals() as stop:
        assert stop.requested is None
        send(number)
        assert stop.requested is number


def test_the_second_interrupt_ends_at_once() -> None:
    with StopSignals() as stop:
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert stop.requested is signal.SIGINT


def test_the_first_signal_of_each_kind_waits_for_the_loop() -> None:
    with StopSignals() as stop:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            send(number)
        assert stop.requested is signal.SIGTERM


def test_handlers_are_restored_also_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with contextlib.suppress(RuntimeError), StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before[0]
        raise RuntimeError
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


def test_a_signal_that_the_process_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignals() as stop:
        send(signal.SIGINT)
        assert stop.requested is None
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_in_another_thread_it_changes_no_handler() -> None:
    seen = []

    def use() -> None:
        with StopSignals() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [(None, signal.SIG_DFL)]


def test_the_exit_code_is_what_a_shell_reports() -> None:
    assert Interrupted(signal.SIGTERM).exit_code == 143
    assert Interrupted(signal.SIGINT).exit_code == 130
    assert str(Interrupted(signal.SIGTERM)) == "stopped by SIGTERM."
    assert str(Interrupted(signal.SIGINT, "saved at step 8")) == "stopped by SIGINT: saved at step 8."


LOOP = """
import sys
from rookery.runs.interruption import Interrupted, StopSignals

with StopSignals() as stop:
    print("ready", flush=True)
    while stop.requested is None:
        pass
    print("saved", flush=True)
    sys.exit(Interrupted(stop.requested).exit_code)
"""


def test_a_terminated_process_ends_its_loop_in_order() -> None:
    process = subprocess.Popen([sys.executable, "-c", LOOP], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "saved\n"
    assert process.returncode == 143


HANG = """
import time
from rookery.runs.interruption import StopSignals

with StopSignals() as stop:
    print("ready", flush=True)
    while stop.requested is None:
        pass
    print("noted", flush=True)
    time.sleep(1e6)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_second_termination_ends_a_process_that_hangs(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", HANG], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for said in ("ready\n", "noted\n"):
            assert process.stdout.readline() == said
            process.send_signal(number)
        try:
            assert process.wait(timeout=30) == -number
        finally:
            process.kill()
