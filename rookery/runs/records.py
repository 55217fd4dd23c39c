"""The records of a run, read from `metrics.jsonl` without what is damaged."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rookery.runs.documents import parse_json
from rookery.runs.files import read_lines

SEED, STEPS, ITERATIONS = "seed", "time/total_timesteps", "time/iterations"
NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""The strings that `metrics.jsonl` uses for non-finite numbers, which JSON lacks."""
LARGEST = 3.4028234663852886e38
"""Metrics are computed in float32: larger numbers count as infinite."""
MAX_COUNT = 2**53
MAX_BYTES = 256 * 2**20
MAX_METRICS = 1_000
MAX_NAME_LENGTH = 200
MAX_CELLS = 1_000_000
"""The maximum number of seeds times records of a file in which most of them are missing."""

Row = dict[str, Any]


class Records(NamedTuple):
    """The rows of `metrics.jsonl`: numbers by name. `left_out` says what the file has besides."""

    rows: list[Row]
    left_out: tuple[str, ...]


class _Notes:
    """Counts what is left out, by reason, with the line of the first."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, int] = {}

    def add(self, reason: str, line: int) -> None:
        self._counts[reason] += 1
        self._first.setdefault(reason, line)

    def texts(self) -> tuple[str, ...]:
        return tuple(f"{reason}: {n:,}, first in line {self._first[reason]:,}" for reason, n in self._counts.items())


def read_records(folder: Path, name: str) -> Records:
    """Read the records of a run; an incomplete last line is ignored, and damaged lines and values are left out."""
    notes = _Notes()
    names: set[str] = set()
    rows = []
    for number, line in _lines(folder, name, notes):
        row = _row(line, number, notes)
        if row is not None:
            rows.append({metric: row[metric] for metric in row if _is_kept(metric, names, number, notes)})
    return Records(_without_sparse_seeds(rows, notes), notes.texts())


def _lines(folder: Path, name: str, notes: _Notes) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        for number, line in enumerate(read_lines(folder, name, MAX_BYTES), start=1):
            if line.endswith(b"\n"):
                yield number, line
        if (folder / name).stat().st_size > MAX_BYTES:
            notes.add(f"what follows the first {MAX_BYTES / 2**20:.0f} MiB", number)
    except FileNotFoundError:
        return


def _row(line: bytes, number: int, notes: _Notes) -> Row | None:
    try:
        row = parse_json(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        notes.add("lines that are not a JSON object", number)
        return None
    for count in (SEED, STEPS, ITERATIONS):
        if count in row:
            row[count] = _count(row[count])
            if row[count] is None:
                notes.add(f"rows in which {count} is not a whole number", number)
                return None
    values = {name: _number(value) for name, value in row.items()}
    for _ in range(list(values.values()).count(None)):
        notes.add("values that are not numbers", number)
    return {name: value for name, value in values.items() if value is not None}


def _count(value: Any) -> int | None:
    number = _number(value)
    if number is None or not 0 <= number <= MAX_COUNT or number != int(number):
        return None
    return int(number)


def _number(value: Any) -> int | float | None:
    if isinstance(value, str):
        return NON_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if abs(value) > LARGEST:
        return math.inf if value > 0 else -math.inf
    return value


def _is_kept(metric: str, names: set[str], number: int, notes: _Notes) -> bool:
    if metric not in names and (len(names) == MAX_METRICS or len(metric) > MAX_NAME_LENGTH):
        notes.add(f"values of metrics after the first {MAX_METRICS:,}, or with long names", number)
        return False
    names.add(metric)
    return True


def _without_sparse_seeds(rows: list[Row], notes: _Notes) -> list[Row]:
    """Leave out the seeds with the fewest rows if a table of seeds and records would be large and mostly empty."""
    num_records = len({row.get(ITERATIONS, row.get(STEPS)) for row in rows})
    num_rows = Counter(row.get(SEED, 0) for row in rows)
    num_kept = max(MAX_CELLS, 4 * len(rows)) // max(num_records, 1)
    if len(num_rows) <= num_kept:
        return rows
    kept = {seed for seed, _ in num_rows.most_common(num_kept)}
    for _ in range(len(num_rows) - num_kept):
        notes.add("seeds that have few records", 1)
    return [row for row in rows if row.get(SEED, 0) in kept]
