"""Files of a run directory, which may come from a stranger: plain files inside the folder, of bounded size.

Every file of a run is opened here. Names with `..` are refused, and so are links, pipes and devices: a run can neither
read nor change a file outside of its folder, and reading it ends.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from rookery.errors import InvalidInputError

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # to open a pipe must not wait for its other end
MAX_BYTES = 64 * 2**20
"""The maximum size of a file that is read at once."""
MAX_LINE_BYTES = 2**20
TEMPORARY = ".tmp"
"""The suffix of files and folders that are not complete yet."""
CONFIG_NAME = "config.yaml"
"""A folder with this file is a run directory."""


class UnsafeFileError(InvalidInputError):
    """A file of a run directory is a link, a pipe or a device, lies outside of the folder, or is too large."""


def open_inside(folder: Path, name: str, flags: int = os.O_RDONLY) -> int:
    """Open the plain file `name` of `folder` and return its descriptor; `folder` itself may be a link.

    A missing file raises `FileNotFoundError` unless `flags` create it.
    """
    *parents, last = _parts(folder, name)
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for index, part in enumerate(parents):
            _check_kind(folder, "/".join(parents[: index + 1]), parent, part, stat.S_ISDIR)
            child = os.open(part, FOLDER_FLAGS, dir_fd=parent)
            os.close(parent)
            parent = child
        if not flags & os.O_CREAT or _exists(last, parent):
            _check_kind(folder, name, parent, last, stat.S_ISREG)
        descriptor = os.open(last, flags | FILE_FLAGS, 0o666, dir_fd=parent)
    finally:
        os.close(parent)
    # Looked at again: the file may have been replaced in between.
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or (flags & (os.O_WRONLY | os.O_RDWR) and found.st_nlink > 1):
        os.close(descriptor)
        kind = "has a second name (a hard link)" if stat.S_ISREG(found.st_mode) else _kind(found.st_mode)
        raise UnsafeFileError(f"{folder / name} {kind}, expected a plain file: copy it in its place.")
    return descriptor


def is_there(folder: Path, name: str) -> bool:
    """Return whether `folder` has an entry `name` of any kind, also a broken link."""
    return os.path.lexists(folder / name)


def read_bytes(folder: Path, name: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Read the plain file `name` of `folder`."""
    with open(open_inside(folder, name), "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UnsafeFileError(f"{folder / name} has more than {max_bytes:,} bytes, the limit for this file.")
    return content


def read_lines(folder: Path, name: str, max_bytes: int) -> Iterator[bytes]:
    """Iterate over the lines of the plain file `name` of `folder`, up to `max_bytes`.

    A line longer than `MAX_LINE_BYTES` is cut.
    """
    with open(open_inside(folder, name), "rb") as file:
        while file.tell() < max_bytes and (line := file.readline(MAX_LINE_BYTES)):
            rest = line
            while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n") and file.tell() < max_bytes:
                rest = file.readline(MAX_LINE_BYTES)
            yield line if rest is line else line + rest[-1:]


def make_folder(folder: Path, name: str) -> Path:
    """Make the folder `name` inside `folder` unless it exists; return its path."""
    parts = _parts(folder, name)
    for index in range(len(parts)):
        path = folder.joinpath(*parts[: index + 1])
        path.mkdir(exist_ok=True)
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise UnsafeFileError(f"{path} {_kind(path.lstat().st_mode)}, expected a folder.")
    return folder.joinpath(*parts)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file atomically: readers see the old or the new content, also after a power failure.

    A link is replaced, not followed.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | FILE_FLAGS, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        sync_to_disk(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_to_disk(path.parent)


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user named: in place if it is a pipe, a link or a device.

    A run directory may come from a stranger: there a link is replaced.
    """
    is_plain = not os.path.lexists(path) or stat.S_ISREG(path.lstat().st_mode)
    if is_plain or is_there(path.parent, CONFIG_NAME):
        write_atomically(path, content)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parts(folder: Path, name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise UnsafeFileError(f"{name!r:.80} is not the name of a file inside {folder}.")
    return path.parts


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _check_kind(folder: Path, name: str, parent: int, part: str, is_kind: Callable[[int], bool]) -> None:
    mode = os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode
    if not is_kind(mode):
        expected = "a plain file" if is_kind is stat.S_ISREG else "a folder"
        raise UnsafeFileError(f"{folder / name} {_kind(mode)}, expected {expected}.")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "link", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFDIR: "folder"}
    return f"is a {kinds.get(stat.S_IFMT(mode), 'file' if stat.S_ISREG(mode) else 'device')}"
