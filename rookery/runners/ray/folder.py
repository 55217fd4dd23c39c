"""The private folder of a Ray of our own: its token, its sockets, its logs and its spilled objects."""

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rookery.errors import InvalidInputError

PREFIX = "rookery-ray-"
TOKEN_NAME, LOCK_NAME = "token", "lock"
MAX_PATH_BYTES = 40
"""The operating system limits the path of a socket to 107 bytes; those of Ray are up to 65 longer than the folder."""
STALE_SECONDS = 60.0


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder that only this user can enter, with a new token in it; remove it in the end.

    It also removes the folders of processes that were killed: nobody holds their locks.
    """
    parent = _short_parent()
    _remove_stale(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with open(folder / LOCK_NAME, "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            descriptor = os.open(folder / TOKEN_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _short_parent() -> str:
    parents = (tempfile.gettempdir(), "/tmp")
    for parent in parents:
        if len(os.fsencode(parent)) + len(PREFIX) + 9 <= MAX_PATH_BYTES and os.access(parent, os.W_OK):
            return parent
    raise InvalidInputError(
        f"Ray needs a folder with a short name for its sockets, and neither {' nor '.join(parents)} is one that can "
        "be written: set TMPDIR to such a folder."
    )


def _remove_stale(parent: str) -> None:
    for folder in Path(parent).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, in use, or just removed by another process
            found = folder.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < STALE_SECONDS:
                continue
            with open(folder / LOCK_NAME, encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
