"""A worker process as the parent sees it: start, messages without blocking, and its end."""

import contextlib
import marshal
import math
import mmap
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

from rookery.runners.faults import FaultKind
from rookery.runners.transports.guardian import EXITED, MEMORY
from rookery.runners.transports.worker import CHANNEL_LOST, HEADER, OUTBOX_SIZE, Command, split

START = (
    "import sys; channel, lifeline, outbox, max_memory = map(int, sys.argv[1:5]); sys.path[:] = sys.argv[5:]; "
    "from rookery.runners.transports.guardian import fork_worker; fork_worker(channel, lifeline, max_memory); "
    "from rookery.runners.transports.worker import main; main(channel, outbox)"
)
"""The command of the process. It does not use `multiprocessing`, which would run the user's script again."""
REPLACED = "its process was replaced because "
CLOSED = "the env closed a file descriptor that it did not open, the connection to the trainer"
SECONDS_TO_END = 5.0
SECONDS_TO_EXIT = 1.0
"""Time for a process that has closed its socket to end."""
MEGABYTE = 1_000_000

DeliverFn = Callable[[int, Command, tuple], None]
"""Takes the slot and the command of a request and the reply, packed."""

_BUFFER = memoryview(bytearray(1 << 16))
_LIFELINES: set[socket.socket] = set()
"""Sockets that this process holds while it lives; forked children close them."""


def _let_go_of_lifelines() -> None:
    for lifeline in _LIFELINES:
        lifeline.close()
    _LIFELINES.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_lifelines)


