"""Verification of a checkpoint: its manifest is valid, its files are plain and have the stated sizes and hashes."""

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.errors import InvalidInputError
from rookery.runs.documents import read_json
from rookery.runs.files import open_inside

FORMAT_VERSION = 4
"""What changed with each format.

1. The state of a learner is part of that of its workflow.
2. It is under `learner`.
3. Sums are exact.
4. All arrays are in one safetensors file; before, Orbax wrote several files for each array.
"""
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 * 2**20
KEYS = {"key<fry>": ("threefry2x32", 2), "key<rbg>": ("rbg", 4), "key<urbg>": ("unsafe_rbg", 4)}
"""The implementation of random keys by dtype, and the number of words that a key has."""
MAX_DIMENSIONS = 64
MAX_LENGTH = 2**63 - 1
"""The limits of NumPy for the shape of an array."""

Leaf = dict[str, Any]
"""The entry of one leaf in the manifest: path, shape, dtype, and implementation of random keys.

Format 3 has the name of its array as well.
"""
Stamp = tuple[int, ...]
"""What changes with a file: its inode, size and times."""


class Unusable(Exception):  # noqa: N818
    """Why a checkpoint cannot be read: the end of a sentence that starts with its name."""


class Verified(NamedTuple):
    """The manifest of a checkpoint, and its files as they were when they were hashed."""

    manifest: dict[str, Any]
    stamps: dict[str, Stamp]


def verify(folder: Path, step: int | None, part: str = "") -> Verified:
    """Verify the checkpoint in `folder`; raise `Unusable` if its format is too new or a file is damaged.

    Only files whose paths begin with `part` are hashed. `step` is that of the checkpoint in its run; None for a folder
    that the user names, which may be of any step.
    """
    # The folder of checkpoints belongs to the run as well: it must not be a link.
    root, name = (folder, ".") if step is None else (folder.parents[1], f"{folder.parent.name}/{folder.name}")
    with damage_as_unusable(folder):
        manifest = _read_manifest(root, name, step)
        _check_kinds(folder)
        stamps = {
            file: _check_file(root, f"{name}/{file}", file, stated["bytes"], stated["sha256"])
            for file, stated in manifest["files"].items()
            if file.startswith(part)
        }
    return Verified(manifest, stamps)


@contextlib.contextmanager
def damage_as_unusable(folder: Path) -> Iterator[None]:
    """Raise `Unusable` for a file of the checkpoint in `folder` that cannot be read."""
    try:
        yield
    except OSError as error:
        raise Unusable(f"is damaged: {Path(error.filename or folder).name}: {error.strerror}") from None
    except InvalidInputError as error:
        raise Unusable(f"is damaged: {str(error).removesuffix('.')}") from None


def check_unchanged(folder: Path, stamps: dict[str, Stamp]) -> None:
    """Raise `Unusable` if a file changed since it was hashed."""
    for name, stamp in stamps.items():
        if not (folder / name).exists() or _stamp((folder / name).lstat()) != stamp:
            raise Unusable(f"changed while it was read: {name} is not the file that was verified")


def hash_of_manifest(manifest: dict[str, Any]) -> str:
    # As it is read back: keys that are numbers become strings, which sort differently from ten on.
    as_read = json.loads(json.dumps(manifest))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def stored_kind(leaf: Leaf) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and dtype of the stored array of a leaf; random keys are stored as words."""
    if leaf["dtype"] in KEYS:
        return (*leaf["shape"], KEYS[leaf["dtype"]][1]), np.dtype(np.uint32)
    return tuple(leaf["shape"]), dtype_of(leaf["dtype"])


def dtype_of(name: str) -> np.dtype:
    """Return the dtype with this name, also one that NumPy does not have, such as bfloat16."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


def is_storable(dtype: str) -> bool:
    """Return whether arrays of the dtype with this name can be stored: numbers, for which the name stands."""
    try:
        return dtype_of(dtype).kind not in "OSUmM" and str(dtype_of(dtype)) == dtype
    except TypeError:
        return False


def _read_manifest(root: Path, name: str, step: int | None) -> dict[str, Any]:
    manifest = read_json(root, f"{name}/{MANIFEST}", MAX_MANIFEST_BYTES)
    try:
        version = manifest["format_version"]
        if version > FORMAT_VERSION:
            raise Unusable(
                f"was written by a newer Rookery (format {version}, this one reads {FORMAT_VERSION}): update Rookery"
            )
        if manifest.pop("sha256") != hash_of_manifest(manifest):
            raise Unusable(f"is damaged: the hash of {MANIFEST} does not match")
        if step is not None and manifest["step"] != step:
            raise Unusable(f"is damaged: {MANIFEST} is that of step {manifest['step']}")
        is_valid = (
            version >= 1
            and type(manifest["step"]) is int
            and isinstance(manifest["metadata"], dict)
            and all(map(_is_valid_leaf, manifest["leaves"]))
            and all(
                isinstance(stated["bytes"], int) and isinstance(stated["sha256"], str)
                for stated in manifest["files"].values()
            )
        )
    except (LookupError, TypeError, AttributeError, ValueError):
        is_valid = False
    if not is_valid:
        raise Unusable(f"is damaged: {MANIFEST} is not valid")
    return manifest


def _is_valid_leaf(leaf: Leaf) -> bool:
    if not isinstance(leaf["path"], str) or len(leaf["shape"]) > MAX_DIMENSIONS:
        return False
    if not all(type(length) is int and 0 <= length <= MAX_LENGTH for length in leaf["shape"]):
        return False
    if not re.fullmatch(r"\d{5,9}", leaf.get("array", "00000")):
        return False
    implementation = leaf.get("key_implementation")
    if implementation is not None:
        return leaf["dtype"] in KEYS and KEYS[leaf["dtype"]][0] == implementation
    return is_storable(leaf["dtype"])


def _check_kinds(folder: Path) -> None:
    """Raise unless the folder holds plain files and folders only."""
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            mode = os.lstat(os.path.join(parent, name)).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise Unusable(f"is damaged: {name} is neither a plain file nor a folder")


def _check_file(root: Path, path: str, name: str, num_bytes: int, sha256: str) -> Stamp:
    with open(open_inside(root, path), "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_size != num_bytes:
            raise Unusable(f"is damaged: {name} has {found.st_size} bytes, expected {num_bytes}")
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise Unusable(f"is damaged: {name} has sha256 {digest:.16}..., expected {sha256:.16}...")
    return _stamp(found)


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
