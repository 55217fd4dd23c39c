"""Environments in other processes: one that hangs, crashes or is killed affects its own process only."""

import math
import os
import pickle
import select
import selectors
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from rookery.cores import NUM_CORES
from rookery.errors import InvalidInputError, check_count
from rookery.runners.faults import Failed, FaultKind, Phase, error_text
from rookery.runners.transports.transport import EnvTransport, MakeEnvFn, Reply, check_all_asked
from rookery.runners.transports.worker import PHASES, Command
from rookery.runners.transports.worker_process import REPLACED, WorkerProcess

PATIENCE = 0.1
"""The share of `step_timeout` after which a silent env is late."""
MAX_SELECTABLE = 1024
"""`select` takes only descriptors below this one."""
INTERRUPTED = (FaultKind.KILLED, f"{REPLACED}the exchange with it was interrupted")


class Linger:
    """How long to wait for the other envs after the first reply: as long as the policy takes to act.

    A policy acts on all envs nearly as fast as on one, so it pays to wait for those that answer soon. It does not if
    some of them take longer: then the runner tries it only now and then.
    """

    GROWTH = 1.1
    """How fast the time may grow from act to act: the caller may do something else in between."""
    MAX_SCORE = 16
    WAITS_PER_TRIAL = 32

    def __init__(self) -> None:
        self.seconds = 0.001
        self._score = self.MAX_SCORE
        """Positive if all came in at least one of four waits."""
        self._num_waits = 0
        self._taken_at: float | None = None

    def note_replies(self) -> None:
        self._taken_at = time.monotonic()

    def note_act(self) -> None:
        if self._taken_at is not None:
            self.seconds = min(time.monotonic() - self._taken_at, self.GROWTH * self.seconds)
            self._taken_at = None

    def begin(self) -> bool:
        """Return whether to wait."""
        self._num_waits += 1
        return self._score > 0 or self._num_waits % self.WAITS_PER_TRIAL == 0

    def end(self, all_came: bool) -> None:
        self._score = min(self._score + 3, self.MAX_SCORE) if all_came else max(self._score - 1, 0)


