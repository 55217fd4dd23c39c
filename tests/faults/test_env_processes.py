"""Processes of environments that crash, hang, are killed or lose their parent."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.transports import subprocesses
from rookery.runners.transports.subprocesses import ProcessTransport
from rookery.runners.transports.transport import EnvCallError
from rookery.runners.transports.worker import Command
from rookery.runners.transports.worker_process import WorkerProcess
from rookery.testing.misbehaving_envs import (
    CountingEnv,
    FaultyEnv,
    close_descriptors,
    eat_memory,
    exit_process,
    fork_child,
    hang,
    hang_in_c,
    kill_parent_group,
    kill_process,
    raise_error,
    raise_keyboard_interrupt,
    segfault,
    start_session,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and waits on pidfds")

DEADLINE_SECONDS = 20.0
MakeTransport = Callable[..., ProcessTransport]


@pytest.fixture
def make_transport() -> Iterator[MakeTransport]:
    """Build transports from functions that make envs; they are closed when the test is over."""
    made: list[ProcessTransport] = []

    def make(*make_env_fns: Callable[[], Any], **options: Any) -> ProcessTransport:
        made.append(ProcessTransport(make_env_fns, **({"close_timeout": 1.0} | options)))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def reset(transport: ProcessTransport, *indexes: int) -> dict[int, Any]:
    for index in indexes:
        transport.send_reset(index, seed=index)
    return transport.receive(indexes)


def step(transport: ProcessTransport, *indexes: int) -> dict[int, Any]:
    transport.send_steps(indexes, [0] * len(indexes))
    return transport.receive(indexes)


def num_steps(reply: Any) -> int:
    """Read the observation of a counting env."""
    return int(reply[0][0])


def process_of(transport: ProcessTransport, index: int) -> int:
    return transport.apply(index, lambda env: os.getpid())


def wait_for_end(pid: int) -> None:
    """Wait until a process, which need not be a child of this one, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], DEADLINE_SECONDS)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def guardian_of(transport: ProcessTransport, index: int) -> int:
    return transport.apply(index, lambda env: os.getppid())


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def left_behind(before: set[str]) -> set[str]:
    """Name the segments of shared memory that came since, without those that another living process uses."""
    new = shared_memory() - before
    for maps in Path("/proc").glob("[0-9]*/maps") if new else ():
        if maps.parent.name != str(os.getpid()):
            with contextlib.suppress(OSError):  # it has ended, or is of another user
                used = maps.read_text()
                new = {name for name in new if f"/dev/shm/{name}\n" not in used}
    return new & shared_memory()


def test_a_process_that_dies_is_noticed_its_signal_named_and_its_env_replaced(make_transport: MakeTransport) -> None:
    ends = {
        segfault: (FaultKind.KILLED, "its process was ended by SIGSEGV"),
        kill_process: (FaultKind.KILLED, "its process was ended by SIGKILL"),
        exit_process: (FaultKind.EXITED, "its process exited with code 3"),
    }
    transport = make_transport(CountingEnv, *[partial(FaultyEnv, fault_fn, at_step=1) for fault_fn in ends])
    reset(transport, 0, 1, 2, 3)
    step(transport, 0, 1, 2, 3)
    replies = step(transport, 0, 1, 2, 3)
    for index, (kind, error) in enumerate(ends.values(), start=1):
        failed = replies[index]
        assert (failed.kind, failed.phase) == (kind, Phase.STEP)
        assert failed.error.startswith(error)
        transport.rebuild(index)
    assert num_steps(replies[0]) == 2
    assert {index: num_steps(reply) for index, reply in reset(transport, 1, 2, 3).items()} == {1: 0, 2: 0, 3: 0}
    assert num_steps(step(transport, 0)[0]) == 3


