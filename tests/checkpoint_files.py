"""Files of checkpoints as tests change them: with right hashes, and as versions before format 4 wrote them."""

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rookery.runs.arrays import ARRAYS, read_arrays
from rookery.runs.verification import hash_of_manifest


def read_manifest(path: Path) -> dict[str, Any]:
    return json.loads((path / "manifest.json").read_text())


def seal(path: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest whose own hash is right."""
    manifest.pop("sha256", None)
    manifest["sha256"] = hash_of_manifest(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def stated_files(path: Path) -> dict[str, Any]:
    """Return the entries of a manifest for the files of a checkpoint as they are."""
    files = [file for file in path.rglob("*") if file.is_file() and file.name != "manifest.json"]
    contents = {file.relative_to(path).as_posix(): file.read_bytes() for file in files}
    return {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }


def write_by_orbax(
    path: Path, version: int = 3, by_path: bool = False, rename: Callable[[str], str] = lambda name: name
) -> None:
    """Rewrite a checkpoint in a format before 4: Orbax stores each array under a number, or earlier under its path."""
    import orbax.checkpoint as ocp

    logging.getLogger("absl").setLevel(logging.ERROR)
    manifest = read_manifest(path)
    arrays = read_arrays(path, manifest["leaves"], manifest["leaves"])
    stored, leaves = {}, []
    for number, leaf in enumerate(manifest["leaves"]):
        renamed = leaf | {"path": rename(leaf["path"])}
        name = renamed["path"] if by_path else f"{number:05d}"
        leaves.append(renamed if by_path else renamed | {"array": name})
        if arrays[leaf["path"]].size:
            stored[name] = arrays[leaf["path"]]
    (path / ARRAYS).unlink()
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=by_path)
    # Elsewhere first: Orbax takes a backslash in a path for a slash.
    with tempfile.TemporaryDirectory() as folder, ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(Path(folder) / "arrays", args=ocp.args.PyTreeSave(stored))
        shutil.move(Path(folder) / "arrays", path)
    if version == 1:
        shutil.rmtree(path / "policy", ignore_errors=True)
    seal(path, manifest | {"format_version": version, "leaves": leaves, "files": stated_files(path)})
