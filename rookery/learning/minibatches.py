"""Shuffled minibatches for epochs over the same samples, without a sort and with one gather for all fields."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from rookery.agent import Carry
from rookery.errors import InvalidInputError, check_count
from rookery.learning.moments import Weighted
from rookery.learning.updates import num_chunks_for
from rookery.metrics import Mean
from rookery.packing import RowLayout
from rookery.types import Key, as_one_key, index_tree

State = TypeVar("State")
Samples = TypeVar("Samples", bound=Weighted)
Metrics = dict[str, Mean]

NUM_ROUNDS = 6
"""With fewer rounds, the positions of two neighbors are still correlated for fewer than a hundred samples."""


def epoch_indexes(key: Key, num_samples: int, num_minibatches: int) -> UInt32[Array, "num_minibatches size"]:
    """Split a random permutation of `0..num_samples - 1` into minibatches of equal size."""
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
    leaves = jax.tree.leaves(samples)
    num_steps, num_envs = leaves[0].shape[:2]
    is_recurrent = bool(jax.tree.leaves(carry))
    num_samples = num_envs if is_recurrent else num_steps * num_envs
    has_images = any(leaf.ndim >= 5 for leaf in leaves)  # [T, B, H, W, C]
    # The mean over chunks is the mean over samples only if all of them count.
    in_chunks = not is_recurrent and samples.weights is None
    num_chunks = num_chunks_for(num_samples // num_minibatches, has_images) if in_chunks else 1
    # Packed into rows, one gather fetches all fields of a width.
    layout = RowLayout.of(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), samples), True)
    rows = None if is_recurrent else layout.pack([leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves])

    def step(state: State, indexes: Array) -> tuple[State, Metrics]:
        if rows is None:
            return step_fn(state, index_tree(samples, (slice(None), indexes)), index_tree(carry, indexes), num_chunks)
        taken = {
            storage: array.at[indexes].get(mode="promise_in_bounds", unique_indices=True)
            for storage, array in rows.items()
        }
        return step_fn(state, layout.unpack(taken), (), num_chunks)

    def epoch(state: State, key: Key) -> tuple[State, Metrics]:
        return jax.lax.scan(step, state, epoch_indexes(key, num_samples, num_minibatches))

    state, metrics = jax.lax.scan(epoch, state, epoch_keys)
    return state, jax.tree.map(jnp.sum, metrics)


def check_num_minibatches(num_samples: int, num_minibatches: int) -> None:
    """Raise unless `num_samples` can be split into minibatches of equal size."""
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
    """Permute `0..size - 1` at random in a few operations per index; `jax.random.permutation` sorts.

    Each round is a bijection of the numbers below a power of two: multiply by an odd number, add, fold the upper half
    of the bits into the lower. If `size` is not a power of two, the rounds are repeated for indexes out of range until
    they are in range ("cycle walking": Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
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
