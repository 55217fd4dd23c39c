"""The arrays of checkpoints of formats 1 to 3, which Orbax wrote with TensorStore."""

import contextlib
import operator
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from rookery.runs.directory import JsonObject
from rookery.runs.verification import Leaf, Unusable, stored_kind

FOLDER = "arrays"


def read_orbax_arrays(checkpoint: Path, leaves: Sequence[Leaf]) -> dict[str, np.ndarray]:
    """Read the arrays of these leaves from the folder of a checkpoint; empty arrays are not stored.

    The files may claim any shape: it is compared before memory is allocated. Orbax would not compare.
    """
    arrays = {leaf["path"]: np.empty(*stored_kind(leaf)) for leaf in leaves if 0 in leaf["shape"]}
    stored = [leaf for leaf in leaves if leaf["path"] not in arrays]
    with _without_backslash(checkpoint / FOLDER) as folder:
        try:
            opened = [ts.open({"driver": "zarr", "kvstore": _place(folder, leaf)}, read=True) for leaf in stored]
            stores = [future.result() for future in opened]
            for leaf, store in zip(stored, stores, strict=True):
                _check_stored(leaf, store)
            reads = [store.read(order="C") for store in stores]
            return arrays | {
                leaf["path"]: np.asarray(future.result()) for leaf, future in zip(stored, reads, strict=True)
            }
        except ValueError as error:
            raise Unusable(f"is damaged: {str(error).splitlines()[0]:.200}") from None


def _place(folder: Path, leaf: Leaf) -> JsonObject:
    """Return where TensorStore finds the array of a leaf."""
    files = {"driver": "file", "path": f"{folder}/"}
    if "array" in leaf:
        return files | {"path": f"{folder}/{leaf['array']}/"}
    return {"driver": "ocdbt", "base": files, "path": f"{leaf['path']}/"}  # as written before arrays had numbers


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
