"""Checkpoints of strangers: right hashes do not make their files safe."""

import hashlib
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from rookery.runs.checkpoint import CheckpointError, Checkpoints
from tests import checkpoint_files
from tests.checkpoint_files import read_manifest, stated_files

TREE = {"a": np.arange(4.0, dtype=np.float32)}
LEAF = {"path": "state['a']", "shape": [4], "dtype": "float32"}
ARRAYS = "arrays.safetensors"


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    checkpoints.save(TREE, 7, {})
    return checkpoints


def seal(path: Path, **changes: Any) -> None:
    """Write a manifest with right hashes for the files of a checkpoint."""
    checkpoint_files.seal(path, read_manifest(path) | {"files": stated_files(path)} | changes)


def safetensors(header: dict[str, Any] | bytes, data: bytes = TREE["a"].tobytes()) -> bytes:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(content).to_bytes(8, "little") + content + data


def header(**changes: Any) -> dict[str, Any]:
    return {"state['a']": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} | changes}


@pytest.mark.parametrize(
    "content",
    [
        safetensors(header(shape=[2_000_000_000], data_offsets=[0, 8_000_000_000])),
        safetensors(header(dtype="F64")),
        safetensors(header(data_offsets=[16, 32])),
        safetensors(header(data_offsets=[-16, 0])),
        safetensors(header() | {"more": {"dtype": "F32", "shape": [0], "data_offsets": [16, 16]}}),
        safetensors({}),
        safetensors(b"[" * 10**6),
        safetensors(header(), data=b""),
        (2**63).to_bytes(8, "little"),
        b"",
    ],
)
def test_a_file_of_arrays_that_differs_from_the_manifest_is_refused(checkpoints: Checkpoints, content: bytes) -> None:
    path = checkpoints.folder / "000000000007"
    for padding in (b"", bytes(max(0, (path / ARRAYS).stat().st_size - len(content)))):
        (path / ARRAYS).write_bytes(content + padding)
        seal(path)
        with pytest.raises(CheckpointError, match=f"checkpoint 7 is damaged: .*{ARRAYS}"):
            checkpoints.restore(TREE)


def test_a_file_of_arrays_of_another_size_than_its_leaves_is_refused(checkpoints: Checkpoints) -> None:
    path = checkpoints.folder / "000000000007"
    whole = (path / ARRAYS).read_bytes()
    for content in (whole + b"x", whole[:-1]):
        (path / ARRAYS).write_bytes(content)
        seal(path)
        with pytest.raises(CheckpointError, match=rf"{ARRAYS} has {len(content)} bytes, and its leaves {len(whole)}"):
            checkpoints.restore(TREE)


def test_arrays_whose_hash_is_not_stated_are_not_read(checkpoints: Checkpoints) -> None:
    seal(checkpoints.folder / "000000000007", files={})
    with pytest.raises(CheckpointError, match=rf"manifest\.json does not state the hash of {ARRAYS}"):
        checkpoints.restore(TREE)