class WorkerProcess:
    """One process with the envs of some slots, and its unanswered requests, oldest first.

    Reading and writing never block. Requests wait until the process is started. It consists of a guardian and the
    worker, its child: the guardian ends the worker and all that this has started. `max_memory` is in megabytes.
    """

    def __init__(self, slots: range, selector: selectors.BaseSelector, max_memory: float | None = None) -> None:
        self.slots = slots
        self.open: dict[int, tuple[int, Command]] = {}
        """The slot and command of each request, by number."""
        self.since = time.monotonic()
        """When the turn of the oldest request began, or the last message came."""
        self.is_cut = False
        """True when nothing more can come from the process."""
        self.is_intact = True
        """False during an exchange; if it stays False, as after Ctrl-C, messages may be lost."""
        self.is_started = False
        self.unsent = bytearray()
        self.sentinel: int | None = None
        self._process: subprocess.Popen | None = None
        self._cause: tuple[FaultKind, str] | None = None
        """How the process ended."""
        self._max_memory = max_memory
        self._events = selectors.EVENT_READ
        self._received = bytearray()
        self._selector = selector

    def start(self) -> None:
        """Start the process; raise `OSError` if that fails."""
        self.is_intact = False
        self._channel, their_channel = socket.socketpair()
        self._lifeline, their_lifeline = socket.socketpair()
        self._channel.setblocking(False)
        self._lifeline.setblocking(False)
        _LIFELINES.add(self._lifeline)
        self.is_started = True
        outbox = _nameless_file(OUTBOX_SIZE)
        descriptors = (their_channel.fileno(), their_lifeline.fileno(), outbox)
        arguments = (*descriptors, int((self._max_memory or 0) * MEGABYTE), *sys.path)
        try:
            self._outbox = mmap.mmap(outbox, OUTBOX_SIZE)
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, *map(str, arguments)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": "1"} | os.environ,
                process_group=0,
            )
        finally:
            their_channel.close()
            their_lifeline.close()
            os.close(outbox)
        # Outside Linux only the socket shows that a process ended, unless a child of it holds it open.
        self.sentinel = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        self._selector.register(self._channel, selectors.EVENT_READ, self)
        if self.sentinel is not None:
            self._selector.register(self.sentinel, selectors.EVENT_READ, self)
        self.flush()

    @property
    def is_starting(self) -> bool:
        """Whether the process builds its envs."""
        return self.is_started and any(command is Command.MAKE for _, command in self.open.values())

    @property
    def oldest(self) -> tuple[int, Command] | None:
        """The slot and command of the present request."""
        return next(iter(self.open.values()), None)

    def due(self, timeouts: Mapping[Command, float | None]) -> float:
        """Return when the process is overdue with its oldest request."""
        timeout = None if self.oldest is None else timeouts[self.oldest[1]]
        return math.inf if timeout is None else self.since + timeout

    def put(self, command: Command, number: int, slots: list[int], content: bytes) -> None:
        """Send a request to some envs, which have this number and the next ones; queue what cannot be sent now."""
        self.is_intact = False
        if not self.open:
            self.since = time.monotonic()
        message = marshal.dumps((command.value, number, slots, content))
        for slot in slots:
            self.open[number] = (slot, command)
            number += 1
        message = HEADER.pack(len(message)) + message
        if self.is_started and not self.unsent:
            try:
                message = message[self._channel.send(message) :]  # mostly: nothing is left
                self.since = time.monotonic()
            except OSError:
                pass  # `flush` finds out why
        if message:
            self.unsent += message
            self.flush()
        self.is_intact = True

    def flush(self) -> None:
        """Send as much as possible; the selector reports when the rest can be sent."""
        if not self.is_started:
            return
        self.is_intact = False
        events = selectors.EVENT_READ
        try:
            while self.unsent:
                del self.unsent[: self._channel.send(self.unsent)]
                self.since = time.monotonic()
        except BlockingIOError:
            events |= selectors.EVENT_WRITE
        except OSError:
            self.unsent.clear()  # nobody will read it: the end of the process is detected elsewhere
        if self._events != events:
            self._selector.modify(self._channel, events, self)
            self._events = events
        self.is_intact = True

    def read(self, deliver_fn: DeliverFn) -> None:
        """Deliver the complete replies."""
        self.is_intact = False
        received = self._received
        self._read_bytes()
        if len(received) >= HEADER.size:
            self._deliver(received, deliver_fn)
        self.is_intact = True

    def read_outbox(self, deliver_fn: DeliverFn) -> None:
        """Deliver the replies that the process has not sent because it waits for the next env."""
        (length,) = HEADER.unpack_from(self._outbox)
        self._deliver(bytearray(self._outbox[HEADER.size : HEADER.size + length]), deliver_fn)

    def _deliver(self, received: bytearray, deliver_fn: DeliverFn) -> None:
        for message in split(received):
            for reply in marshal.loads(message):
                if reply[0] in self.open:
                    deliver_fn(*self.open.pop(reply[0]), reply)

    def end(self) -> tuple[FaultKind, str]:
        """End the process, if it has not ended, with all that it started; return how it ended."""
        if not self.is_started:
            return FaultKind.KILLED, f"{REPLACED}it had not started"
        if self._cause is None:
            if not (self.is_cut and self._has_ended_within(SECONDS_TO_EXIT)):
                with contextlib.suppress(OSError):
                    self._lifeline.shutdown(socket.SHUT_WR)
                if not self._has_ended_within(SECONDS_TO_END):
                    self._process.kill()  # type: ignore[union-attr]
            self._cause = self._read_cause()
        for watched in (self._channel, self.sentinel):
            with contextlib.suppress(KeyError, ValueError):  # not there, as after an interruption
                self._selector.unregister(watched)  # type: ignore[arg-type]
        self._channel.close()
        _LIFELINES.discard(self._lifeline)
        self._lifeline.close()
        if self.sentinel is not None:
            sentinel, self.sentinel = self.sentinel, None
            os.close(sentinel)
        return self._cause

    def _has_ended_within(self, seconds: float) -> bool:
        if self._process is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def _read_cause(self) -> tuple[FaultKind, str]:
        """Read how the process ended: from its guardian, unless this was killed."""
        try:
            what, _, number = self._lifeline.recv(100).decode().partition(" ")
        except OSError:
            what = ""
        if what == MEMORY:
            used, limit = int(number) / MEGABYTE, self._max_memory
            return FaultKind.KILLED, f"its process used {used:,.0f} MB of memory, more than max_memory={limit:,g}"
        if what == EXITED:
            return _cause(int(number))
        if self._process is None:
            return FaultKind.KILLED, f"{REPLACED}its start was interrupted"
        if self.is_cut and self._process.returncode == 0:
            return FaultKind.KILLED, f"{REPLACED}{CLOSED}"
        return _cause(self._process.returncode)

    def _read_bytes(self) -> None:
        try:
            while num_bytes := self._channel.recv_into(_BUFFER):
                self._received += _BUFFER[:num_bytes]
                self.since = time.monotonic()
                if num_bytes < len(_BUFFER):  # mostly: there is no more
                    return
            self.is_cut = True
        except BlockingIOError:
            pass
        except OSError:
            self.is_cut = True


def _nameless_file(num_bytes: int) -> int:
    """Return the descriptor of a file of zeros without a name, so that none is left whoever is killed."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("outbox")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, num_bytes)
    return descriptor


def _cause(exit_code: int | None) -> tuple[FaultKind, str]:
    """Describe how a process ended."""
    if exit_code is None:
        return FaultKind.HUNG, "its process cannot be ended"
    if exit_code == CHANNEL_LOST:
        return FaultKind.EXITED, f"its process ended because {CLOSED}"
    if exit_code >= 0:
        return FaultKind.EXITED, f"its process exited with code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", which the system sends when memory runs out" if -exit_code == signal.SIGKILL else ""
    return FaultKind.KILLED, f"its process was ended by {name}{hint}"
