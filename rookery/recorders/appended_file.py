"""Files that recorders append to."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rookery.runs.files import open_inside, sync_to_disk


class AppendedFile:
    """A file to append to: `write` passes all data to the operating system before it returns; errors name the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = open_inside(path.parent, path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._file = open(descriptor, "ab", buffering=0)  # noqa: SIM115
        sync_to_disk(path.parent)

    def write(self, data: bytes) -> None:
        """Append all of `data`."""
        rest = memoryview(data)
        with self._naming_the_file():
            while rest:
                rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        """Flush the written data to disk."""
        with self._naming_the_file():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @contextlib.contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