def store(path: Path, **metadata: Any) -> None:
    """Write the array as in format 3, with other metadata."""
    place = {"driver": "file", "path": f"{path}/arrays/00000/"}
    described = {"shape": [4], "chunks": [4], "dtype": "<f4", "compressor": {"id": "zstd", "level": 1}} | metadata
    ts.open({"driver": "zarr", "kvstore": place, "metadata": described}, create=True, delete_existing=True).result()


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"shape": [2_000_000_000], "chunks": [1000]}, r"is stored as float32\[2000000000\]"),
        ({"chunks": [2_000_000_000]}, r"in chunks of \[2000000000\]"),
        ({"dtype": "<f8"}, r"is stored as float64\[4\]"),
        ({"compressor": {"id": "blosc"}}, "is compressed by 'blosc'"),
    ],
)
def test_an_array_of_orbax_that_differs_from_the_manifest_is_refused_before_memory_is_taken(
    checkpoints: Checkpoints, metadata: dict[str, Any], problem: str
) -> None:
    path = checkpoints.folder / "000000000007"
    store(path, **metadata)
    seal(path, format_version=3, leaves=[LEAF | {"array": "00000"}])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=f"checkpoint 7 is damaged: .*{problem}"):
        checkpoints.restore(TREE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 10**6  # kB


def test_a_shape_in_the_manifest_is_compared_with_the_template(checkpoints: Checkpoints) -> None:
    path = checkpoints.folder / "000000000007"
    seal(path, leaves=[LEAF | {"shape": [2_000_000_000]}])
    with pytest.raises(CheckpointError, match=r"state\['a'\] is float32\[2000000000\], expected float32\[4\]"):
        checkpoints.restore(TREE)


@pytest.mark.parametrize("name", ["../../../outside", "../../config.yaml"])
def test_a_manifest_does_not_name_files_outside(checkpoints: Checkpoints, name: str) -> None:
    path = checkpoints.folder / "000000000007"
    (path / name).touch()
    seal(path, files={name: {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}})
    with pytest.raises(CheckpointError, match=r"is not the name of a file inside"):
        checkpoints.restore(TREE)


def test_an_absolute_path_in_a_manifest_is_a_name_inside(checkpoints: Checkpoints) -> None:
    seal(checkpoints.folder / "000000000007", files={"/dev/zero": {"bytes": 0, "sha256": ""}})
    with pytest.raises(CheckpointError, match="No such file"):
        checkpoints.restore(TREE)


@pytest.mark.parametrize("name", ["../../../outside", "/dev", "", "00000/..", 3])
def test_a_manifest_does_not_name_arrays_outside(checkpoints: Checkpoints, name: Any) -> None:
    seal(checkpoints.folder / "000000000007", format_version=3, leaves=[LEAF | {"array": name}])
    with pytest.raises(CheckpointError, match=r"manifest\.json is not valid"):
        checkpoints.restore(TREE)


def as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["manifest.json", ARRAYS])
@pytest.mark.parametrize("damage", [as_link, as_pipe])
def test_links_and_pipes_are_refused(checkpoints: Checkpoints, name: str, damage: Callable[[Path], None]) -> None:
    damage(checkpoints.folder / "000000000007" / name)
    with pytest.raises(CheckpointError, match=r"checkpoint 7 is damaged: .*no checkpoint is intact"):
        checkpoints.restore(TREE)


@pytest.mark.parametrize("name", [".", "000000000007"])
def test_linked_folders_are_refused(checkpoints: Checkpoints, name: str) -> None:
    as_link(checkpoints.folder / name)
    with pytest.raises(CheckpointError, match="checkpoint 7 is damaged: "):
        checkpoints.restore(TREE)


def test_a_file_that_changes_after_it_was_hashed_is_not_used(checkpoints: Checkpoints) -> None:
    other = Checkpoints(checkpoints.folder.parent / "other")
    other.save({"a": TREE["a"] + 1}, 7, {})
    opened = checkpoints.open()
    (other.folder / "000000000007" / ARRAYS).rename(checkpoints.folder / "000000000007" / ARRAYS)
    with pytest.raises(CheckpointError, match=f"checkpoint 7 changed while it was read: {ARRAYS}"):
        opened.read({"": TREE})


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 8},
        {"format_version": 0},
        {"format_version": "2"},
        {"metadata": []},
        {"leaves": [1]},
        {"leaves": [LEAF | {"dtype": "key<fry>"}]},
        {"leaves": [LEAF | {"dtype": "object"}]},
        {"leaves": [LEAF | {"shape": [-4]}]},
        {"leaves": [LEAF | {"shape": [2**63]}]},
        {"leaves": [LEAF | {"shape": [1] * 65}]},
        {"leaves": [LEAF | {"key_implementation": "evil"}]},
        {"files": []},
        {"files": {ARRAYS: 1}},
    ],
)
def test_a_manifest_of_another_form_is_refused(checkpoints: Checkpoints, changes: dict[str, Any]) -> None:
    seal(checkpoints.folder / "000000000007", **{"files": {}} | changes)
    with pytest.raises(CheckpointError, match=r"checkpoint 7 is damaged: manifest\.json is (not valid|that of step 8)"):
        checkpoints.restore(TREE)
