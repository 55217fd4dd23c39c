"""Checkpoints: complete training states on disk, verified before they or parts of them are read.

A checkpoint is a folder named after its step. It contains the arrays of the state in one safetensors file, and
`manifest.json` with the leaves and the size and hash of every file. It is written to a temporary folder, flushed to
disk and renamed, so a folder named after a step is complete. Nothing is pickled.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath

from rookery.errors import InvalidInputError, RookeryError, check_count
from rookery.runs.arrays import ARRAYS, read_arrays, write_arrays
from rookery.runs.directory import JsonObject, RunDirectory
from rookery.runs.files import TEMPORARY, make_folder, sync_to_disk
from rookery.runs.verification import (
    FORMAT_VERSION,
    MANIFEST,
    Leaf,
    Unusable,
    Verified,
    check_unchanged,
    damage_as_unusable,
    hash_of_manifest,
    is_storable,
    verify,
)
from rookery.types import PyTree

OLDEST_RESUMED = 3
"""The oldest format with the states of this version."""
OLDEST_SAFETENSORS = 4
NUM_FLUSHES = 8
"""The number of files that are flushed at the same time: a disk writes several as fast as one."""
REPLACED = ".replaced"
"""The suffix of the previous checkpoint of a step that is saved again."""


class CheckpointError(RookeryError):
    """A checkpoint cannot be written or read; the message names one that can be read."""


class Checkpoints:
    """The checkpoints of one run in one folder, to which one process at a time saves.

    `keep` is the number of newest checkpoints to keep; None keeps all.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int | None = 3) -> None:
        if keep is not None:
            check_count("keep", keep)
        self.folder = Path(folder)
        self.keep = keep

    def save(
        self,
        tree: PyTree,
        step: int,
        metadata: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
        also_keep: int | None = None,
    ) -> Path:
        """Write a pytree of arrays, random keys and numbers as the checkpoint of `step`, and return its folder.

        When `save` returns, the checkpoint is on disk; until then, a previous checkpoint of the same step stays valid.
        Later checkpoints are deleted, and old ones except that of the step `also_keep`. `metadata` must be serializable
        as JSON. `files` are further files by path.
        """
        leaves, arrays = _to_host(tree)
        files = files or {}
        needed = sum(array.nbytes for array in arrays.values()) + sum(map(len, files.values()))
        free = _free_bytes(self.folder)
        temporary = self.folder / f"{step:012d}.{secrets.token_hex(4)}{TEMPORARY}"
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self.folder.parent, self.folder.name)
            self._clean_up()
            if needed > free:
                raise OSError("the disk is full")
            temporary.mkdir()
            _write(temporary, leaves, arrays, files, step, metadata)
            self._publish(temporary, step)
        except OSError as error:
            raise self._write_failed(step, needed, free, error) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self.discard_after(step)
        if self.keep is not None:
            for old in self.steps()[: -self.keep]:
                if old != also_keep:
                    _remove(self._path(old))
        return self._path(step)

    def restore(self, template: PyTree, step: int | None = None) -> tuple[PyTree, JsonObject]:
        """Read the checkpoint of `step`, by default the last; return the tree and the metadata passed to `save`.

        `template` is a tree of the same structure, shapes and dtypes; its arrays may be `jax.ShapeDtypeStruct`. Each
        leaf is restored as the type of its template: a JAX array on the template's devices, a number, or a NumPy
        array. Random keys are always JAX arrays.
        """
        checkpoint = self.open(step)
        if checkpoint.format_version < OLDEST_RESUMED:
            raise CheckpointError(
                f"checkpoint {checkpoint.step} was written by {self._writer()} in format {checkpoint.format_version}, "
                f"and this version resumes formats {OLDEST_RESUMED} to {FORMAT_VERSION}: the run cannot be resumed, "
                "but it can still be evaluated and reported."
            )
        return checkpoint.read({"": template})[""], checkpoint.metadata

    def open(self, step: int | None = None, part: str = "") -> "Checkpoint":
        """Verify the checkpoint of `step`, by default the last, in order to read parts of it.

        With `part` only the files whose paths begin with it are verified, which is fast for a small part.
        """
        step = self._existing_step(step)
        try:
            return Checkpoint(self._path(step), verify(self._path(step), step, part))
        except Unusable as fault:
            raise CheckpointError(f"checkpoint {step} {fault}; {self._advice()}") from None

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        pattern = rf"(\d{{12,}})({re.escape(REPLACED)})?"
        matches = (re.fullmatch(pattern, entry.name) for entry in self.folder.iterdir())
        return sorted({int(match[1]) for match in matches if match})

    def check_going_back(self, step: int | None, given: str, consent: str) -> None:
        """Raise if there are checkpoints after `step`, which going back to it deletes.

        `given` is how the user named the step, and `consent` how to agree.
        """
        steps = self.steps()
        later = steps[steps.index(step) + 1 :] if step in steps else []
        if later:
            raise InvalidInputError(
                f"{given} deletes {len(later)} later checkpoint{'s' * (len(later) > 1)} "
                f"({', '.join(map(str, later[:5]))}{', ...' * (len(later) > 5)}) and the records after step {step}: "
                f"{consent}, or copy {self.folder.parent} first."
            )

    def metadata(self, step: int | None = None) -> JsonObject:
        """Return the metadata of the checkpoint of `step`, by default the last."""
        return self.open_manifest(step).metadata

    def open_manifest(self, step: int | None = None) -> "Checkpoint":
        """Verify the manifest alone of the checkpoint of `step`, by default the last."""
        return self.open(step, part=MANIFEST)

    def best_step(self) -> int | None:
        """Return the step of the checkpoint with the best evaluation; None without one."""
        best = self.metadata().get("best") if self.steps() else None
        step = best.get("step") if isinstance(best, dict) else None
        return step if step in self.steps() else None

    def last_good_step(self) -> int | None:
        """Return the last step whose files pass verification; None if there is no such step."""
        for step in reversed(self.steps()):
            with contextlib.suppress(Unusable):
                verify(self._path(step), step)
                return step
        return None

    def discard_after(self, step: int) -> None:
        """Delete the checkpoints after `step`, the newest first: a run resumed from `step` makes new ones.

        If this process is killed in between, the last checkpoint is still one whose records are complete.
        """
        for later in reversed(self.steps()):
            if later > step:
                _remove(self._path(later))

    def _path(self, step: int) -> Path:
        path = self.folder / f"{step:012d}"
        replaced = path.with_name(path.name + REPLACED)
        return replaced if replaced.exists() and not path.exists() else path

    def _publish(self, temporary: Path, step: int) -> None:
        path = self.folder / f"{step:012d}"
        replaced = path.with_name(path.name + REPLACED)
        if path.exists():
            path.rename(replaced)
        temporary.rename(path)
        sync_to_disk(self.folder)
        if replaced.exists():
            _remove(replaced)

    def _clean_up(self) -> None:
        """Delete the leftovers of killed processes; keep one complete checkpoint of a step that was being replaced."""
        for entry in list(self.folder.iterdir()):
            if entry.name.endswith(TEMPORARY):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name.endswith(REPLACED):
                path = entry.with_name(entry.name.removesuffix(REPLACED))
                if path.exists():
                    _remove(entry)
                else:
                    entry.rename(path)

    def _existing_step(self, step: int | None) -> int:
        steps = self.steps()
        if not steps:
            raise CheckpointError(f"there is no checkpoint in {self.folder}.")
        if step is None:
            return steps[-1]
        if step not in steps:
            raise CheckpointError(
                f"there is no checkpoint {step} in {self.folder}: choose one of {', '.join(map(str, steps))}."
            )
        return step

    def _write_failed(self, step: int, needed: int, free: int, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"checkpoint {step} could not be written to {self.folder}: {error.strerror or error} "
            f"(it needs {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB free); {self._advice()}"
        )

    def _writer(self) -> str:
        """Name the Rookery that created the run."""
        run = RunDirectory(self.folder.parent)
        return f"Rookery {run.version}" if run.manifest_path.is_file() else "an older Rookery"

    def _advice(self) -> str:
        good = self.last_good_step()
        if good is None:
            return "no checkpoint is intact."
        run = shlex.quote(str(self.folder.parent))
        later = " --yes" if good < self.steps()[-1] else ""
        return f"the last intact checkpoint is {good}: `rookery resume {run} --step {good}{later}`."


