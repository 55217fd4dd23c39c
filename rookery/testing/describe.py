"""Descriptions for findings of checks: errors, arrays, differences of trees, values outside of a space."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import place_of
from rookery.spaces import ArraySpace, Box, Dict, Shape, Space, Tuple
from rookery.types import PyTree

TOLERANCE = 1e-4
"""The tolerance for two computations of the same number: mapped code sums in a different order."""


def describe_error(error: BaseException) -> str:
    """Return the type of an exception and the first line of its message, or where it was raised."""
    lines = str(error).strip().splitlines()
    return (
        f"{type(error).__name__}: {lines[0].strip().rstrip('.')}"
        if lines
        else f"{type(error).__name__} in {place_of(error)}"
    )


def one_line(text: str) -> str:
    """Join the lines of a text."""
    return " ".join(text.split())


def leaf_text(leaf: Any) -> str:
    """Describe an array by dtype and shape: `float32[3, 2]`."""
    return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else type(leaf).__name__


def index_text(index: Shape) -> str:
    """Format an index as in code, `[3, 2]`; empty for a scalar."""
    return f"[{', '.join(map(str, index))}]" if index else ""


def count_text(number: int, what: str) -> str:
    """Format a count: `2 steps`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def tree_text(tree: PyTree) -> str:
    """Describe a tree of arrays by dtypes and shapes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return ", ".join(f"{jax.tree_util.keystr(path)} {leaf_text(leaf)}".strip() for path, leaf in leaves) or "nothing"


def first_mismatch(one: PyTree, other: PyTree, name_of_one: str, name_of_other: str) -> str | None:
    """Describe the first leaf that differs in shape or dtype between two trees, or that only one of them has."""
    leaves_of_one, leaves_of_other = (
        {jax.tree_util.keystr(path): leaf_text(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (one, other)
    )
    for path in dict.fromkeys([*leaves_of_one, *leaves_of_other]):
        text_of_one, text_of_other = leaves_of_one.get(path, "missing"), leaves_of_other.get(path, "missing")
        if text_of_one != text_of_other:
            return f"{path} is {text_of_one} {name_of_one} and {text_of_other} {name_of_other}"
    structure_of_one: Any = jax.tree.structure(one)
    if structure_of_one != jax.tree.structure(other):
        return f"the containers or static fields {name_of_one} differ from those {name_of_other}"
    return None


def first_difference(one: PyTree, other: PyTree, tolerance: float = 0.0) -> str | None:
    """Describe the first leaf in which two trees differ, in structure or in value; NaN equals NaN."""
    if mismatch := first_mismatch(one, other, "in one", "in the other"):
        return mismatch
    for (path, leaf), other_leaf in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        array, other_array = _comparable(leaf), _comparable(other_leaf)
        if np.issubdtype(array.dtype, np.inexact):
            equal = np.isclose(array, other_array, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            equal = np.asarray(array == other_array)
        if not np.all(equal):
            where = first_index(~equal)
            entry = jax.tree_util.keystr(path) + index_text(where)
            return f"{entry or 'it'} is {array[where]} in one and {other_array[where]} in the other"
    return None


def with_spaces(space: Space, tree: PyTree, what: str) -> Iterator[tuple[str, ArraySpace, np.ndarray]]:
    """Iterate over the arrays of an element of a space, each with its name and space."""
    match space:
        case Dict():
            for name, subspace in space.spaces.items():
                yield from with_spaces(subspace, tree[name], f"{what}[{name!r}]")
        case Tuple():
            for index, subspace in enumerate(space.spaces):
                yield from with_spaces(subspace, tree[index], f"{what}[{index}]")
        case ArraySpace():
            yield what, space, np.asarray(tree)


def first_outside(space: Space, tree: PyTree, what: str, batch_shape: Shape = ()) -> str | None:
    """Describe the first entry of `tree` outside of the space; NaN is ignored."""
    for name, subspace, array in with_spaces(space, tree, what):
        for row in np.ndindex(batch_shape):
            element = array[row]
            if isinstance(subspace, Box) and np.issubdtype(element.dtype, np.inexact):
                element = np.where(np.isnan(element), subspace.low.astype(element.dtype), element)
            if subspace.contains(element):
                continue
            if not isinstance(subspace, Box):
                return f"{name}{index_text(row)} is {element.tolist()}, outside {subspace}"
            low, high = subspace.low.astype(element.dtype), subspace.high.astype(element.dtype)
            where = first_index((element < low) | (element > high))
            bounds = f"[{low[where]}, {high[where]}]"
            return f"{name}{index_text((*row, *where))} is {element[where]}, outside {bounds}"
    return None


def changed_argument(function: Callable, *args: Any) -> str | None:
    """Trace a function and return the first leaf of its arguments that it changed in place."""
    changes: list[str] = []

    def watched(*traced: Any) -> None:
        before = dict(jax.tree_util.tree_leaves_with_path(traced))
        function(*traced)
        after = dict(jax.tree_util.tree_leaves_with_path(traced))
        changed = (path for path in before | after if before.get(path) is not after.get(path))
        changes.extend(jax.tree_util.keystr(path[1:]) for path in changed)  # path[0] is the argument

    jax.eval_shape(watched, *args)
    return changes[0] if changes else None


def first_index(mask: np.ndarray) -> Shape:
    """Return the index of the first true entry."""
    return tuple(np.argwhere(mask)[0].tolist())


def _comparable(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)
