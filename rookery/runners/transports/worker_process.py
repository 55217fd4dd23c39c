"""A worker process as the parent sees it: start, messages without blocking, and its end."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from rookery.runners.faults import FaultKind
from rookery.runners.transports.guardian import EXITED, MEMORY
from rookery.runners.transports.worker import CHANNEL_LOST, HEADER, Command

START = (
    "import sys; channel, lifeline, max_memory = map(int, sys.argv[1:4]); sys.path[:] = sys.argv[4:]; "
    "from rookery.runners.transports.guardian import fork_worker; fork_worker(channel, lifeline, max_memory); "
    "from rookery.runners.transports.worker import main; main(channel)"
)
"""The command of the process. It does not use `multiprocessing`, which would run the user's script again."""
REPLACED = "its process was replaced because "
CLOSED = "the env closed a file descriptor that it did not open, the connection to the trainer"
SECONDS_TO_END = 5.0
SECONDS_TO_EXIT = 1.0
"""Time for a process that has closed its socket to end."""
MEGABYTE = 1_000_000

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
        self.sentinel: int | None = None
        self._cause: tuple[FaultKind, str] | None = None
        """How the process ended."""
        self._max_memory = max_memory
        self._unsent = bytearray()
        self._received = bytearray()
        self._selector = selector

    def start(self) -> None:
        """Start the process; raise `OSError` if that fails."""
        self._channel, their_channel = socket.socketpair()
        self._lifeline, their_lifeline = socket.socketpair()
        self._channel.setblocking(False)
        self._lifeline.setblocking(False)
        _LIFELINES.add(self._lifeline)
        descriptors = (their_channel.fileno(), their_lifeline.fileno())
        arguments = (*descriptors, int((self._max_memory or 0) * MEGABYTE), *sys.path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, *map(str, arguments)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": "1"} | os.environ,
                process_group=0,
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            their_channel.close()
            their_lifeline.close()
        self.is_started = True
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

    @property
    def has_unsent(self) -> bool:
        return len(self._unsent) > 0

    def put(self, number: int, slot: int, command: Command, message: bytes) -> None:
        """Queue a request for the next `flush`."""
        self.is_intact = False
        if not self.open:
            self.since = time.monotonic()
        self.open[number] = (slot, command)
        self._unsent += HEADER.pack(number, len(message))
        self._unsent += message
        self.is_intact = True

    def flush(self) -> None:
        """Send as much as possible; the selector reports when the rest can be sent."""
        if not self.is_started:
            return
        self.is_intact = False
        events = selectors.EVENT_READ
        try:
            while self._unsent:
                del self._unsent[: self._channel.send(self._unsent)]
                self.since = time.monotonic()
        except BlockingIOError:
            events |= selectors.EVENT_WRITE
        except OSError:
            self._unsent.clear()  # nobody will read it: the end of the process is detected elsewhere
        if self._selector.get_key(self._channel).events != events:
            self._selector.modify(self._channel, events, self)
        self.is_intact = True

    def read(self, deliver_fn: Callable[[int, int, Command, bytes], None]) -> None:
        """Iterate over the complete replies: number, slot, command and the reply itself."""
        self.is_intact = False
        self._read_bytes()
        for number, content in self._messages():
            deliver_fn(number, *self.open.pop(number), content)
        self.is_intact = True

    def end(self) -> tuple[FaultKind, str]:
        """End the process, if it has not ended, with all that it started; return how it ended."""
        if not self.is_started:
            return FaultKind.KILLED, f"{REPLACED}it had not started"
        if self._cause is None:
            if not (self.is_cut and self._has_ended_within(SECONDS_TO_EXIT)):
                with contextlib.suppress(OSError):
                    self._lifeline.shutdown(socket.SHUT_WR)
                if not self._has_ended_within(SECONDS_TO_END):
                    self._process.kill()
            self._cause = self._read_cause()
        if self._channel.fileno() >= 0:
            self._selector.unregister(self._channel)
            self._let_go()
        if self.sentinel is not None:
            self._selector.unregister(self.sentinel)
            os.close(self.sentinel)
            self.sentinel = None
        return self._cause

    def _has_ended_within(self, seconds: float) -> bool:
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
        if self.is_cut and self._process.returncode == 0:
            return FaultKind.KILLED, f"{REPLACED}{CLOSED}"
        return _cause(self._process.returncode)

    def _let_go(self) -> None:
        self._channel.close()
        _LIFELINES.discard(self._lifeline)
        self._lifeline.close()

    def _read_bytes(self) -> None:
        try:
            while chunk := self._channel.recv(1 << 18):
                self._received += chunk
                self.since = time.monotonic()
            self.is_cut = True
        except BlockingIOError:
            pass
        except OSError:
            self.is_cut = True

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        while len(self._received) >= HEADER.size:
            number, length = HEADER.unpack_from(self._received)
            end = HEADER.size + length
            if len(self._received) < end:
                return
            content = bytes(memoryview(self._received)[HEADER.size : end])
            del self._received[:end]
            yield number, content


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