@pytest.mark.parametrize("fault_fn", [hang, hang_in_c])
def test_an_env_that_hangs_is_given_up_after_its_time_and_its_process_ended(
    make_transport: MakeTransport, fault_fn: Callable[[], None]
) -> None:
    transport = make_transport(lambda: FaultyEnv(fault_fn, at_step=0), CountingEnv, step_timeout=0.3)
    reset(transport, 0, 1)
    pid = process_of(transport, 0)
    replies = step(transport, 0, 1)
    assert replies[0] == Failed(FaultKind.HUNG, Phase.STEP, "no answer within 0.3 s")
    assert num_steps(replies[1]) == 1
    wait_for_end(pid)
    transport.rebuild(0)
    assert num_steps(reset(transport, 0)[0]) == 0


def test_an_env_that_hangs_while_it_is_built_is_given_up_too(make_transport: MakeTransport) -> None:
    transport = make_transport(lambda: FaultyEnv(hang, at_make=True), start_timeout=0.3)
    assert reset(transport, 0)[0] == Failed(FaultKind.HUNG, Phase.MAKE, "no answer within 0.3 s")
    with pytest.raises(EnvCallError, match="no answer within"):
        transport.describe()


def test_a_process_that_is_killed_while_idle_fails_the_next_request(make_transport: MakeTransport) -> None:
    transport = make_transport(CountingEnv)
    reset(transport, 0)
    pid = process_of(transport, 0)
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    failed = step(transport, 0)[0]
    assert (failed.kind, failed.phase) == (FaultKind.KILLED, Phase.STEP)
    assert reset(transport, 0)[0].phase is Phase.RESET, "it fails until it is rebuilt"
    transport.rebuild(0)
    assert num_steps(reset(transport, 0)[0]) == 0


def test_a_process_that_dies_in_a_call_fails_the_call(make_transport: MakeTransport) -> None:
    transport = make_transport(CountingEnv)
    failed = transport.apply(0, lambda env: segfault())
    assert isinstance(failed, Failed)
    assert failed.error == "its process was ended by SIGSEGV"
    with pytest.raises(EnvCallError, match="SIGSEGV"):
        transport.call(0, "close")


