"""Files that recorders append to."""

import contextlib
import os
from pathlib import Path

from rookery.runs.files import open_inside, sync_to_disk


class AppendedFile:
    """A file to append to. `write` passes the data to the operating system before it returns.

    Data for which there is no space waits for the next call; `sync` raises an error that names the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = open_inside(path.parent, path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._file = open(descriptor, "ab", buffering=0)  # noqa: SIM115
        self._waiting = b""
        sync_to_disk(path.parent)

    def write(self, data: bytes) -> None:
        """Append `data`, after all data that waits."""
        self._waiting += data
        with contextlib.suppress(OSError):
            self._flush()

    def sync(self) -> None:
        """Flush the written data to disk."""
        try:
            self._flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _flush(self) -> None:
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]
