"""Environments in other processes: one that hangs, crashes or is killed affects its own process only."""

import itertools
import math
import os
import pickle
import selectors
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from rookery.errors import InvalidInputError, check_count
from rookery.runners.faults import Failed, FaultKind, Phase, error_text
from rookery.runners.transports.transport import EnvTransport, MakeEnvFn, Reply, check_all_asked
from rookery.runners.transports.worker import PHASES, Command
from rookery.runners.transports.worker_process import REPLACED, WorkerProcess

PATIENCE = 0.1
"""The share of `step_timeout` after which a silent env is late."""
NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
INTERRUPTED = (FaultKind.KILLED, f"{REPLACED}the exchange with it was interrupted")


class ProcessTransport(EnvTransport):
    """Environments in other processes, `envs_per_process` in each.

    The functions that make them are sent by cloudpickle, and messages are pickled: both ends are ours, and nothing is
    written to a file or read from elsewhere. An env that does not answer within `step_timeout` seconds, or is not built
    within `start_timeout`, is killed with its process, and the other envs there fail too; so are those whose process
    and its children use more than `max_memory` megabytes. Envs that share a process take turns; the time of each counts
    from the start of its turn. As many processes start at a time as there are cores. `close` gives them `close_timeout`
    seconds.
    """

    is_asynchronous = True

    def __init__(
        self,
        make_env_fns: Sequence[MakeEnvFn],
        *,
        envs_per_process: int = 1,
        step_timeout: float | None = None,
        start_timeout: float | None = 60.0,
        max_memory: float | None = None,
        close_timeout: float = 5.0,
    ) -> None:
        if os.name != "posix":
            raise InvalidInputError(f"envs in processes need Linux or macOS, not {sys.platform}: use processes=False.")
        check_count("the number of envs", len(make_env_fns))
        check_count("envs_per_process", envs_per_process)
        for name, limit, unit in [
            ("step_timeout", step_timeout, "seconds"),
            ("start_timeout", start_timeout, "seconds"),
            ("max_memory", max_memory, "megabytes"),
        ]:
            if limit is not None and not limit > 0:
                raise InvalidInputError(f"{name}={limit} must be more than 0 {unit}, or None for no limit.")
        if max_memory is not None and sys.platform != "linux":
            raise InvalidInputError(f"max_memory={max_memory} needs Linux, not {sys.platform}: set it to None.")
        self.num_envs = len(make_env_fns)
        self.patience = None if step_timeout is None else PATIENCE * step_timeout
        self._factories = [_pickled_factory(index, make_env_fn) for index, make_env_fn in enumerate(make_env_fns)]
        self._envs_per_process = envs_per_process
        self._max_memory = max_memory
        self._timeouts = dict.fromkeys(Command, step_timeout) | {Command.MAKE: start_timeout}
        self._next_check = math.inf
        """No process is overdue before this time."""
        self._numbers = itertools.count(1)
        self._awaited: dict[int, int] = {}
        """The number of the pending reset or step of each env; a reply with another number is outdated."""
        self._replies: dict[int, Reply] = {}
        self._answers: dict[int, Any] = {}
        """The pending calls of `apply`, by number."""
        self._down: dict[int, Failed] = {}
        """The failures of envs that are gone, until they are rebuilt."""
        self._workers: dict[int, WorkerProcess] = {}
        """The processes, by their first slot."""
        self._unstarted: deque[WorkerProcess] = deque()
        """Those of them that wait until others have started."""
        self._selector = selectors.DefaultSelector()
        self._finalizer = weakref.finalize(self, _shut_down, os.getpid(), self._workers, self._selector, close_timeout)
        for index in range(self.num_envs):
            self._make(index)

    def send_reset(self, index: int, seed: int | None) -> None:
        if worker := self._ask(index, Command.RESET, _message(Command.RESET, index, seed)):
            worker.flush()

    def send_steps(self, indexes: Sequence[int], actions: Sequence[Any]) -> None:
        messages = [_message(Command.STEP, index, action) for index, action in zip(indexes, actions, strict=True)]
        asked = [self._ask(index, Command.STEP, message) for index, message in zip(indexes, messages, strict=True)]
        for worker in dict.fromkeys(asked):
            if worker is not None:
                worker.flush()

    def receive(self, wait_for: Collection[int] = (), timeout: float | None = None) -> dict[int, Reply]:
        until = math.inf if timeout is None else time.monotonic() + timeout
        self._take_all()
        missing = [index for index in wait_for if index not in self._replies]
        check_all_asked(missing, self._awaited)
        while missing and time.monotonic() < until:
            self._wait(until)
            missing = [index for index in missing if index not in self._replies]
        replies, self._replies = self._replies, {}
        return replies

    def receive_any(self, timeout: float | None = None) -> dict[int, Reply]:
        until = math.inf if timeout is None else time.monotonic() + timeout
        self._take_all()
        while self._awaited and not self._replies and time.monotonic() < until:
            self._wait(until)
        replies, self._replies = self._replies, {}
        return replies

    def rebuild(self, index: int) -> None:
        """Rebuild an env: in a new process if it is alone there, or owes a reply."""
        if not self._finalizer.alive:
            return
        self._take_all()
        worker = self._workers.get(self._first(index))
        if worker is not None:
            is_busy = any(slot == index for slot, _ in worker.open.values())
            if is_busy or len(worker.slots) == 1:
                self._lose(worker, FaultKind.KILLED, f"{REPLACED}env {index} was rebuilt while it was busy")
        self._make(index)

    def apply(self, index: int, function: Callable[[Any], Any]) -> Any | Failed:
        self._take_all()
        self._answers.clear()
        if failed := self._down.get(index):
            return failed
        message = _message(Command.APPLY, index, cloudpickle.dumps(function))
        worker, number = self._put(index, Command.APPLY, message)
        worker.flush()
        while number not in self._answers:
            self._wait(math.inf)
        return self._answers.pop(number)

    def close(self) -> None:
        self._finalizer()
        closed = Failed(FaultKind.EXITED, Phase.MAKE, "the envs were closed")
        self._down = dict.fromkeys(range(self.num_envs), closed)
        self._replies |= dict.fromkeys(self._awaited, closed)
        self._awaited.clear()

    def _first(self, index: int) -> int:
        """Return the first slot of the process of this one."""
        return index - index % self._envs_per_process

    def _make(self, index: int) -> None:
        """Request that an env is built, in a new process if needed."""
        for what_was in (self._down, self._awaited, self._replies):
            what_was.pop(index, None)
        first = self._first(index)
        if first not in self._workers:
            slots = range(first, min(first + self._envs_per_process, self.num_envs))
            self._workers[first] = WorkerProcess(slots, self._selector, self._max_memory)
            self._unstarted.append(self._workers[first])
        worker, _ = self._put(index, Command.MAKE, _message(Command.MAKE, index, self._factories[index]))
        worker.flush()
        self._start_some()

    def _start_some(self) -> None:
        """Start processes that wait, as long as fewer are starting than there are cores."""
        while self._unstarted and sum(worker.is_starting for worker in self._workers.values()) < NUM_CORES:
            worker = self._unstarted.popleft()
            try:
                worker.start()
                self._expect(worker)
            except OSError as error:
                self._lose(worker, FaultKind.RAISED, error_text(error))

    def _ask(self, index: int, command: Command, message: bytes) -> WorkerProcess | None:
        """Queue a request whose reply is received later; an env that is gone replies at once."""
        self._replies.pop(index, None)
        worker = self._workers.get(self._first(index))
        if worker is not None and not worker.is_intact:
            self._lose(worker, *INTERRUPTED)
        if failed := self._down.get(index):
            phase = Phase.MAKE if failed.phase is Phase.MAKE else PHASES[command]
            self._replies[index] = replace(failed, phase=phase)
            return None
        worker, self._awaited[index] = self._put(index, command, message)
        return worker

    def _put(self, index: int, command: Command, message: bytes) -> tuple[WorkerProcess, int]:
        worker, number = self._workers[self._first(index)], next(self._numbers)
        worker.put(number, index, command, message)
        self._expect(worker)
        return worker, number

    def _take_all(self) -> None:
        """Take the available replies without waiting, and complete what an interruption left undone."""
        for worker in list(self._workers.values()):
            if not worker.is_intact:
                self._lose(worker, *INTERRUPTED)
            elif worker.has_unsent:
                worker.flush()
        if self._workers:
            self._pump(0.0)

    def _wait(self, until: float) -> None:
        """Wait until a message arrives, a process is overdue or the time is over."""
        seconds = min(until, self._next_check) - time.monotonic()
        self._pump(None if seconds == math.inf else max(seconds, 0.0))
        if time.monotonic() >= self._next_check:
            self._end_overdue()

    def _pump(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            worker: WorkerProcess = key.data
            if self._workers.get(worker.slots.start) is not worker:
                continue
            worker.flush()
            worker.read(self._deliver)
            if worker.is_cut or key.fd == worker.sentinel:
                self._lose(worker, *worker.end())
            else:
                self._expect(worker)
        if self._unstarted:
            self._start_some()

    def _deliver(self, number: int, index: int, command: Command, content: bytes) -> None:
        if command is Command.APPLY:
            self._answers[number] = _loaded(content, command)
        elif self._awaited.get(index) == number:
            self._replies[index] = _loaded(content, command)
            del self._awaited[index]

    def _expect(self, worker: WorkerProcess) -> None:
        """Update the time at which a process is overdue with its oldest request."""
        if worker.oldest is not None and worker.is_started:
            _, command = worker.oldest
            timeout = self._timeouts[command]
            if timeout is not None:
                self._next_check = min(self._next_check, worker.since + timeout)

    def _end_overdue(self) -> None:
        self._next_check = math.inf
        for worker in list(self._workers.values()):
            if worker.oldest is None or not worker.is_started:
                continue
            index, command = worker.oldest
            timeout = self._timeouts[command]
            if timeout is not None and time.monotonic() >= worker.since + timeout:
                self._lose(worker, FaultKind.HUNG, f"no answer within {timeout} s", culprit=index)
            else:
                self._expect(worker)

    def _lose(self, worker: WorkerProcess, kind: FaultKind, error: str, culprit: int | None = None) -> None:
        """Give up a process: all its envs fail, with the name of the env that caused it, if it is known."""
        worker.is_intact = False
        worker.end()
        commands: dict[int, Command] = {}
        for index, command in worker.open.values():
            commands.setdefault(index, command)
        for index in worker.slots:
            phase = PHASES[commands.get(index, Command.STEP)]
            failed = Failed(kind, phase, error)
            if culprit not in (None, index):
                failed = Failed(FaultKind.KILLED, phase, f"{REPLACED}env {culprit} hung")
            failed = self._down.setdefault(index, failed)
            if index in self._awaited:
                self._replies[index] = failed
                del self._awaited[index]
        for number, (index, command) in worker.open.items():
            if command is Command.APPLY:
                self._answers[number] = self._down[index]
        del self._workers[worker.slots.start]
        if worker in self._unstarted:
            self._unstarted.remove(worker)


def _shut_down(
    owner: int,
    workers: dict[int, WorkerProcess],
    selector: selectors.BaseSelector,
    close_timeout: float,
) -> None:
    """Ask all processes to close their envs and end; kill those that do not."""
    if os.getpid() != owner:  # in a fork of the parent
        return
    until = time.monotonic() + close_timeout
    running = {worker for worker in workers.values() if worker.is_intact and worker.is_started}
    try:
        for worker in running:
            worker.put(0, worker.slots.start, Command.CLOSE, _message(Command.CLOSE, worker.slots.start, None))
            worker.flush()
        while running and (seconds := until - time.monotonic()) > 0:
            for key, _ in selector.select(seconds):
                worker = key.data
                if worker in running:
                    worker.flush()
                    worker.read(lambda *late: None)
                    if worker.is_cut or key.fd == worker.sentinel:
                        worker.end()
                        running.remove(worker)
    finally:
        for worker in workers.values():
            worker.end()
        workers.clear()
        selector.close()


def _pickled_factory(index: int, make_env_fn: MakeEnvFn) -> bytes:
    try:
        return cloudpickle.dumps(make_env_fn)
    except Exception as error:
        raise InvalidInputError(
            f"the function that makes env {index} cannot be sent to another process: {error!r}. Let it make all it "
            "needs itself, so that it holds no open files, locks or running envs."
        ) from error


def _message(command: Command, index: int, argument: Any) -> bytes:
    return pickle.dumps((command.value, index, argument), pickle.HIGHEST_PROTOCOL)


def _loaded(content: bytes, command: Command) -> Reply:
    try:
        return pickle.loads(content)
    except Exception as error:  # of a class that cannot be imported here
        return Failed.by_exception(error, PHASES[command], FaultKind.INVALID)
