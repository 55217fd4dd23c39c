"""JAX's threefry with unrolled rounds: the same numbers, in one kernel instead of a loop of small ones.

The loop compiles faster, but on a CPU it takes as long as a small network: too long for a program that is called in
every env step.
"""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl, threefry_prng_impl

from rookery.types import Array, Key

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def unrolled(key: Key) -> Key:
    """Return a threefry key with the unrolled generator, and other keys unchanged."""
    counts_elements = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    if jax.random.key_impl(key) != "threefry2x32" or not counts_elements:
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_IMPLEMENTATION)


def _encrypt(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011): counters and key have two words each."""
    key_words = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    high, low = high + key_words[0], low + key_words[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            high = high + low
            low = (low << jnp.uint32(rotation)) | (low >> jnp.uint32(32 - rotation))
            low = low ^ high
        high = high + key_words[(group + 1) % 3]
        low = low + key_words[(group + 2) % 3] + jnp.uint32(group + 1)
    return high, low


def _counted(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the counters of an array with fewer than 2^32 elements, as two words each."""
    count = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    return _encrypt(key, jnp.zeros_like(count), count)


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    if bit_width != 32:
        return threefry_prng_impl.random_bits(key, bit_width, shape)
    high, low = _counted(key, shape)
    return high ^ low


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.stack(_counted(key, shape), axis=-1)


def _fold_in(key: Array, data: Array | int) -> Array:
    word = jnp.asarray(data, jnp.uint32)
    return jnp.stack(_encrypt(key, jnp.zeros_like(word), word))


_IMPLEMENTATION = define_prng_impl(
    key_shape=(2,),
    seed=threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="written_out_threefry2x32",
    tag="wot",
)