class Checkpoint:
    """A verified checkpoint. `Checkpoints.open` makes it."""

    def __init__(self, path: Path, verified: Verified) -> None:
        manifest = verified.manifest
        self.path, self._stamps = path, verified.stamps
        self._leaves: list[Leaf] = manifest["leaves"]
        self.step: int = manifest["step"]
        self.format_version: int = manifest["format_version"]
        self.metadata: JsonObject = manifest["metadata"]
        self.files: tuple[str, ...] = tuple(manifest["files"])

    def has(self, part: str) -> bool:
        """Return whether the tree has a part at this path."""
        return any(_is_in(leaf["path"], part) for leaf in self._leaves)

    def shape_of(self, part: str) -> tuple[int, ...] | None:
        """Return the shape of the leaf at this path; None if there is none."""
        shapes = (leaf["shape"] for leaf in self._leaves if leaf["path"] == f"state{part}")
        found = next(shapes, None)
        return None if found is None else tuple(found)

    def read(self, templates: Mapping[str, Any]) -> JsonObject:
        """Read parts of the tree, given a template for the path of each; the path of the whole tree is empty.

        A template is like that of `Checkpoints.restore`. Leaves outside of these parts are not read.
        """
        leaves = [leaf for leaf in self._leaves if any(_is_in(leaf["path"], path) for path in templates)]
        expected = [leaf for path, template in templates.items() for leaf in _describe(template, path)]
        _check_structure(self.step, leaves, expected)
        arrays = self._arrays(leaves)
        self.check_unchanged()
        saved = {leaf["path"]: leaf for leaf in leaves}

        def place(name: str, like: Any) -> Any:
            # Removed, so that a large state is not in memory twice.
            return _like_template(arrays.pop(name), saved[name].get("key_implementation"), like)

        return {
            path: jax.tree_util.tree_map_with_path(
                lambda key_path, like, path=path: place(_name(key_path, path), like), template
            )
            for path, template in templates.items()
        }

    def _arrays(self, leaves: Sequence[Leaf]) -> dict[str, np.ndarray]:
        try:
            if self.format_version < OLDEST_SAFETENSORS:
                from rookery.runs.orbax_arrays import read_orbax_arrays  # TensorStore takes long to import

                return read_orbax_arrays(self.path, leaves)
            if ARRAYS not in self._stamps:
                raise Unusable(f"is damaged: {MANIFEST} does not state the hash of {ARRAYS}")
            with damage_as_unusable(self.path):
                return read_arrays(self.path, self._leaves, leaves)
        except Unusable as fault:
            raise CheckpointError(f"checkpoint {self.step} {fault}.") from None

    def check_unchanged(self) -> None:
        """Raise if a file changed since it was verified: call it after reading one."""
        try:
            check_unchanged(self.path, self._stamps)
        except Unusable as fault:
            raise CheckpointError(f"checkpoint {self.step} {fault}.") from None


