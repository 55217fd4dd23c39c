"""The guardian of a worker process: its parent, which ends it with all that it started, whatever happens.

Simulators may start processes in sessions of their own, which no signal to a process group reaches. Linux hands
processes without a parent to the guardian. So it finds all of them and waits for them. It ends them when the worker has
ended, when the worker uses too much memory, and when the trainer asks for it or is gone.

The guardian is forked before anything large is imported: nothing here imports more than a few small modules.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

SECONDS_PER_LOOK = 0.2
"""How often memory is looked at."""
EXITED, MEMORY = "exited", "memory"
"""What a guardian reports of its worker, with the exit code or the bytes."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def fork_worker(channel: int, lifeline: int, max_memory: int) -> None:
    """Fork the worker and return in it; the caller becomes its guardian, and never returns.

    The channel is for the worker, the lifeline for the guardian. The trainer closes its end of the lifeline when the
    worker is to end, and the system does so when the trainer is gone. The guardian writes there how the worker ended.
    `max_memory` is in bytes; 0 sets no limit.
    """
    woken, waker = os.pipe()
    for descriptor in (woken, waker):
        os.set_blocking(descriptor, False)
    guardian = os.getpid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *received: None)
    worker = os.fork()
    if worker == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)  # a signal to the group of the worker spares the guardian
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for descriptor in (woken, waker, lifeline):
            os.close(descriptor)
        if os.getppid() != guardian:  # it is gone already
            os._exit(1)
        return
    os.close(channel)  # so that the trainer sees when the worker closes it
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    _guard(worker, lifeline, woken, max_memory)


def _guard(worker: int, lifeline: int, woken: int, max_memory: int) -> NoReturn:
    report = ""
    try:
        report = _watched(worker, lifeline, woken, max_memory)
    finally:
        if not report.startswith(EXITED):
            with contextlib.suppress(OSError):
                os.kill(worker, signal.SIGKILL)
        if sys.platform != "linux":
            with contextlib.suppress(OSError):
                os.killpg(worker, signal.SIGKILL)
        _end_children()
        with contextlib.suppress(OSError):
            os.write(lifeline, report.encode())
        os._exit(0)


def _watched(worker: int, lifeline: int, woken: int, max_memory: int) -> str:
    """Wait until the worker has ended or is to end; return the report."""
    events = select.poll()
    events.register(lifeline, select.POLLIN)
    events.register(woken, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in events.poll(SECONDS_PER_LOOK * 1000 if max_memory else None)]
        if lifeline in ready:
            return ""
        if woken in ready:
            os.read(woken, 4096)
        while (ended := _reaped())[0]:
            if ended[0] == worker:
                return f"{EXITED} {os.waitstatus_to_exitcode(ended[1])}"
        if max_memory and (used := sum(map(_resident_bytes, _descendants(os.getpid())))) > max_memory:
            return f"{MEMORY} {used}"


def _reaped() -> tuple[int, int]:
    """Return the id and status of a child that has ended; the id is 0 if there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def _end_children() -> None:
    """Kill all children and wait for them; their children become ours, until there is none."""
    while True:
        for child in _children(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has just ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as listed:
                children += map(int, listed.read().split())
    return children


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as sizes:
            return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _prctl(option: int, value: int) -> None:
    """Set a property of this process, where there is Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
