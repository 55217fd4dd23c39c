"""The log of Ray in a run directory."""

import contextlib
import logging
import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

from rookery.runs.files import open_inside

LOG_NAME = "ray.log"
MAX_WAITING_LINES = 1000


class RayLog(logging.Handler):
    """What Ray reports: kept until there is a folder for it, then appended to `ray.log` there."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[str] = deque(maxlen=MAX_WAITING_LINES)
        self._file: BinaryIO | None = None

    def append_to(self, folder: Path) -> None:
        """Write to `ray.log` in this folder from now on."""
        descriptor = open_inside(folder, LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with self.lock:  # type: ignore[union-attr]
            self._close_file()
            self._file = open(descriptor, "ab", buffering=0)  # noqa: SIM115
            self._flush_lines()

    def emit(self, record: logging.LogRecord) -> None:
        self.write(self.format(record))

    def write(self, text: str) -> None:
        """Write a text of one or more lines."""
        with self.lock:  # type: ignore[union-attr]
            self._lines.append(text)
            self._flush_lines()

    def close(self) -> None:
        with self.lock:  # type: ignore[union-attr]
            self._close_file()
        super().close()

    def _flush_lines(self) -> None:
        with contextlib.suppress(OSError):  # a full disk is no reason to stop
            while self._lines and self._file is not None:
                self._file.write(f"{self._lines[0]}\n".encode(errors="replace"))
                self._lines.popleft()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