class ProcessTransport(EnvTransport):
    """Environments in other processes, `envs_per_process` in each.

    The functions that make them are sent by cloudpickle, and messages are pickled: both ends are ours, and nothing is
    read from elsewhere. The envs of a process are asked in one message, and answer in one unless that takes long. An
    env that does not answer within `step_timeout` seconds, or is not built within `start_timeout`, is killed with its
    process, and the other envs there fail too; so are those whose process and its children use more than `max_memory`
    megabytes. Envs that share a process take turns; the time of each counts from the start of its turn. As many
    processes start at a time as there are cores. `close` gives them `close_timeout` seconds.
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
        self._linger = Linger()
        self._next_check = math.inf
        """No process is overdue before this time."""
        self._next_number = 1
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
        self._can_linger = self._selector.fileno() < MAX_SELECTABLE
        self._finalizer = weakref.finalize(self, _shut_down, os.getpid(), self._workers, self._selector, close_timeout)
        for index in range(self.num_envs):
            self._make(index)

    def send_reset(self, index: int, seed: int | None) -> None:
        self._settle()
        if self._is_up(index, Command.RESET):
            self._ask(self._workers[self._first(index)], Command.RESET, [index], [seed])

    def send_steps(self, indexes: Sequence[int], actions: Sequence[Any]) -> None:
        self._linger.note_act()
        self._settle()
        by_process: dict[int, tuple[list[int], list[Any]]] = {}
        for index, action in zip(indexes, actions, strict=True):
            if not self._down or self._is_up(index, Command.STEP):
                of_process = by_process.setdefault(self._first(index), ([], []))
                of_process[0].append(int(index))
                of_process[1].append(action)
        for first, (indexes_there, actions_there) in by_process.items():
            self._ask(self._workers[first], Command.STEP, indexes_there, actions_there)

    def receive(self, wait_for: Collection[int] = (), timeout: float | None = None) -> dict[int, Reply]:
        if wait_for or not self._replies:
            self._take_all()
        missing = [index for index in wait_for if index not in self._replies]
        check_all_asked(missing, self._awaited)
        until = math.inf if timeout is None else time.monotonic() + timeout
        while missing and time.monotonic() < until:
            self._wait(until)
            missing = [index for index in missing if index not in self._replies]
        self._linger.note_replies()
        replies, self._replies = self._replies, {}
        return replies

    def wait(self, timeout: float | None = None) -> None:
        self._settle()
        until = math.inf if timeout is None else time.monotonic() + timeout
        while self._awaited and not self._replies:
            if time.monotonic() >= until:
                self._pump(0.0)
                return
            self._wait(until)
        if self._awaited and timeout != 0 and self._can_linger and self._linger.begin():
            self._wait_for_all(min(until, time.monotonic() + self._linger.seconds))
            self._linger.end(all_came=not self._awaited)

    def _wait_for_all(self, until: float) -> None:
        while self._awaited and (seconds := until - time.monotonic()) > 0:
            # Only `select` waits for less than a millisecond.
            if not select.select([self._selector], [], [], seconds)[0]:
                return
            self._pump(0.0)

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
        worker = self._workers[self._first(index)]
        number = self._put(worker, Command.APPLY, [index], _pickled([cloudpickle.dumps(function)]))
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
        first = self._first(index)
        worker = self._workers.get(first)
        if worker is None:
            slots = range(first, min(first + self._envs_per_process, self.num_envs))
            worker = WorkerProcess(slots, self._selector, self._max_memory)
            worker.is_intact = False
            self._workers[first] = worker
            self._unstarted.append(worker)
        self._put(worker, Command.MAKE, [index], _pickled([self._factories[index]]))
        for what_was in (self._awaited, self._replies, self._down):
            what_was.pop(index, None)
        self._start_some()

    def _start_some(self) -> None:
        """Start processes that wait, as long as fewer are starting than there are cores."""
        while self._unstarted and sum(worker.is_starting for worker in self._workers.values()) < NUM_CORES:
            worker = self._unstarted[0]
            worker.is_intact = False  # until it has started
            self._unstarted.popleft()
            try:
                worker.start()
                self._next_check = min(self._next_check, worker.due(self._timeouts))
            except OSError as error:
                self._lose(worker, FaultKind.RAISED, error_text(error))

    def _is_up(self, index: int, command: Command) -> bool:
        """Return whether an env can be asked; one that is gone replies at once."""
        failed = self._down.get(index)
        if failed is not None:
            phase = Phase.MAKE if failed.phase is Phase.MAKE else PHASES[command]
            self._replies[index] = replace(failed, phase=phase)
        return failed is None

    def _ask(self, worker: WorkerProcess, command: Command, indexes: list[int], arguments: list[Any]) -> None:
        """Send a request whose replies are received later."""
        content, number = _pickled(arguments), self._next_number
        for index in indexes:
            self._replies.pop(index, None)
            self._awaited[index] = number
            number += 1
        self._put(worker, command, indexes, content)

    def _put(self, worker: WorkerProcess, command: Command, indexes: list[int], content: bytes) -> int:
        """Send a request; return the number of its first env."""
        number = self._next_number
        self._next_number += len(indexes)
        worker.put(command, number, indexes, content)
        timeout = self._timeouts[command]
        if timeout is not None and worker.is_started and worker.since + timeout < self._next_check:
            self._next_check = worker.since + timeout
        return number

    def _settle(self) -> None:
        """Complete what an interruption left undone."""
        for worker in list(self._workers.values()):
            if not worker.is_intact:
                self._lose(worker, *INTERRUPTED)
            elif worker.unsent:
                worker.flush()

    def _take_all(self) -> None:
        """Take the available replies without waiting."""
        self._settle()
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
            if worker.unsent:
                worker.flush()
            worker.read(self._deliver)
            if worker.is_cut or key.fd == worker.sentinel:
                self._lose(worker, *worker.end())
        if self._unstarted:
            self._start_some()

    def _deliver(self, index: int, command: Command, reply: tuple) -> None:
        if command is Command.APPLY:
            self._answers[reply[0]] = _unpacked(reply, command)
        elif self._awaited.get(index) == reply[0]:
            self._replies[index] = _unpacked(reply, command)
            del self._awaited[index]

    def _end_overdue(self) -> None:
        """End the processes that are overdue with their oldest request; update when the next may be."""
        next_check = math.inf
        for worker in list(self._workers.values()):
            if worker.oldest is None or not worker.is_started:
                continue
            due = worker.due(self._timeouts)
            if time.monotonic() >= due:
                worker.read_outbox(self._deliver)
                due = worker.due(self._timeouts)
            if time.monotonic() >= due and worker.oldest is not None:
                index, command = worker.oldest
                self._lose(worker, FaultKind.HUNG, f"no answer within {self._timeouts[command]} s", culprit=index)
            else:
                next_check = min(next_check, due)
        self._next_check = next_check

    def _lose(self, worker: WorkerProcess, kind: FaultKind, error: str, culprit: int | None = None) -> None:
        """Give up a process: all its envs fail, with the name of the env that caused it, if it is known."""
        if worker.is_intact and worker.is_started:
            worker.read_outbox(self._deliver)
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
            worker.put(Command.CLOSE, 0, [worker.slots.start], b"")
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


def _pickled(arguments: list[Any]) -> bytes:
    return pickle.dumps(arguments, pickle.HIGHEST_PROTOCOL)


def _unpacked(reply: tuple, command: Command) -> Reply:
    """Return a reply as the env gave it; see `worker.packed`."""
    if len(reply) == 2:
        try:
            return pickle.loads(reply[1])
        except Exception as error:  # of a class that cannot be imported here
            return Failed.by_exception(error, PHASES[command], FaultKind.INVALID)
    _, char, shape, content, reward, terminated, truncated = reply
    return np.ndarray(shape, char, content), reward, terminated, truncated, {}
