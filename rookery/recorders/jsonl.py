"""The records of a run as lines of JSON, for any program to read."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rookery.errors import InvalidInputError
from rookery.recorders.recorder import AppendedFile, Position, Recorder, RunDescription, as_number
from rookery.runs.directory import RunDirectory


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
        assert len(rows) == self._num_seeds, "a run is resumed by counting lines"
        self._file.write(b"".join(encode_row(row) for row in rows))

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def encode_row(row: Mapping[str, float]) -> bytes:
    """Write one row as a line of JSON; what JSON has no number for becomes "NaN", "Infinity" or "-Infinity"."""
    values = {name: _json_value(as_number(name, value)) for name, value in row.items()}
    return json.dumps(values, allow_nan=False).encode() + b"\n"


def _json_value(number: int | float) -> int | float | str:
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def keep_first_lines(path: Path, num_lines: int) -> None:
    """Cut a file after its first lines, in one system call: no reader and no crash meets it half cut.

    A line that a killed process did not finish has no end and does not count.
    """
    with open(path, "a+b") as file:
        file.seek(0)
        size = 0
        for index in range(num_lines):
            line = file.readline()
            if not line.endswith(b"\n"):
                raise InvalidInputError(
                    f"{path} has {index} complete lines, and the run goes on after line {num_lines}: records are lost. "
                    "Put the file back, or resume from an earlier checkpoint."
                )
            size += len(line)
        file.truncate(size)
        os.fsync(file.fileno())
