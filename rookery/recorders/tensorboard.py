"""Records as TensorBoard events over env steps.

Events are protocol buffers, encoded here: the libraries that write them import PyTorch where it is installed, which
takes longer than all else at the start of a run.
"""

import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rookery.recorders.appended_file import AppendedFile
from rookery.recorders.rows import ENV_STEPS, SEED, plotted_metrics
from rookery.runs.directory import RunDirectory
from rookery.runs.files import make_folder
from rookery.runs.recorder import Position, Recorder, RunDescription

FILE_PREFIX = "events.out.tfevents."
VARINT, EIGHT_BYTES, WITH_LENGTH, FOUR_BYTES = 0, 1, 2, 5
"""Kinds of content of a field."""
WALL_TIME, STEP, FILE_VERSION, SUMMARY, SESSION_LOG = 1, 2, 3, 5, 7
"""Fields of an event."""
STATUS, START = 1, 1
"""The field of a session log, and its value at the start of a session."""
VALUE = 1
"""The field of a summary."""
TAG, SIMPLE_VALUE = 1, 2
"""Fields of a value."""


class TensorBoardRecorder(Recorder):
    """Writes to `tensorboard/` in the run directory; each of several seeds is a run, `seed_0`, `seed_1`, ..."""

    def __init__(self) -> None:
        self._files: dict[int, EventFile] = {}

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        if run.directory is None:
            return
        name = RunDirectory(run.directory).tensorboard_path.name
        for index, seed in enumerate(run.seeds):
            first_step = 0 if resumed_from is None else resumed_from.first_discarded_step(index)
            folder = make_folder(run.directory, f"{name}/seed_{seed}" if len(run.seeds) > 1 else name)
            self._files[seed] = EventFile(folder, first_step)

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        if not self._files:
            return
        for row in rows:
            self._files[int(row[SEED])].add(plotted_metrics(row), int(row[ENV_STEPS]))

    def sync(self) -> None:
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


class EventFile:
    """A new file of TensorBoard events; older files in the folder are read only for steps before `first_step`.

    An event is in the file when `add` returns, and on disk after `sync`: checkpoints rely on that.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        # TensorBoard reads the files of a folder in alphabetical order.
        older = (re.match(rf"{FILE_PREFIX}(\d+)", path.name) for path in folder.iterdir())
        seconds = max([int(time.time()), *(int(match[1]) + 1 for match in older if match)])  # a clock may be set back
        self._file = AppendedFile(folder / f"{FILE_PREFIX}{seconds}.{socket.gethostname()}")
        self._write(text(FILE_VERSION, "brain.Event:2"))
        # New runs write this too: one of TensorBoard's readers does not treat the first START event as a restart.
        self._write(number(STEP, first_step) + message(SESSION_LOG, number(STATUS, START)))

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Append one value to each named curve."""
        values = (message(VALUE, text(TAG, name) + real(value)) for name, value in scalars.items())
        self._write(number(STEP, step) + message(SUMMARY, b"".join(values)))

    def sync(self) -> None:
        """Flush the written events to disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, fields: bytes) -> None:
        event = struct.pack("<Bd", WALL_TIME << 3 | EIGHT_BYTES, time.time()) + fields
        length = struct.pack("<Q", len(event))
        self._file.write(length + masked_checksum(length) + event + masked_checksum(event))


# Protocol buffers: a field is its number and the kind of its content, then the content.


def varint(value: int) -> bytes:
    """Encode a number that is not negative: seven bits per byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | WITH_LENGTH) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    return message(field, value.encode())


def real(value: float) -> bytes:
    """Encode the value of a curve in float32; what float32 cannot hold is infinite."""
    with np.errstate(over="ignore"):
        return bytes([SIMPLE_VALUE << 3 | FOUR_BYTES]) + np.asarray(value, "<f4").tobytes()


def masked_checksum(data: bytes) -> bytes:
    """Return CRC-32C, rotated and offset as in TFRecord files."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = CRC_TABLE[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    checksum ^= 0xFFFFFFFF
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc_table() -> list[int]:
    """Return the CRC-32C of every byte; the polynomial is Castagnoli's, with its bits reversed."""
    table = list(range(256))
    for _ in range(8):
        table = [entry >> 1 ^ 0x82F63B78 * (entry & 1) for entry in table]
    return table


CRC_TABLE = crc_table()
