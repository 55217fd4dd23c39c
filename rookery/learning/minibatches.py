"""Shuffled minibatches for epochs over the same samples, without a sort and with one gather for all fields.

packed = pack(samples)                                              # leaves [N, ...]
for indexes in epoch_indexes(key, num_samples, num_minibatches):    # one key per epoch
    minibatch = packed.take(indexes)                                # leaves [N / num_minibatches, ...]
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped, UInt32

from rookery.agent import Carry
from rookery.errors import InvalidInputError, ShapeError, check_count
from rookery.learning.experience import Weighted
from rookery.learning.updates import num_chunks_for
from rookery.metrics import Mean
from rookery.spaces import Shape
from rookery.types import Key, PyTreeData, as_one_key, pytree_field

State = TypeVar("State")
Samples = TypeVar("Samples", bound=Weighted)
Metrics = dict[str, Mean]

NUM_ROUNDS = 6
"""With fewer, the places of two neighbors still know of each other when there are less than a hundred samples."""


def epoch_indexes(key: Key, num_samples: int, num_minibatches: int) -> UInt32[Array, "num_minibatches size"]:
    """Deal the indexes `0..num_samples - 1` out to minibatches of equal size, each index exactly once."""
    check_num_minibatches(num_samples, num_minibatches)
    return shuffled_indexes(key, num_samples).reshape(num_minibatches, num_samples // num_minibatches)


def scan_minibatches(
    step_fn: Callable[[State, Samples, Carry, int], tuple[State, Metrics]],
    state: State,
    samples: Samples,
    carry: Carry,
    epoch_keys: Key,
    num_minibatches: int,
) -> tuple[State, Metrics]:
    """Call `step_fn(state, minibatch, carry, num_chunks)` on every minibatch of every epoch; add up its metrics.

    `samples` are a trajectory `[T, B]`. For a recurrent agent a minibatch is a group of environments, each with the
    recurrent state it starts from; otherwise it consists of single steps `[N]`, and `num_chunks` says into how many
    chunks it is best cut.
    """
    num_steps, num_envs = jax.tree.leaves(samples)[0].shape[:2]
    is_recurrent = bool(jax.tree.leaves(carry))
    num_samples = num_envs if is_recurrent else num_steps * num_envs
    # The mean over chunks is the mean over samples only if all of them count.
    num_chunks = 1 if is_recurrent or samples.weights is not None else num_chunks_for(num_samples // num_minibatches)
    packed = None if is_recurrent else pack(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), samples))

    def step(state: State, indexes: Array) -> tuple[State, Metrics]:
        if packed is not None:
            return step_fn(state, packed.take(indexes), (), num_chunks)
        group = jax.tree.map(lambda leaf: leaf[:, indexes], samples)
        return step_fn(state, group, jax.tree.map(lambda leaf: leaf[indexes], carry), num_chunks)

    def epoch(state: State, key: Key) -> tuple[State, Metrics]:
        return jax.lax.scan(step, state, epoch_indexes(key, num_samples, num_minibatches))

    state, metrics = jax.lax.scan(epoch, state, epoch_keys)
    return state, jax.tree.map(jnp.sum, metrics)


def check_num_minibatches(num_samples: int, num_minibatches: int) -> None:
    """Raise unless `num_samples` can be dealt out to minibatches of equal size."""
    check_count("num_samples", num_samples)
    check_count("num_minibatches", num_minibatches)
    if num_samples % num_minibatches == 0:
        return
    divisors = [number for number in range(1, num_samples + 1) if num_samples % number == 0]
    near = [max(number for number in divisors if number < num_minibatches)]
    near += [number for number in divisors if number > num_minibatches][:1]
    raise InvalidInputError(
        f"num_minibatches={num_minibatches} does not divide {num_samples} samples: use {' or '.join(map(str, near))}."
    )


def shuffled_indexes(key: Key, size: int) -> UInt32[Array, " size"]:
    """Permute `0..size - 1` at random: what `jax.random.permutation` does by sorting, in a few operations per index.

    Each round is a bijection of the numbers below a power of two: multiply by an odd number, add, fold the upper half
    of the bits into the lower. Where `size` is no power of two, an index that leaves the range is sent on until it
    comes back ("cycle walking": Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
    """
    check_count("size", size)
    num_bits = (size - 1).bit_length()
    mask, half = np.uint32(2**num_bits - 1), np.uint32((num_bits + 1) // 2)
    multipliers, summands = jax.random.bits(as_one_key(key), (2, NUM_ROUNDS), jnp.uint32)
    multipliers = multipliers | np.uint32(1)

    def scramble(indexes: Array) -> Array:
        for step in range(NUM_ROUNDS):
            indexes = (indexes * multipliers[step] + summands[step]) & mask
            indexes = indexes ^ (indexes >> half)
        return indexes

    indexes = scramble(jnp.arange(size, dtype=jnp.uint32))
    if size == 2**num_bits:
        return indexes
    return jax.lax.while_loop(
        lambda indexes: jnp.any(indexes >= size),
        lambda indexes: jnp.where(indexes >= size, scramble(indexes), indexes),
        indexes,
    )


class _Columns(NamedTuple):
    """Where a leaf lies in the rows of its width, and what it was."""

    width: int
    start: int
    shape: Shape
    dtype: np.dtype

    @property
    def stop(self) -> int:
        return self.start + int(np.prod(self.shape, dtype=int))


class Packed(PyTreeData):
    """Samples side by side in one array per width of number, so that one gather fetches all their fields.

    The arrays hold the bits as unsigned integers: what comes out is what went in, NaNs included.
    """

    rows: dict[int, Shaped[Array, "N columns"]]
    columns: tuple[_Columns, ...] = pytree_field(static=True)
    structure: Any = pytree_field(static=True)

    def take(self, indexes: Shaped[Array, " M"]) -> Any:
        """Return the samples at `indexes`, which must lie in range, as a tree like the one that was packed."""
        taken = {
            width: rows.at[indexes].get(mode="promise_in_bounds", unique_indices=True)
            for width, rows in self.rows.items()
        }
        leaves = [
            _from_bits(taken[place.width][:, place.start : place.stop], place.dtype).reshape(len(indexes), *place.shape)
            for place in self.columns
        ]
        return jax.tree.unflatten(self.structure, leaves)


def pack(samples: Any) -> Packed:
    """Lay a tree of numbers and booleans `[N, ...]` out for `Packed.take`."""
    paths_and_leaves, structure = jax.tree.flatten_with_path(samples)
    columns: list[_Columns] = []
    parts: dict[int, list[Array]] = {}
    num_columns: dict[int, int] = {}
    for path, leaf in paths_and_leaves:
        num_samples = paths_and_leaves[0][1].shape[:1]
        if leaf.ndim == 0 or leaf.shape[:1] != num_samples:
            raise ShapeError(
                f"samples{jax.tree_util.keystr(path)} has shape {list(leaf.shape)}: expected [N, ...] with the same N "
                f"for all fields, {list(num_samples)} as in the first."
            )
        width = leaf.dtype.itemsize
        place = _Columns(width, num_columns.get(width, 0), leaf.shape[1:], leaf.dtype)
        columns.append(place)
        num_columns[width] = place.stop
        parts.setdefault(width, []).append(_to_bits(leaf).reshape(leaf.shape[0], place.stop - place.start))
    rows = {width: jnp.concatenate(leaves, axis=1) for width, leaves in parts.items()}
    return Packed(rows=rows, columns=tuple(columns), structure=structure)


def _to_bits(leaf: Array) -> Array:
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")


def _from_bits(bits: Array, dtype: np.dtype) -> Array:
    return bits.astype(dtype) if dtype == jnp.bool_ else jax.lax.bitcast_convert_type(bits, dtype)
