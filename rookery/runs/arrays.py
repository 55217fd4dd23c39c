"""The arrays of a checkpoint: one safetensors file, whose header follows from the leaves in the manifest.

The header in the file is compared byte for byte with the one that the leaves have. So nothing that a stranger wrote
into it is parsed, and no array is read that is not as large as its leaf says.
"""

import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.runs.files import open_inside
from rookery.runs.verification import Leaf, Unusable, stored_kind

ARRAYS = "arrays.safetensors"
SAFETENSORS_DTYPES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    **{f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
}
"""The names of dtypes in safetensors. Arrays of other dtypes are stored as bytes, with one more axis."""
ALIGNMENT = 8


class Layout(NamedTuple):
    """The first bytes of the file, where each array begins, and the size of the file."""

    header: bytes
    begins: dict[str, int]
    num_bytes: int


def write_arrays(folder: Path, leaves: Sequence[Leaf], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Write the arrays of leaves, by path, into `folder`; return the size and hash of the file."""
    layout, digest = _layout(leaves), hashlib.sha256()
    contents: Iterable[bytes | memoryview] = (_bytes_of(arrays[path]) for path in layout.begins)
    with open(folder / ARRAYS, "wb") as file:
        for content in itertools.chain([layout.header], contents):
            file.write(content)
            digest.update(content)
    return {"bytes": layout.num_bytes, "sha256": digest.hexdigest()}


def read_arrays(folder: Path, leaves: Sequence[Leaf], wanted: Sequence[Leaf]) -> dict[str, np.ndarray]:
    """Read the arrays of some leaves by path, from the file in `folder` with the arrays of `leaves`."""
    layout, arrays = _layout(leaves), {}
    with open(open_inside(folder, ARRAYS), "rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != layout.num_bytes:
            raise Unusable(f"is damaged: {ARRAYS} has {found} bytes, and its leaves {layout.num_bytes}")
        if file.read(len(layout.header)) != layout.header:
            raise Unusable(f"is damaged: the header of {ARRAYS} is not that of the leaves in the manifest")
        for leaf in wanted:
            array = arrays[leaf["path"]] = np.empty(*stored_kind(leaf))
            file.seek(layout.begins[leaf["path"]])
            if file.readinto(_bytes_of(array)) != array.nbytes:
                raise Unusable(f"changed while it was read: {ARRAYS} is shorter than before")
    return arrays


def _layout(leaves: Sequence[Leaf]) -> Layout:
    """Lay out the file: arrays with larger entries first, so that each is aligned, without gaps between them."""
    kinds = {leaf["path"]: stored_kind(leaf) for leaf in leaves}
    entries, offsets, end = {}, {}, 0
    for path, (shape, dtype) in sorted(kinds.items(), key=lambda item: -item[1][1].itemsize):
        offsets[path], end = end, end + math.prod(shape) * dtype.itemsize
        name = SAFETENSORS_DTYPES.get(str(dtype))
        entries[path] = {
            "dtype": name or "U8",
            "shape": shape if name else (*shape, dtype.itemsize),
            "data_offsets": (offsets[path], end),
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text = text.ljust(math.ceil(len(text) / ALIGNMENT) * ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return Layout(header, {path: len(header) + offset for path, offset in offsets.items()}, len(header) + end)


def _bytes_of(array: np.ndarray) -> memoryview:
    """Return the bytes of an array, without a copy if they are in order."""
    in_order = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return in_order.reshape(-1).view(np.uint8).data
