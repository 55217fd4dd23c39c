"""Checkpoints: complete training states on disk, verified before they or parts of them are read.

A checkpoint is a folder named after its step. It contains `arrays/`, one array per leaf in Orbax format, and
`manifest.json` with the leaves and the size and hash of every file. It is written to a temporary folder, flushed to
disk and renamed, so a folder named after a step is complete. Nothing is pickled.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath

from rookery.errors import InvalidInputError, RookeryError, check_count
from rookery.runs.directory import JsonObject, RunDirectory
from rookery.runs.files import sync_to_disk, write_atomically
from rookery.types import PyTree

FORMAT_VERSION = 2
"""Format 1 holds the state of a learner in that of its workflow; format 2 under `learner`."""
ARRAYS, MANIFEST = "arrays", "manifest.json"
# Suffixes of folder names: the previous checkpoint of a step that is saved again, and folders to be deleted.
REPLACED, TEMPORARY = ".replaced", ".tmp"

Leaf = JsonObject
"""The entry of one leaf in the manifest: path, shape, dtype, and the implementation of random keys."""


class CheckpointError(RookeryError):
    """A checkpoint cannot be written or read; the message names one that can be read."""


class _Unusable(Exception):  # noqa: N818
    """Why a checkpoint cannot be read: the end of a sentence that starts with its name."""


class Checkpoints:
    """The checkpoints of one run in one folder, to which one process at a time saves.

    `keep` is the number of newest checkpoints to keep; None keeps all.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int | None = 3) -> None:
        if keep is not None:
            check_count("keep", keep)
        self.folder = Path(folder)
        self.keep = keep

    def save(self, tree: PyTree, step: int, metadata: Mapping[str, Any]) -> Path:
        """Write a pytree of arrays, random keys and numbers as the checkpoint of `step`, and return its folder.

        When `save` returns, the checkpoint is on disk; until then, a previous checkpoint of the same step stays valid.
        Later checkpoints are deleted. `metadata` must be serializable as JSON.
        """
        leaves, arrays = _to_host(tree)
        needed, free = sum(array.nbytes for array in arrays.values()), _free_bytes(self.folder)
        temporary = self.folder / f"{step:012d}.{secrets.token_hex(4)}{TEMPORARY}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clean_up()
            if needed > free:
                raise OSError("the disk is full")
            temporary.mkdir()
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

    def open(self, step: int | None = None) -> "Checkpoint":
        """Verify the checkpoint of `step`, by default the last, in order to read parts of it."""
        step = self._existing_step(step)
        try:
            return Checkpoint(self._path(step), _verify(self._path(step)))
        except _Unusable as fault:
            raise CheckpointError(f"checkpoint {step} {fault}; {self._advice()}") from None

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        pattern = rf"(\d{{12,}})({re.escape(REPLACED)})?"
        matches = (re.fullmatch(pattern, entry.name) for entry in self.folder.iterdir())
        return sorted({int(match[1]) for match in matches if match})

    def last_good_step(self) -> int | None:
        """Return the last step whose files pass verification; None if there is no such step."""
        for step in reversed(self.steps()):
            with contextlib.suppress(_Unusable):
                _verify(self._path(step))
                return step
        return None

    def discard_after(self, step: int) -> None:
        """Delete the checkpoints after `step`: a run resumed from `step` makes new ones."""
        for later in self.steps():
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
        return f"the last intact checkpoint is {good}: `rookery resume {run} --step {good}`."


class Checkpoint:
    """A verified checkpoint. `Checkpoints.open` makes it."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self._path = path
        self._leaves: list[Leaf] = manifest["leaves"]
        self.step: int = manifest["step"]
        self.format_version: int = manifest["format_version"]
        self.metadata: JsonObject = manifest["metadata"]

    def read(self, templates: Mapping[str, Any]) -> JsonObject:
        """Read parts of the tree, given a template for the path of each; the path of the whole tree is empty.

        A template is like that of `Checkpoints.restore`. Leaves outside of these parts are not read.
        """
        leaves = [leaf for leaf in self._leaves if any(_is_in(leaf["path"], path) for path in templates)]
        expected = [leaf for path, template in templates.items() for leaf in _describe(template, path)]
        _check_structure(self.step, leaves, expected)
        arrays = _read_arrays(self._path / ARRAYS, leaves)
        saved = {leaf["path"]: leaf for leaf in leaves}

        def place(name: str, like: Any) -> Any:
            return _like_template(arrays.get(name), saved[name].get("key_implementation"), like)

        return {
            path: jax.tree_util.tree_map_with_path(
                lambda key_path, like, path=path: place(_name(key_path, path), like), template
            )
            for path, template in templates.items()
        }


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
    _write_arrays(folder / ARRAYS, {path: array for path, array in arrays.items() if array.size})
    files = {}
    for path in sorted(folder.rglob("*")):
        sync_to_disk(path)
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": _hash_of_file(path)}
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "metadata": dict(metadata),
        "leaves": leaves,
        "files": files,
    }
    manifest["sha256"] = _hash_of_manifest(manifest)
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1))


def _verify(path: Path) -> JsonObject:
    """Return the manifest of a checkpoint; raise `_Unusable` if its format is too new or a file is damaged."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        version = manifest["format_version"]
        if version > FORMAT_VERSION:
            raise _Unusable(
                f"was written by a newer Rookery (format {version}, this one reads {FORMAT_VERSION}): update Rookery"
            )
        if manifest.pop("sha256") != _hash_of_manifest(manifest):
            raise _Unusable(f"is damaged: the hash of {MANIFEST} does not match")
        for name, stated in manifest["files"].items():
            size = (path / name).stat().st_size
            if size != stated["bytes"]:
                raise _Unusable(f"is damaged: {name} has {size} bytes, expected {stated['bytes']}")
            found = _hash_of_file(path / name)
            if found != stated["sha256"]:
                raise _Unusable(f"is damaged: {name} has sha256 {found:.16}..., expected {stated['sha256']:.16}...")
    except OSError as error:
        raise _Unusable(f"is damaged: {Path(error.filename or path).name}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _Unusable(f"is damaged: {MANIFEST} is not valid") from None
    return manifest


def _hash_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_of_manifest(manifest: JsonObject) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


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
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer:
            yield checkpointer
    finally:
        logger.setLevel(level)


def _write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    if arrays:
        with _checkpointer() as checkpointer:
            checkpointer.save(folder.absolute(), args=ocp.args.PyTreeSave(arrays))


def _read_arrays(folder: Path, leaves: Sequence[Leaf]) -> dict[str, np.ndarray]:
    """Read the arrays of these leaves, except empty ones, which are not stored."""
    import orbax.checkpoint as ocp

    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    wanted = {leaf["path"]: as_numpy for leaf in leaves if 0 not in leaf["shape"]}
    if not wanted:
        return {}
    with _checkpointer() as checkpointer:
        args = ocp.args.PyTreeRestore(item=dict.fromkeys(wanted, 0), restore_args=wanted, partial_restore=True)
        return checkpointer.restore(folder.absolute(), args=args)