def open_checkpoint(folder: Path, part: str = "") -> Checkpoint:
    """Verify the checkpoint in a folder that the user names, in its run or copied out of it; `part` as above."""
    try:
        return Checkpoint(folder, verify(folder, None, part))
    except Unusable as fault:
        raise CheckpointError(f"the checkpoint {folder} {fault}.") from None


def _free_bytes(folder: Path) -> int:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _remove(path: Path) -> None:
    # Renamed first: a half-deleted folder must not look like a checkpoint.
    doomed = path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _name(key_path: KeyPath, part: str = "") -> str:
    return "state" + part + jax.tree_util.keystr(key_path)


def _is_in(name: str, part: str) -> bool:
    """Return whether a leaf belongs to the part of the tree at this path."""
    start = "state" + part
    return name == start or name.startswith((f"{start}.", f"{start}["))


def _describe(tree: PyTree, part: str = "") -> list[Leaf]:
    """Describe the leaves of the part of a tree at this path."""
    leaves = []
    for key_path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        leaves.append({"path": _name(key_path, part), "shape": list(array.shape), "dtype": str(array.dtype)})
    return leaves


def _to_host(tree: PyTree) -> tuple[list[Leaf], dict[str, np.ndarray]]:
    """Describe the leaves and copy them to the host as NumPy arrays by path; random keys as their data."""
    described, leaves = _describe(tree), jax.tree.leaves(tree)
    data = []
    for description, leaf in zip(described, leaves, strict=True):
        if _is_key(leaf):
            description["key_implementation"] = str(jax.random.key_impl(leaf))
        data.append(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
    arrays = {
        description["path"]: np.asarray(value)
        for description, value in zip(described, jax.device_get(data), strict=True)
    }
    for path, array in arrays.items():
        if not is_storable(str(array.dtype)):
            raise InvalidInputError(f"{path} is {array!s:.80}: checkpoints can store arrays, random keys and numbers.")
    return described, arrays


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _write(
    folder: Path,
    leaves: list[Leaf],
    arrays: dict[str, np.ndarray],
    files: Mapping[str, bytes],
    step: int,
    metadata: Mapping[str, Any],
) -> None:
    """Write a checkpoint into `folder` and wait until it is on disk."""
    stated = {ARRAYS: write_arrays(folder, leaves, arrays)}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        stated[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "metadata": dict(metadata),
        "leaves": leaves,
        "files": stated,
    }
    manifest["sha256"] = hash_of_manifest(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    with ThreadPoolExecutor(NUM_FLUSHES) as pool:
        list(pool.map(sync_to_disk, [folder, *folder.rglob("*")]))


def _check_structure(step: int, saved: Sequence[Leaf], expected: Sequence[Leaf]) -> None:
    found, wanted = ({leaf["path"]: f"{leaf['dtype']}{leaf['shape']}" for leaf in side} for side in (saved, expected))
    differences = [f"it has no {path}" for path in wanted if path not in found]
    differences += [f"it has {path}, which is not expected" for path in found if path not in wanted]
    differences += [
        f"{path} is {found[path]}, expected {kind}"
        for path, kind in wanted.items()
        if path in found and found[path] != kind
    ]
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise CheckpointError(
            f"checkpoint {step} belongs to another config or version: {'; '.join(differences[:3])}{more}."
        )


def _like_template(array: np.ndarray, key_implementation: str | None, like: Any) -> Any:
    """Convert a restored array to the type and devices of its template."""
    restored: Any = array
    if key_implementation:
        restored = jax.random.wrap_key_data(jnp.asarray(array), impl=key_implementation)
    if isinstance(like, bool | int | float | complex):
        return restored.item()
    sharding = getattr(like, "sharding", None)
    if isinstance(like, jax.Array) or sharding is not None:
        return jax.device_put(restored, sharding if getattr(like, "committed", True) else None)
    return restored
