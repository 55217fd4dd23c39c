"""Lines of JSON: what is written, what a resumed run keeps, what it refuses."""

import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.recorders import Position, RunDescription
from rookery.recorders.jsonl import JsonlRecorder
from rookery.runs.directory import RunDirectory


def describe(directory: Path, num_seeds: int = 1) -> RunDescription:
    return RunDescription("a run", 1000, tuple(range(num_seeds)), directory, {})


def make_rows(env_steps: int, num_seeds: int = 1) -> list[dict[str, float]]:
    return [{"seed": seed, "time/total_timesteps": env_steps, "train/loss": seed / 3} for seed in range(num_seeds)]


def write_run(directory: Path, num_records: int, num_seeds: int = 1) -> bytes:
    recorder = JsonlRecorder()
    recorder.open(describe(directory, num_seeds))
    for record in range(num_records):
        recorder.record(make_rows(10 * (record + 1), num_seeds))
    recorder.close()
    return (directory / "metrics.jsonl").read_bytes()


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_a_row_comes_back_from_any_reader_of_json_as_it_was(tmp_path: Path) -> None:
    row = {
        "seed": 3,
        "time/total_timesteps": 2**40,
        "python": 0.1,
        "numpy": np.float32(0.1),
        "jax": jnp.float32(0.1),
        "nan": np.nan,
        "up": jnp.float32(jnp.inf),
        "down": -math.inf,
    }
    recorder = JsonlRecorder()
    recorder.open(describe(tmp_path))
    recorder.record([row])
    recorder.close()
    (decoded,) = RunDirectory(tmp_path).read_metrics()
    np.testing.assert_equal(decoded, {name: float(value) for name, value in row.items()})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=refuse_constant) == {
        "seed": 3,
        "time/total_timesteps": 2**40,
        "python": 0.1,
        "numpy": float(np.float32(0.1)),
        "jax": float(np.float32(0.1)),
        "nan": "NaN",
        "up": "Infinity",
        "down": "-Infinity",
    }


def test_a_record_is_in_the_file_before_the_recorder_is_closed(tmp_path: Path) -> None:
    recorder = JsonlRecorder()
    recorder.open(describe(tmp_path, num_seeds=2))
    recorder.record(make_rows(10, num_seeds=2))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1]
    recorder.close()


def test_wherever_a_run_is_cut_resuming_keeps_exactly_the_first_records_or_says_that_they_are_lost(
    tmp_path: Path,
) -> None:
    num_seeds = 2
    whole = write_run(tmp_path, num_records=3, num_seeds=num_seeds)
    line_ends = [0] + [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    path = tmp_path / "metrics.jsonl"
    for size in sorted({end + offset for end in line_ends for offset in (-20, -1, 0, 1)} & set(range(len(whole) + 1))):
        for num_records in range(4):
            path.write_bytes(whole[:size])
            recorder = JsonlRecorder()
            position = Position(num_records, env_steps=10 * num_records)
            kept = whole[: line_ends[num_records * num_seeds]]
            if len(kept) > size:
                with pytest.raises(InvalidInputError, match="Records are lost"):
                    recorder.open(describe(tmp_path, num_seeds), position)
                assert path.read_bytes() == whole[:size]
            else:
                recorder.open(describe(tmp_path, num_seeds), position)
                assert path.read_bytes() == kept
            recorder.close()


def test_a_resumed_run_appends_what_the_uninterrupted_one_would_have_written(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole = write_run(tmp_path / "whole", num_records=4)
    write_run(tmp_path / "killed", num_records=3)
    recorder = JsonlRecorder()
    recorder.open(describe(tmp_path / "killed"), Position(num_records=2, env_steps=20))
    for env_steps in (30, 40):
        recorder.record(make_rows(env_steps))
    recorder.sync()
    recorder.close()
    assert (tmp_path / "killed" / "metrics.jsonl").read_bytes() == whole


def test_the_error_for_lost_records_names_the_file_and_both_counts(tmp_path: Path) -> None:
    write_run(tmp_path, num_records=1, num_seeds=2)
    with pytest.raises(InvalidInputError, match=r"metrics\.jsonl has 2 complete lines, but .* after line 6"):
        JsonlRecorder().open(describe(tmp_path, num_seeds=2), Position(num_records=3, env_steps=30))


def test_a_run_killed_before_its_first_record_starts_over(tmp_path: Path) -> None:
    recorder = JsonlRecorder()
    recorder.open(describe(tmp_path), Position(num_records=0, env_steps=0))
    recorder.record(make_rows(10))
    recorder.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1


def test_a_new_run_never_mixes_its_records_with_those_of_another(tmp_path: Path) -> None:
    before = write_run(tmp_path, num_records=1)
    with pytest.raises(InvalidInputError, match="already holds records"):
        JsonlRecorder().open(describe(tmp_path))
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
