"""The records of a run: damaged lines and values are left out and named."""

import math
from pathlib import Path

import pytest

from rookery.runs import records
from rookery.runs.records import Records, read_records

GOOD = '{"seed": 0, "time/total_timesteps": 8, "train/loss": 1.5}'
ROW = {"seed": 0, "time/total_timesteps": 8, "train/loss": 1.5}


def read(folder: Path, *lines: str) -> Records:
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return read_records(folder, "metrics.jsonl")


@pytest.mark.parametrize("line", ["{", "[1]", "", "\0", "[" * 100_000, "x" * 3_000_000, '"text"', "1", "null"])
def test_a_line_that_is_no_object_is_left_out(tmp_path: Path, line: str) -> None:
    rows, left_out = read(tmp_path, GOOD, line, GOOD)
    assert rows == [ROW, ROW]
    assert left_out == ("lines that are not a JSON object: 1, first in line 2",)


@pytest.mark.parametrize("value", ['"a"', "1.5", "-1", "null", "[]", "true", "1e400", '"NaN"', "9" * 400, "1e17"])
@pytest.mark.parametrize("name", ["seed", "time/total_timesteps", "time/iterations"])
def test_a_row_whose_counts_are_not_whole_numbers_is_left_out(tmp_path: Path, name: str, value: str) -> None:
    rows, left_out = read(tmp_path, GOOD, f'{{"{name}": {value}, "train/loss": 1}}')
    assert rows == [ROW]
    assert left_out == (f"rows in which {name} is not a whole number: 1, first in line 2",)


@pytest.mark.parametrize("value", ['"a"', "null", "[1]", "{}", "true"])
def test_a_value_that_is_no_number_is_left_out_alone(tmp_path: Path, value: str) -> None:
    rows, left_out = read(tmp_path, f'{GOOD[:-1]}, "odd": {value}}}')
    assert rows == [ROW]
    assert left_out == ("values that are not numbers: 1, first in line 1",)


@pytest.mark.parametrize(("text", "number"), [("1e300", math.inf), ("-" + "9" * 400, -math.inf), ("1e400", math.inf)])
def test_a_number_beyond_float32_is_infinite(tmp_path: Path, text: str, number: float) -> None:
    rows, left_out = read(tmp_path, f'{{"train/loss": {text}}}')
    assert (rows, left_out) == ([{"train/loss": number}], ())


def test_metrics_without_number_do_not_fill_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_METRICS", 2)
    rows, left_out = read(tmp_path, '{"a": 1, "b": 2, "c": 3}', '{"b": 4, "d": 5}')
    assert rows == [{"a": 1, "b": 2}, {"b": 4}]
    assert left_out[0].endswith(": 2, first in line 1")


def test_a_table_that_is_mostly_empty_loses_its_rarest_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_CELLS", 10)
    lines = [f'{{"seed": 0, "time/total_timesteps": {step}}}' for step in range(10)]
    strays = [f'{{"seed": {seed}, "time/total_timesteps": {seed}}}' for seed in range(1, 10)]
    rows, left_out = read(tmp_path, *lines, *strays)
    assert {row["seed"] for row in rows} >= {0}
    assert len({row["seed"] for row in rows}) == 7
    assert left_out == ("seeds that have few records: 3, first in line 1",)


def test_a_huge_file_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_BYTES", 2**21)
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{GOOD}\n")
    with open(path, "r+b") as file:
        file.truncate(2**40)  # takes no space
    rows, left_out = read_records(tmp_path, "metrics.jsonl")
    assert rows == [ROW]
    assert left_out == ("what follows the first 2 MiB: 1, first in line 2",)