class TestSharedProcess:
    """Several envs in one process."""

    def test_an_env_that_raises_costs_itself_and_is_rebuilt_next_to_the_others(
        self, make_transport: MakeTransport
    ) -> None:
        transport = make_transport(CountingEnv, lambda: FaultyEnv(raise_error, at_step=0), envs_per_process=2)
        reset(transport, 0, 1)
        pid = process_of(transport, 0)
        replies = step(transport, 0, 1)
        assert (num_steps(replies[0]), replies[1].kind) == (1, FaultKind.RAISED)
        transport.rebuild(1)
        assert num_steps(reset(transport, 1)[1]) == 0
        assert process_of(transport, 0) == process_of(transport, 1) == pid
        assert num_steps(step(transport, 0)[0]) == 2

    def test_a_process_that_dies_costs_all_its_envs_and_no_others(self, make_transport: MakeTransport) -> None:
        transport = make_transport(
            CountingEnv, lambda: FaultyEnv(kill_process, at_step=0), CountingEnv, CountingEnv, envs_per_process=3
        )
        reset(transport, 0, 1, 2, 3)
        replies = step(transport, 1, 2, 3)
        assert [replies[index].kind for index in (1, 2)] == [FaultKind.KILLED] * 2
        assert num_steps(replies[3]) == 1
        assert step(transport, 0)[0].kind is FaultKind.KILLED, "an idle neighbor has lost its env too"
        transport.rebuild(1)
        assert num_steps(reset(transport, 1)[1]) == 0
        assert step(transport, 2)[2].kind is FaultKind.KILLED, "the new process has what was rebuilt, and no more"
        transport.rebuild(2)
        transport.rebuild(0)
        assert {index: num_steps(reply) for index, reply in reset(transport, 0, 2).items()} == {0: 0, 2: 0}

    def test_only_the_env_that_hangs_is_called_hung(self, make_transport: MakeTransport) -> None:
        transport = make_transport(
            CountingEnv, lambda: FaultyEnv(hang, at_step=0), CountingEnv, envs_per_process=3, step_timeout=0.5
        )
        reset(transport, 0, 1, 2)
        replies = step(transport, 0, 1, 2)
        assert num_steps(replies[0]) == 1, "it answered before"
        assert replies[1].kind is FaultKind.HUNG
        assert replies[2] == Failed(FaultKind.KILLED, Phase.STEP, "its process was replaced because env 1 hung")

    def test_the_reply_of_an_env_is_not_lost_with_the_process_that_the_next_one_kills(
        self, make_transport: MakeTransport
    ) -> None:
        transport = make_transport(CountingEnv, lambda: FaultyEnv(exit_process, at_step=0), envs_per_process=2)
        reset(transport, 0, 1)
        replies = step(transport, 0, 1)
        assert num_steps(replies[0]) == 1, "it answered before"
        assert replies[1].kind is FaultKind.EXITED

    def test_envs_that_share_a_process_are_asked_in_one_message(
        self, make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        transport = make_transport(*[CountingEnv] * 4, envs_per_process=2)
        reset(transport, *range(4))
        asked, put = [], WorkerProcess.put

        def note_slots(worker: WorkerProcess, command: Command, number: int, slots: Any, content: bytes) -> None:
            asked.append(slots)
            put(worker, command, number, slots, content)

        monkeypatch.setattr(WorkerProcess, "put", note_slots)
        assert {num_steps(reply) for reply in step(transport, *range(4)).values()} == {1}
        assert asked == [[0, 1], [2, 3]]

    def test_an_env_that_is_rebuilt_while_it_is_busy_takes_its_process_with_it(
        self, make_transport: MakeTransport
    ) -> None:
        transport = make_transport(lambda: FaultyEnv(hang, at_step=0), CountingEnv, envs_per_process=2)
        reset(transport, 0, 1)
        transport.send_steps([0, 1], [0, 0])
        assert transport.receive([0, 1], timeout=0.1) == {}
        transport.rebuild(0)
        replies = reset(transport, 0)
        assert num_steps(replies[0]) == 0
        assert replies[1].error == "its process was replaced because env 0 was rebuilt while it was busy"


def test_a_late_reply_is_not_taken_for_the_answer_to_the_next_request(
    make_transport: MakeTransport, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def interrupt_parent(trainer: int = os.getpid()) -> None:
        os.kill(trainer, signal.SIGINT)
        gate.read_text()

    transport = make_transport(lambda: FaultyEnv(interrupt_parent, at_step=0))
    assert num_steps(reset(transport, 0)[0]) == 0
    with pytest.raises(KeyboardInterrupt):
        step(transport, 0)
    transport.send_reset(0, seed=1)
    gate.write_text("go on")
    obs, info = transport.receive([0])[0]
    np.testing.assert_array_equal(obs, [0.0])
    assert info == {}


def test_an_exchange_that_was_interrupted_costs_the_env_and_garbles_nothing(
    make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = make_transport(CountingEnv, CountingEnv)
    reset(transport, 0, 1)

    def interrupt(*reply: Any) -> None:
        raise KeyboardInterrupt

    for go_on in (lambda: transport.receive([0]), lambda: reset(transport, 0)):
        transport.send_steps([0], [0])
        with monkeypatch.context() as patched:
            patched.setattr(transport, "_deliver", interrupt)
            with pytest.raises(KeyboardInterrupt):
                transport.receive([0])
        assert go_on()[0].error == "its process was replaced because the exchange with it was interrupted"
        transport.rebuild(0)
        assert num_steps(reset(transport, 0)[0]) == 0
    assert num_steps(step(transport, 1)[1]) == 1


def test_a_parent_that_was_away_for_long_does_not_take_a_long_reply_for_a_hang(
    make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            return np.ones(10_000_000, np.uint8), {}

    transport = make_transport(Large, step_timeout=5.0)
    transport.describe()
    transport.send_reset(0, seed=None)
    transport._selector.select()  # the first part of the reply is there, the rest waits for it to be read
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 1000.0)
    obs, _ = transport.receive([0])[0]
    assert obs.sum() == 10_000_000


def test_requests_larger_than_a_pipe_do_not_block(make_transport: MakeTransport) -> None:
    class Echo(CountingEnv):
        def step(self, action: Any) -> Any:
            return action, 1.0, False, False, {}

    transport = make_transport(Echo, Echo, envs_per_process=2)
    reset(transport, 0, 1)
    actions = [np.full(5_000_000, index, np.uint8) for index in range(2)]
    for index in range(2):
        transport.send_steps([index], [actions[index]])
    replies = transport.receive([0, 1])
    for index in range(2):
        np.testing.assert_array_equal(replies[index][0], actions[index])


def test_a_child_that_an_env_forked_hides_no_death_and_does_not_outlive_it(make_transport: MakeTransport) -> None:
    transport = make_transport(lambda: FaultyEnv(fork_child, at_step=0), lambda: FaultyEnv(fork_child, at_step=0))
    reset(transport, 0, 1)
    assert [num_steps(reply) for reply in step(transport, 0, 1).values()] == [1, 1]
    pids = [process_of(transport, index) for index in range(2)]
    children = [child for pid in pids for child in children_of(pid)]
    assert len(children) == 2
    os.kill(pids[0], signal.SIGKILL)
    assert step(transport, 0)[0].kind is FaultKind.KILLED
    wait_for_end(children[0])
    transport.close()
    wait_for_end(children[1])


@pytest.mark.parametrize("way", ["it is killed", "it is replaced", "it hangs", "it is closed"])
def test_a_session_that_an_env_started_ends_with_its_process(make_transport: MakeTransport, way: str) -> None:
    transport = make_transport(lambda: FaultyEnv(start_session, at_step=0), step_timeout=None)
    reset(transport, 0)
    worker, guardian = process_of(transport, 0), guardian_of(transport, 0)
    step(transport, 0)
    until = time.monotonic() + DEADLINE_SECONDS
    while len(children_of(guardian)) < 2:
        assert time.monotonic() < until, "the new session has another parent"
        time.sleep(0.01)
    (daemon,) = [pid for pid in children_of(guardian) if pid != worker]
    assert os.getsid(daemon) != os.getsid(worker)
    match way:
        case "it is killed":
            os.kill(worker, signal.SIGKILL)
            assert step(transport, 0)[0].kind is FaultKind.KILLED
        case "it is replaced":
            transport.rebuild(0)
        case "it hangs":
            transport._timeouts[Command.APPLY] = 0.2
            assert transport.apply(0, lambda env: hang_in_c()).kind is FaultKind.HUNG
        case "it is closed":
            transport.close()
    for pid in (daemon, worker, guardian):
        wait_for_end(pid)


def test_an_env_that_uses_too_much_memory_is_ended_and_told_so(make_transport: MakeTransport) -> None:
    transport = make_transport(lambda: FaultyEnv(eat_memory, at_step=0), CountingEnv, max_memory=300)
    reset(transport, 0, 1)
    replies = step(transport, 0, 1)
    assert replies[0].kind is FaultKind.KILLED
    assert re.fullmatch(r"its process used [3-9]\d\d MB of memory, more than max_memory=300", replies[0].error)
    assert num_steps(replies[1]) == 1


def test_an_env_that_kills_the_group_of_its_parent_costs_itself(make_transport: MakeTransport) -> None:
    transport = make_transport(lambda: FaultyEnv(kill_parent_group, at_step=0), CountingEnv)
    reset(transport, 0, 1)
    worker = process_of(transport, 0)
    replies = step(transport, 0, 1)
    assert (replies[0].kind, num_steps(replies[1])) == (FaultKind.KILLED, 1)
    wait_for_end(worker)


def test_an_env_that_closes_descriptors_is_not_taken_for_one_without_memory(make_transport: MakeTransport) -> None:
    def close_and_hang() -> None:
        close_descriptors()
        hang()

    transport = make_transport(*[partial(FaultyEnv, fault, at_step=0) for fault in (close_descriptors, close_and_hang)])
    reset(transport, 0, 1)
    for reply in step(transport, 0, 1).values():
        assert "closed a file descriptor that it did not open" in reply.error


@pytest.mark.parametrize("phase", Phase)
def test_a_keyboard_interrupt_that_an_env_raises_is_its_fault(make_transport: MakeTransport, phase: Phase) -> None:
    at = {Phase.MAKE: {"at_make": True}, Phase.RESET: {"at_reset": 0}, Phase.STEP: {"at_step": 0}, Phase.RENDER: {}}
    transport = make_transport(lambda: FaultyEnv(raise_keyboard_interrupt, **at[phase]))
    reply = reset(transport, 0)[0]
    if phase is Phase.STEP:
        reply = step(transport, 0)[0]
    elif phase is Phase.RENDER:
        reply = transport.apply(0, lambda env: raise_keyboard_interrupt())
    assert (reply.kind, reply.phase) == (FaultKind.RAISED, phase)
    assert "KeyboardInterrupt" in reply.error


def test_no_more_processes_start_at_a_time_than_there_are_cores(
    make_transport: MakeTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocesses, "NUM_CORES", 2)

    class Slow(CountingEnv):
        def __init__(self, index: int) -> None:
            super().__init__()
            mark = tmp_path / str(index)
            mark.touch()
            time.sleep(0.1)
            (tmp_path / f"seen by {index}").write_text(str(len(list(tmp_path.glob("?")))))
            mark.unlink()

    transport = make_transport(*[partial(Slow, index) for index in range(5)], start_timeout=30.0)
    assert sum(worker.is_started for worker in transport._workers.values()) == 2
    assert {num_steps(reply) for reply in reset(transport, *range(5)).values()} == {0}
    counts = [int(seen.read_text()) for seen in tmp_path.glob("seen by *")]
    assert len(counts) == 5
    assert max(counts) <= 2


def test_an_env_that_is_closed_or_replaced_before_its_process_starts_leaves_nothing(
    make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocesses, "NUM_CORES", 1)
    transport = make_transport(*[CountingEnv] * 3)
    transport.rebuild(2)
    transport.send_reset(1, seed=None)
    transport.rebuild(1)
    assert {num_steps(reply) for reply in reset(transport, 0, 1, 2).values()} == {0}
    transport = make_transport(*[CountingEnv] * 3)
    transport.send_reset(2, seed=None)
    transport.close()
    assert transport.receive([])[2].error == "the envs were closed"


def test_what_an_env_returns_and_cannot_be_sent_is_invalid(make_transport: MakeTransport) -> None:
    class Unsendable(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            return np.zeros(1), {"lock": threading.Lock()}

        def step(self, action: Any) -> Any:
            return np.zeros(1), 1.0, False, False, {"function": lambda x: x + 1}

    transport = make_transport(Unsendable)
    failed = reset(transport, 0)[0]
    assert (failed.kind, failed.phase) == (FaultKind.INVALID, Phase.RESET)
    assert "lock" in failed.error
    assert step(transport, 0)[0][4]["function"](1) == 2, "cloudpickle can send functions"


def test_a_function_that_cannot_be_sent_is_refused_before_any_process_starts() -> None:
    lock = threading.Lock()
    with pytest.raises(InvalidInputError, match="makes env 1 cannot be sent to another process: TypeError"):
        ProcessTransport([CountingEnv, lambda: lock])


@pytest.mark.parametrize("wrong", [{"envs_per_process": 0}, {"step_timeout": 0.0}, {"start_timeout": -1.0}])
def test_settings_that_cannot_be_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        ProcessTransport([CountingEnv], **wrong)


def test_workers_do_without_jax_and_compute_on_one_thread_unless_told_otherwise(
    make_transport: MakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(env: Any) -> tuple[bool, str]:
        import os
        import sys

        return "jax" in sys.modules, os.environ["OMP_NUM_THREADS"]

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert make_transport(CountingEnv).apply(0, look) == (False, "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert make_transport(CountingEnv).apply(0, look) == (False, "3")


def test_rebuilding_leaves_no_file_descriptor_and_no_zombie(make_transport: MakeTransport) -> None:
    transport = make_transport(CountingEnv)
    reset(transport, 0)
    before = len(os.listdir("/proc/self/fd")), len(children_of(os.getpid()))
    for _ in range(4):
        transport.rebuild(0)
        reset(transport, 0)
    assert (len(os.listdir("/proc/self/fd")), len(children_of(os.getpid()))) == before


def test_closing_leaves_no_process_and_no_shared_memory_in_a_program_that_goes_on(
    make_transport: MakeTransport,
) -> None:
    before, children = shared_memory(), children_of(os.getpid())
    bad_envs = [partial(FaultyEnv, fault_fn, at_step=0) for fault_fn in (kill_process, hang)]
    transport = make_transport(CountingEnv, *bad_envs, close_timeout=0.2)
    reset(transport, 0, 1, 2)
    transport.send_steps([0, 1, 2], [0, 0, 0])
    assert transport.receive([0, 1])[1].kind is FaultKind.KILLED
    transport.rebuild(1)
    reset(transport, 1)
    transport.close()
    assert set(children_of(os.getpid())) <= set(children)
    assert left_behind(before) == set()


PARENT = """
    import json, os, signal, sys, time
    from rookery.runners.transports.subprocesses import ProcessTransport
    from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv, fork_child, hang_in_c, start_session

    envs = ProcessTransport(
        [CountingEnv, lambda: FaultyEnv(fork_child, at_step=0), lambda: FaultyEnv(hang_in_c, at_step=0)],
        close_timeout=0.2,
    )
    for index in range(3):
        envs.send_reset(index, seed=None)
    envs.receive(range(3))
    workers = [envs.apply(index, lambda env: os.getpid()) for index in range(3)]
    envs.send_steps(range(3), [0, 0, 0])
    envs.receive([0, 1])
    envs.apply(0, lambda env: start_session())
    guardian = envs.apply(0, lambda env: os.getppid())

    def children_of(pid):
        return [int(child) for child in open(f"/proc/{pid}/task/{pid}/children").read().split()]

    while len(with_daemon := children_of(guardian)) < 2:
        time.sleep(0.01)
    [forked] = children_of(workers[1])
    if (child := os.fork()) == 0:
        while True:
            signal.pause()
    print(json.dumps({"workers": [*workers, forked, guardian, *with_daemon], "child": child}), flush=True)
"""
WAYS_TO_END = {
    "kill -9": ("envs.receive([2])", signal.SIGKILL, -signal.SIGKILL),
    "SIGTERM": ("envs.receive([2])", signal.SIGTERM, -signal.SIGTERM),
    "Ctrl-C": ("envs.receive([2])", signal.SIGINT, -signal.SIGINT),
    "close": ("envs.close(); envs.close()", None, 0),
    "the end of the script": ("", None, 0),
    "an error": ("raise SystemExit(4)", None, 4),
}


@pytest.mark.parametrize("way", WAYS_TO_END)
def test_no_process_and_no_shared_memory_is_left_behind_when_the_parent_ends(way: str) -> None:
    before = shared_memory()
    last_line, sent, exit_code = WAYS_TO_END[way]
    code = textwrap.dedent(PARENT) + last_line
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        try:
            if sent is not None:
                parent.send_signal(sent)
            assert parent.wait(DEADLINE_SECONDS) == exit_code
            for pid in pids["workers"]:
                wait_for_end(pid)
        finally:
            os.kill(pids["child"], signal.SIGKILL)
    wait_for_end(pids["child"])  # it would use what its parent left
    assert left_behind(before) == set()
