"""Trees packed into rows, with their leaves side by side: one gather or one copy then moves all of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Array, PyTree


class Column(NamedTuple):
    """Where a leaf lies: columns `start:stop` of the rows of dtype `storage`."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    storage: str
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """How the leaves of a tree lie side by side: in one row per dtype, or per width of number."""

    structure: jax.tree_util.PyTreeDef
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, tree: PyTree, as_bits: bool = False) -> Self:
        """Lay out trees like this one, which has no batch axes; only its shapes and dtypes matter.

        Leaves of the same dtype share a row. With `as_bits`, leaves of the same width share a row of unsigned integers,
        which keeps their bits, NaN payloads included.
        """
        paths_and_leaves, structure = jax.tree.flatten_with_path(tree)
        columns: list[Column] = []
        widths: dict[str, int] = {}
        for path, leaf in paths_and_leaves:
            storage = f"uint{8 * leaf.dtype.itemsize}" if as_bits else leaf.dtype.name
            start = widths.get(storage, 0)
            widths[storage] = start + int(np.prod(leaf.shape, dtype=int))
            name = jax.tree_util.keystr(path)
            columns.append(Column(name, leaf.shape, leaf.dtype, storage, start, widths[storage]))
        return cls(structure, tuple(columns))

    @property
    def widths(self) -> dict[str, int]:
        """The number of columns of each row, by its dtype."""
        return {column.storage: column.stop for column in self.columns}

    def pack(self, leaves: Sequence[Array]) -> dict[str, Array]:
        """Pack leaves `[..., *shape]` with the same batch axes into rows `[..., columns]`."""
        parts: dict[str, list[Array]] = {}
        for leaf, column in zip(leaves, self.columns, strict=True):
            batch_shape = leaf.shape[: leaf.ndim - len(column.shape)]
            stored = leaf
            if leaf.dtype.name != column.storage:
                # Booleans have no bit width of their own in JAX.
                convert = jnp.astype if leaf.dtype == jnp.bool_ else jax.lax.bitcast_convert_type
                stored = convert(leaf, column.storage)
            parts.setdefault(column.storage, []).append(stored.reshape(*batch_shape, column.stop - column.start))
        return {storage: jnp.concatenate(arrays, axis=-1) for storage, arrays in parts.items()}

    def unpack(self, rows: Mapping[str, Array]) -> PyTree:
        """Return the tree whose leaves `[..., *shape]` were packed; NumPy rows give NumPy leaves."""
        leaves = []
        for column in self.columns:
            array = rows[column.storage]
            leaf = array[..., column.start : column.stop].view(column.dtype)
            leaves.append(leaf.reshape((*array.shape[:-1], *column.shape)))
        return jax.tree.unflatten(self.structure, leaves)
