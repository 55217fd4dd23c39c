"""Records as JSON lines."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rookery.errors import InvalidInputError
from rookery.recorders.appended_file import AppendedFile
from rookery.recorders.rows import as_number
from rookery.runs.directory import RunDirectory
from rookery.runs.files import MAX_LINE_BYTES, open_inside
from rookery.runs.recorder import Position, Recorder, RunDescription


class JsonlRecorder(Recorder):
    """Appends one line per record and seed to `metrics.jsonl` in the run directory."""

    def __init__(self) -> None:
        self._file: AppendedFile | None = None
        self._num_seeds = 0

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        if run.directory is None:
            return
        path = RunDirectory(run.directory).metrics_path
        self._num_seeds = len(run.seeds)
        if resumed_from is not None:
            keep_first_lines(path, resumed_from.num_records * self._num_seeds)
        elif path.exists() and path.stat().st_size:
            raise InvalidInputError(
                f"{path} already holds records of a run: resume that run, or choose another run_dir."
            )
        self._file = AppendedFile(path)

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        if self._file is None:
            return
        assert len(rows) == self._num_seeds, "resuming counts lines"
        self._file.write(b"".join(encode_row(row) for row in rows))

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def encode_row(row: Mapping[str, float]) -> bytes:
    """Encode one row as a JSON line; non-finite numbers become "NaN", "Infinity" or "-Infinity"."""
    values = {name: _json_value(as_number(name, value)) for name, value in row.items()}
    return json.dumps(values, allow_nan=False).encode() + b"\n"


def _json_value(number: int | float) -> int | float | str:
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def keep_first_lines(path: Path, num_lines: int) -> None:
    """Truncate a file to its first `num_lines` lines, in one system call: it is never seen half truncated.

    An incomplete last line of a killed process does not count.
    """
    with open(open_inside(path.parent, path.name, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+b") as file:
        file.seek(0)
        size = 0
        for index in range(num_lines):
            line = file.readline(MAX_LINE_BYTES)
            if not line.endswith(b"\n"):
                raise InvalidInputError(
                    f"{path} has {index} complete lines, but the run continues after line {num_lines}. "
                    "Records are lost: restore the file, or resume from an earlier checkpoint."
                )
            size += len(line)
        file.truncate(size)
        os.fsync(file.fileno())
