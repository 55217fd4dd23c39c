"""Checkpoints: complete training states on disk, verified before they or parts of them are read.

A checkpoint is a folder named after its step. It contains `arrays/`, one array per leaf in Orbax format, and
`manifest.json` with the leaves and the size and hash of every file. It is written to a temporary folder, flushed to
disk and renamed, so a folder named after a step is complete. Nothing is pickled.
"""

import contextlib
import functools
import json
import logging
import operator
import os
import re
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath

from rookery.errors import InvalidInputError, RookeryError, check_count
from rookery.runs.directory import JsonObject, RunDirectory
from rookery.runs.files import TEMPORARY, make_folder, sync_to_disk, write_atomically
from rookery.runs.verification import (
    FORMAT_VERSION,
    MANIFEST,
    Leaf,
    Unusable,
    Verified,
    check_unchanged,
    hash_of_file,
    hash_of_manifest,
    stored_kind,
    verify,
)
from rookery.types import PyTree

ARRAYS = "arrays"
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
            for name, content in files.items():
                (temporary / name).parent.mkdir(exist_ok=True)
                (temporary / name).write_bytes(content)
            _write(temporary, leaves, arrays, step, metadata)
            self._publish(temporary, step)
        # TensorStore, which Orbax writes with, raises ValueError if it cannot write.
        except (OSError, ValueError) as error:
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
        if checkpoint.format_version < FORMAT_VERSION:
            raise CheckpointError(
                f"checkpoint {checkpoint.step} was written by {self._writer()} in format {checkpoint.format_version}, "
                f"and this version resumes format {FORMAT_VERSION}: the run cannot be resumed, but it can still be "
                "evaluated and reported."
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
        return self.open(step, part=MANIFEST).metadata

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

    def _write_failed(self, step: int, needed: int, free: int, error: Exception) -> CheckpointError:
        # The message of TensorStore ends with the error of the operating system.
        reason = getattr(error, "strerror", None) or str(error).partition(" [")[0].rpartition(": ")[2]
        return CheckpointError(
            f"checkpoint {step} could not be written to {self.folder}: {reason} "
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

    def read(self, templates: Mapping[str, Any]) -> JsonObject:
        """Read parts of the tree, given a template for the path of each; the path of the whole tree is empty.

        A template is like that of `Checkpoints.restore`. Leaves outside of these parts are not read.
        """
        leaves = [leaf for leaf in self._leaves if any(_is_in(leaf["path"], path) for path in templates)]
        expected = [leaf for path, template in templates.items() for leaf in _describe(template, path)]
        _check_structure(self.step, leaves, expected)
        try:
            arrays = _read_arrays(self.path / ARRAYS, leaves)
        except Unusable as fault:
            raise CheckpointError(f"checkpoint {self.step} {fault}.") from None
        self.check_unchanged()
        saved = {leaf["path"]: leaf for leaf in leaves}

        def place(name: str, like: Any) -> Any:
            return _like_template(arrays.get(name), saved[name].get("key_implementation"), like)

        return {
            path: jax.tree_util.tree_map_with_path(
                lambda key_path, like, path=path: place(_name(key_path, path), like), template
            )
            for path, template in templates.items()
        }

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
        if array.dtype.kind in "OSUmM":
            raise InvalidInputError(f"{path} is {array!s:.80}: checkpoints can store arrays, random keys and numbers.")
    return described, arrays


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _write(folder: Path, leaves: list[Leaf], arrays: dict[str, np.ndarray], step: int, metadata: Mapping) -> None:
    """Write a checkpoint into `folder` and wait until it is on disk."""
    leaves = [leaf | {"array": f"{number:05d}"} for number, leaf in enumerate(leaves)]  # a path may be no file name
    stored = {leaf["array"]: arrays[leaf["path"]] for leaf in leaves}
    _write_arrays(folder / ARRAYS, {name: array for name, array in stored.items() if array.size})
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "metadata": dict(metadata),
        "leaves": leaves,
        "files": _flush_and_hash(folder),
    }
    manifest["sha256"] = hash_of_manifest(manifest)
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1))


def _flush_and_hash(folder: Path) -> dict[str, JsonObject]:
    """Wait until all files are on disk; return the size and hash of each."""
    paths = sorted(folder.rglob("*"))

    def flush(some: Sequence[Path]) -> dict[Path, JsonObject]:
        for path in some:
            sync_to_disk(path)
        return {path: {"bytes": path.stat().st_size, "sha256": hash_of_file(path)} for path in some if path.is_file()}

    with ThreadPoolExecutor(NUM_FLUSHES) as pool:
        parts = pool.map(flush, [paths[start::NUM_FLUSHES] for start in range(NUM_FLUSHES)])
        files = {path: found for part in parts for path, found in part.items()}
    return {path.relative_to(folder).as_posix(): files[path] for path in paths if path in files}


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


