"""The worker in a process of `ProcessTransport`: it builds envs and executes the requests of the parent in order.

Nothing here imports JAX, so that a process starts fast.
"""

import contextlib
import enum
import os
import pickle
import signal
import struct
import sys
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.transports.local import LocalTransport
from rookery.runners.transports.transport import Reply

HEADER = struct.Struct("<QQ")
"""The header of a message: its number and the length of the rest. A reply has the number of its request."""


class Command(enum.IntEnum):
    """The commands of the parent."""

    MAKE = 0
    RESET = 1
    STEP = 2
    APPLY = 3
    CLOSE = 4


PHASES = {
    Command.MAKE: Phase.MAKE,
    Command.RESET: Phase.RESET,
    Command.STEP: Phase.STEP,
    Command.APPLY: Phase.RENDER,
}


CHANNEL_LOST = 113
"""The exit code of a worker whose env closed the socket to the parent."""


def main(channel: int) -> None:
    """Serve the parent until it closes the envs or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    os.set_inheritable(channel, False)
    del sys.argv[1:]
    try:
        serve(channel)
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    except OSError:
        os._exit(CHANNEL_LOST)


def serve(channel: int) -> None:
    """Answer the requests from a socket, until one is to close."""
    slots: dict[int, LocalTransport] = {}
    while True:
        number, length = HEADER.unpack(_read(channel, HEADER.size))
        message = _read(channel, length)
        try:
            command_value, index, argument = pickle.loads(message)
        except Exception as error:  # an action of a class that cannot be imported here
            _write(channel, number, pickle.dumps(Failed.by_exception(error, Phase.STEP, FaultKind.INVALID)))
            continue
        command = Command(command_value)
        if command is Command.CLOSE:
            for envs in slots.values():
                with contextlib.suppress(KeyboardInterrupt):
                    envs.close()
            return
        try:
            reply = _answer(slots, command, index, argument)
        except KeyboardInterrupt as error:  # of the env: this process ignores SIGINT
            reply = Failed.by_exception(error, PHASES[command])
        _write(channel, number, _pickled(reply, PHASES[command]))


def _answer(slots: dict[int, LocalTransport], command: Command, index: int, argument: Any) -> Reply:
    if command is Command.MAKE:
        if index in slots:
            slots[index].close()
        slots[index] = LocalTransport([lambda: _made(argument)])
        slots[index].build(0)
        return None
    envs = slots[index]
    match command:
        case Command.RESET:
            envs.send_reset(0, argument)
        case Command.STEP:
            envs.send_steps((0,), (argument,))
        case _:
            return envs.apply(0, lambda env: cloudpickle.loads(argument)(env))
    return envs.receive((0,))[0]


def _made(factory: bytes) -> Any:
    try:
        return cloudpickle.loads(factory)()
    except KeyboardInterrupt as error:
        raise RuntimeError(f"the env raised {error!r}") from error


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


def _read(channel: int, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = os.read(channel, length - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _write(channel: int, number: int, payload: bytes) -> None:
    rest = memoryview(HEADER.pack(number, len(payload)) + payload)
    while rest:
        rest = rest[os.write(channel, rest) :]
