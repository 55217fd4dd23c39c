"""Files that hold secrets: tokens and keys."""

import os
import stat
from pathlib import Path

from rookery.errors import InvalidInputError


def read_private(path: Path, kind: str) -> str:
    """Read a file that only its owner may read or write."""
    try:
        with open(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise InvalidInputError(f"{kind}: others may read {path} (mode {mode:04o}): run `chmod 600 {path}`.")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{kind}: cannot read {path}: {error}.") from None


def write_private(path: Path, kind: str, text: str) -> None:
    """Write a new file that only its owner may read or write."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        raise InvalidInputError(
            f"{kind}: cannot make {path}: {error.strerror}: make its folder, or name another file."
        ) from None
