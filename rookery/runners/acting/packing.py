"""Packing of policy outputs into one array: one result to fetch and to store in each step."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Array

Tree = Any


@dataclass(frozen=True)
class Place:
    """The place of a leaf: columns of the common array, or its own array."""

    dtype: np.dtype
    shape: tuple[int, ...]
    array: int
    start: int = 0

    @property
    def width(self) -> int:
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class Packing:
    """The layout of a tree of leaves `[N, ...]` in a list of arrays.

    All leaves of 32 bits share the first array, uint32 `[N, columns]`, bit for bit. Every other leaf has its own.
    """

    treedef: Any
    places: tuple[Place, ...]

    @classmethod
    def of(cls, tree: Tree) -> "Packing":
        leaves, treedef = jax.tree.flatten(tree)
        num_arrays = 1 if any(leaf.dtype.itemsize == 4 for leaf in leaves) else 0
        places, num_columns = [], 0
        for leaf in leaves:
            dtype, shape = np.dtype(leaf.dtype), leaf.shape[1:]
            if dtype.itemsize == 4:
                places.append(Place(dtype, shape, 0, num_columns))
                num_columns += places[-1].width
            else:
                places.append(Place(dtype, shape, num_arrays))
                num_arrays += 1
        return cls(treedef, tuple(places))

    def first(self, treedef: Any) -> "Packing":
        """Return the layout of the first part of the tree in the same arrays."""
        return Packing(treedef, self.places[: treedef.num_leaves])

    def pack(self, tree: Tree) -> list[Array]:
        """Pack a tree into arrays, on the device."""
        columns, alone = [], []
        for leaf, place in zip(jax.tree.leaves(tree), self.places, strict=True):
            if place.dtype.itemsize == 4:
                bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
                columns.append(bits.reshape(leaf.shape[0], place.width))
            else:
                alone.append(leaf)
        return [jnp.concatenate(columns, axis=1), *alone] if columns else alone

    def unpack(self, arrays: list[np.ndarray]) -> Tree:
        """Return the tree of packed arrays, which may have any axes before the columns."""
        if self._is_one_leaf:
            return _leaf(arrays, self.places[0])
        return self.treedef.unflatten([_leaf(arrays, place) for place in self.places])

    @functools.cached_property
    def _is_one_leaf(self) -> bool:
        return jax.tree_util.treedef_is_leaf(self.treedef)


def _leaf(arrays: list[np.ndarray], place: Place) -> np.ndarray:
    array = arrays[place.array]
    if place.dtype.itemsize != 4:
        return array
    if not place.shape:
        return array[..., place.start].view(place.dtype)
    leaf = array[..., place.start : place.start + place.width].view(place.dtype)
    return leaf.reshape(*leaf.shape[:-1], *place.shape)
