"""The parts that recorders share: numbers of any library, files whose errors name them, imports on first use."""

import resource
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError, UnknownNameError
from rookery.recorders import RECORDERS, Position, make_recorder
from rookery.recorders.appended_file import AppendedFile
from rookery.recorders.rows import as_number


def test_a_misspelt_recorder_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown recorder 'tensorbord'\. Did you mean 'tensorboard'"):
        make_recorder("tensorbord")


def test_importing_the_recorders_imports_no_library_of_theirs() -> None:
    code = "import sys, rookery.recorders; print([m for m in ('rich', 'wandb') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_name_leads_to_a_class_that_is_there() -> None:
    for name in set(RECORDERS) - {"wandb"}:
        assert type(make_recorder(name)).__name__ == RECORDERS[name].split(":")[1]


@pytest.mark.parametrize(
    "value", [3, np.int32(3), np.float64(3), np.array(3, np.uint8), jnp.float32(3), jnp.bfloat16(3)]
)
def test_a_scalar_of_any_library_becomes_a_plain_number(value: object) -> None:
    number = as_number("train/loss", value)
    assert number == 3
    assert type(number) in (int, float)


@pytest.mark.parametrize("value", [np.zeros(1), jnp.zeros((2, 2)), "3", None, 1j])
def test_what_is_not_one_number_is_an_error_that_names_the_metric(value: object) -> None:
    with pytest.raises(InvalidInputError, match="metric 'train/loss' must be one number"):
        as_number("train/loss", value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full belongs to Linux")
def test_a_full_disk_is_an_error_of_sync_that_names_the_file(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "metrics.jsonl")
    file._file.close()
    file._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    file.write(b"a line\n")
    with pytest.raises(OSError, match=r"No space left on device: '.*metrics\.jsonl'"):
        file.sync()
    file.close()


def test_data_without_space_waits_and_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = AppendedFile(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))  # Python ignores the signal
    file.write(b"first line\nsecond line\n")
    file.write(b"third line\n")
    assert path.read_bytes() == b"first line"
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.sync()
    assert path.read_bytes() == b"first line\nsecond line\nthird line\n"
    file.close()


def test_a_position_before_the_first_record_discards_even_one_at_step_0() -> None:
    assert Position(num_records=0, env_steps=0).first_discarded_step(0) == 0
    assert Position(num_records=1, env_steps=0).first_discarded_step(0) == 1
    assert Position(2, env_steps=10, recorded_steps=(50, 10)).first_discarded_step(0) == 51
