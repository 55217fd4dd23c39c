"""The worker in a process of `ProcessTransport`: it builds envs and executes the requests of the parent in order.

Nothing here imports JAX, so that a process starts fast.
"""

import contextlib
import enum
import marshal
import mmap
import os
import pickle
import signal
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.transports.local import LocalTransport
from rookery.runners.transports.transport import Reply

HEADER = struct.Struct("<Q")
"""The header of a message: the length of the rest.

The rest is made by `marshal`, because both ends run the same Python. A request has the command, the number of the
first env's part (those of others follow), the slots of one or several envs, and the pickled list of their arguments. A
reply is a list with an entry for each env, see `packed`.
"""
OUTBOX_SIZE = 1 << 16
SECONDS_TO_KEEP = 0.0005
"""How long a reply may wait for those of other envs in the process, so that they are sent together."""


class Command(enum.IntEnum):
    """The commands of the parent."""

    MAKE = 0
    RESET = 1
    STEP = 2
    APPLY = 3
    CLOSE = 4


RESET, STEP, APPLY, CLOSE = (command.value for command in (Command.RESET, Command.STEP, Command.APPLY, Command.CLOSE))
PHASES: dict[int, Phase] = {
    Command.MAKE: Phase.MAKE,
    Command.RESET: Phase.RESET,
    Command.STEP: Phase.STEP,
    Command.APPLY: Phase.RENDER,
}


CHANNEL_LOST = 113
"""The exit code of a worker whose env closed the socket to the parent."""


def main(channel: int, outbox: int) -> None:
    """Serve the parent until it closes the envs or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    os.set_inheritable(channel, False)
    del sys.argv[1:]
    replies = Replies(channel, mmap.mmap(outbox, OUTBOX_SIZE))
    os.close(outbox)
    try:
        serve(channel, replies)
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    except OSError:
        os._exit(CHANNEL_LOST)


class Replies:
    """The replies to the present request, which are sent together unless that takes long.

    Until then each is in the outbox: if the next env does not return, the parent finds there those before.
    """

    def __init__(self, channel: int, outbox: mmap.mmap) -> None:
        self._channel = channel
        self._outbox = outbox
        self._num_kept_bytes = 0
        self._entries: list[tuple] = []
        self._since = 0.0

    def add(self, entry: tuple, is_last: bool) -> None:
        """Add the reply of an env; send all if it is the last one, or after some time."""
        entries = self._entries
        entries.append(entry)
        if not is_last:
            now = time.monotonic()
            if len(entries) == 1:
                self._since = now
            if now - self._since < SECONDS_TO_KEEP and self._keep(marshal.dumps([entry])):
                return
        _write(self._channel, marshal.dumps(entries))
        entries.clear()
        if self._num_kept_bytes:
            self._num_kept_bytes = 0
            self._outbox[: HEADER.size] = HEADER.pack(0)

    def _keep(self, message: bytes) -> bool:
        """Append a message to the outbox and then count it, so that it is there wholly or not at all."""
        start = HEADER.size + self._num_kept_bytes
        end = start + HEADER.size + len(message)
        if end > OUTBOX_SIZE:
            return False
        self._outbox[start:end] = HEADER.pack(len(message)) + message
        self._num_kept_bytes = end - HEADER.size
        self._outbox[: HEADER.size] = HEADER.pack(self._num_kept_bytes)
        return True


def serve(channel: int, replies: Replies) -> None:
    """Answer the requests from a socket, until one is to close."""
    slots: dict[int, LocalTransport] = {}
    for message in messages(channel):
        command, number, indexes, content = marshal.loads(message)
        if command == CLOSE:
            for envs in slots.values():
                with contextlib.suppress(KeyboardInterrupt):
                    envs.close()
            return
        last = number + len(indexes) - 1
        for index, argument in zip(indexes, _loaded_arguments(content, len(indexes)), strict=True):
            try:
                reply = _answer(slots, command, index, argument)
            except KeyboardInterrupt as error:  # of the env: this process ignores SIGINT
                reply = Failed.by_exception(error, PHASES[command])
            replies.add(packed(number, reply, command), number == last)
            number += 1


def _loaded_arguments(content: bytes, num_envs: int) -> Sequence[Any]:
    try:
        return pickle.loads(content)
    except Exception as error:  # an action of a class that cannot be imported here
        return [Failed.by_exception(error, Phase.STEP, FaultKind.INVALID)] * num_envs


def _answer(slots: dict[int, LocalTransport], command: int, index: int, argument: Any) -> Reply:
    if type(argument) is Failed:
        return argument
    if command == STEP:
        return slots[index].step_now((0,), (argument,))[0]
    if command == RESET:
        return slots[index].reset_now(0, argument)
    if command == APPLY:
        return slots[index].apply(0, lambda env: cloudpickle.loads(argument)(env))
    if index in slots:
        slots[index].close()
    slots[index] = LocalTransport([lambda: _made(argument)])
    slots[index].build(0)
    return None


def _made(factory: bytes) -> Any:
    try:
        return cloudpickle.loads(factory)()
    except KeyboardInterrupt as error:
        raise RuntimeError(f"the env raised {error!r}") from error


def packed(number: int, reply: Reply, command: int) -> tuple:
    """Return the number of a request and its reply, in parts for `marshal` or pickled.

    The parts are those of an ordinary step: an array, a float, two bools and an empty info. Reading and writing them
    takes a fraction of the time of pickle.
    """
    if type(reply) is tuple and len(reply) == 5:
        obs, reward, terminated, truncated, info = reply
        if (
            type(obs) is np.ndarray
            and obs.dtype.char in SIMPLE
            and obs.dtype.isnative
            and type(reward) is float
            and type(terminated) is bool
            and type(truncated) is bool
            and type(info) is dict
            and not info
        ):
            return number, obs.dtype.char, obs.shape, obs.tobytes(), reward, terminated, truncated
    return number, _pickled(reply, PHASES[command])


SIMPLE = "?bBhHiIlLqQefd"
"""The characters of dtypes that have no other properties but their byte order."""


def _pickled(reply: Reply, phase: Phase) -> bytes:
    try:
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
    except Exception:
        pass  # pickle cannot handle functions and classes of the main script
    try:
        return cloudpickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        failed = Failed.by_exception(error, phase, FaultKind.INVALID)
        return pickle.dumps(failed, pickle.HIGHEST_PROTOCOL)


def messages(channel: int) -> Iterator[bytes | bytearray]:
    """Iterate over the messages from a socket, without their headers."""
    received = bytearray()
    while chunk := os.read(channel, 1 << 16):
        if not received and HEADER.size + int.from_bytes(chunk[: HEADER.size], "little") == len(chunk):
            yield chunk[HEADER.size :]  # mostly: exactly one message
        else:
            received += chunk
            yield from split(received)
    raise EOFError


def split(received: bytearray) -> Iterator[bytearray]:
    """Iterate over the complete messages in what was received, and remove them."""
    while len(received) >= HEADER.size:
        end = HEADER.size + HEADER.unpack_from(received)[0]
        if len(received) < end:
            return
        message = received[HEADER.size : end]
        del received[:end]
        yield message


def _write(channel: int, message: bytes) -> None:
    rest = HEADER.pack(len(message)) + message
    while num_left := len(rest) - os.write(channel, rest):
        rest = rest[-num_left:]
