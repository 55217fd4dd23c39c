"""Rows packed on the device give back the leaves bit for bit, on the device and in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.packing import RowLayout
from rookery.types import PyTreeDict


def tree_of_every_kind(batch_shape: tuple[int, ...]) -> PyTreeDict:
    rng = np.random.default_rng(0)
    floats = rng.integers(0, 2**32, (*batch_shape, 3), np.uint32).view(
        np.float32
    )  # NaN payloads, denormals, infinities
    return PyTreeDict(
        obs={"pixels": rng.integers(0, 256, (*batch_shape, 2, 2), np.uint8), "state": floats},
        actions=rng.integers(-(2**31), 2**31, batch_shape, np.int32),
        mask=rng.random((*batch_shape, 4)) < 0.5,
        half=jnp.asarray(rng.normal(size=(*batch_shape, 2)), jnp.bfloat16),
        nothing=None,
        empty=np.zeros((*batch_shape, 0), np.float32),
    )


def assert_same_bits(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for our_leaf, their_leaf in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (our_leaf.dtype, our_leaf.shape) == (their_leaf.dtype, their_leaf.shape)
        assert np.asarray(our_leaf).tobytes() == np.asarray(their_leaf).tobytes()


@pytest.mark.parametrize("batch_shape", [(5,), (3, 2), ()])
@pytest.mark.parametrize("as_bits", [False, True])
def test_unpacking_returns_the_packed_tree_bit_for_bit(batch_shape: tuple[int, ...], as_bits: bool) -> None:
    layout = RowLayout.of(tree_of_every_kind(()), as_bits)
    tree = jax.tree.map(jnp.asarray, tree_of_every_kind(batch_shape))
    rows = jax.jit(layout.pack)(jax.tree.leaves(tree))
    assert_same_bits(jax.jit(layout.unpack)(rows), tree)
    assert_same_bits(layout.unpack(jax.tree.map(np.asarray, rows)), tree)


def test_leaves_of_one_dtype_share_a_row_and_as_bits_those_of_one_width() -> None:
    tree = tree_of_every_kind(())
    assert RowLayout.of(tree).widths == {"uint8": 4, "float32": 3, "int32": 1, "bool": 4, "bfloat16": 2}
    assert RowLayout.of(tree, as_bits=True).widths == {"uint8": 8, "uint32": 4, "uint16": 2}
