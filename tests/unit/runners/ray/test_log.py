"""The log of Ray."""

import logging
import os
from pathlib import Path

import pytest

from rookery.errors import InvalidInputError
from rookery.runners.ray.log import LOG_NAME, MAX_WAITING_LINES, RayLog


def test_what_comes_before_the_folder_is_kept_up_to_a_limit(tmp_path: Path) -> None:
    log = RayLog()
    for number in range(MAX_WAITING_LINES + 5):
        log.write(f"line {number}")
    log.append_to(tmp_path)
    log.handle(logging.LogRecord("ray", logging.WARNING, "ray.py", 1, "late %s", ("warning",), None))
    log.close()
    lines = (tmp_path / LOG_NAME).read_text().splitlines()
    assert lines == [*(f"line {number}" for number in range(5, MAX_WAITING_LINES + 5)), "late warning"]


def test_another_run_gets_its_own_lines(tmp_path: Path) -> None:
    log = RayLog()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        log.append_to(tmp_path / name)
        log.write(name)
    log.close()
    assert [(tmp_path / name / LOG_NAME).read_text() for name in ("a", "b")] == ["a\n", "b\n"]


def test_a_link_in_a_run_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    os.symlink(tmp_path / "elsewhere", tmp_path / LOG_NAME)
    with pytest.raises(InvalidInputError, match="is a link, expected a plain file"):
        RayLog().append_to(tmp_path)