def _like_template(array: np.ndarray | None, key_implementation: str | None, like: Any) -> Any:
    """Convert a restored array to the type and devices of its template; None stands for an empty array."""
    restored: Any = array
    if array is None:
        restored = jnp.empty(like.shape, like.dtype) if key_implementation else np.empty(like.shape, like.dtype)
    elif key_implementation:
        restored = jax.random.wrap_key_data(jnp.asarray(array), impl=key_implementation)
    if isinstance(like, bool | int | float | complex):
        return restored.item()
    sharding = getattr(like, "sharding", None)
    if isinstance(like, jax.Array) or sharding is not None:
        return jax.device_put(restored, sharding if getattr(like, "committed", True) else None)
    return restored


@contextlib.contextmanager
def _checkpointer() -> Iterator[Any]:
    """Yield an Orbax checkpointer without log output and without barriers: each process reads, one writes."""
    import orbax.checkpoint as ocp  # type: ignore[import-untyped]

    this_process = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=this_process,
        active_processes={this_process},
        barrier_sync_key_prefix=f"process_{this_process}",
    )
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        # One folder per array: with `use_ocdbt` TensorStore leaks some memory per array and checkpoint.
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, multiprocessing_options=alone)
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer:
            yield checkpointer
    finally:
        logger.setLevel(level)


@functools.cache
def _ignore_late_callbacks() -> None:
    """Do not print that TensorStore finds the event loop of a failed save closed; the failure itself is raised."""
    print_error = sys.unraisablehook

    def print_others(unraisable: "sys.UnraisableHookArgs") -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            print_error(unraisable)

    sys.unraisablehook = print_others


def _write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    if arrays:
        _ignore_late_callbacks()
        with _checkpointer() as checkpointer, _without_backslash(folder.parent) as parent:
            checkpointer.save(parent / folder.name, args=ocp.args.PyTreeSave(arrays))


def _read_arrays(folder: Path, leaves: Sequence[Leaf]) -> dict[str, np.ndarray]:
    """Read the arrays of these leaves, except empty ones, which are not stored.

    The files may claim any shape: it is compared before memory is allocated. Orbax would not compare.
    """
    import tensorstore as ts

    with _without_backslash(folder) as path, _damage_as_unusable():
        opened = {
            leaf["path"]: ts.open({"driver": "zarr", "kvstore": _place(path, leaf)}, read=True)
            for leaf in leaves
            if 0 not in leaf["shape"]
        }
        stores = {path: future.result() for path, future in opened.items()}
        for leaf in leaves:
            if leaf["path"] in stores:
                _check_stored(leaf, stores[leaf["path"]])
        reads = {path: store.read(order="C") for path, store in stores.items()}
        return {path: np.asarray(future.result()) for path, future in reads.items()}


def _place(folder: Path, leaf: Leaf) -> JsonObject:
    """Return where TensorStore finds the array of a leaf."""
    files = {"driver": "file", "path": f"{folder}/"}
    if "array" in leaf:
        return files | {"path": f"{folder}/{leaf['array']}/"}
    return {"driver": "ocdbt", "base": files, "path": f"{leaf['path']}/"}  # as written before arrays had numbers


@contextlib.contextmanager
def _damage_as_unusable() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise Unusable(f"is damaged: {str(error).splitlines()[0]:.200}") from None


@contextlib.contextmanager
def _without_backslash(folder: Path) -> Iterator[Path]:
    """Yield an absolute path of the folder that TensorStore understands: it takes a backslash for a slash."""
    if "\\" not in str(folder.absolute()):
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory() as temporary:
        link = Path(temporary) / "folder"
        link.symlink_to(folder.absolute())
        yield link


def _check_stored(leaf: Leaf, store: Any) -> None:
    """Raise unless a stored array is of the shape and dtype in the manifest, and in chunks that are no larger."""
    shape, dtype = stored_kind(leaf)
    chunk = store.chunk_layout.read_chunk.shape or ()
    compressor = store.spec().to_json()["metadata"]["compressor"]
    found = f"{store.dtype.numpy_dtype}{list(store.shape)}"
    if found != f"{dtype}{list(shape)}" or any(map(operator.gt, chunk, shape)):
        raise Unusable(f"is damaged: {leaf['path']} is stored as {found} in chunks of {list(chunk)}")
    if compressor is not None and compressor["id"] != "zstd":
        raise Unusable(f"is damaged: {leaf['path']} is compressed by {compressor['id']!r:.80}, expected 'zstd'")
