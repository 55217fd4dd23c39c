"""Crossover: each function takes two parents `[N, ...]` and returns two children.

The children are complementary: a gene that one child takes from the first parent, the other takes from the second.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rookery.evolution.mutation import keys_like
from rookery.types import Array, Key, Params, where_tree

Crossover = Callable[[Params, Params, Key], tuple[Params, Params]]
"""Makes two children `[N, ...]` of two parents `[N, ...]`."""


def uniform(first: Params, second: Params, key: Key, probability: float | Array = 0.5) -> tuple[Params, Params]:
    """Exchange each gene with this probability (Syswerda, 1989)."""
    exchanged = jax.tree.map(
        lambda leaf, key: jax.random.bernoulli(key, probability, leaf.shape), first, keys_like(first, key)
    )
    return _exchange(first, second, exchanged)


def one_point(first: Params, second: Params, key: Key) -> tuple[Params, Params]:
    """Exchange all genes after a random point of the flattened individual, one point per pair (Holland, 1975)."""
    leaves, structure = jax.tree.flatten(first)
    num_genes = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    points = jax.random.randint(key, leaves[0].shape[:1], 1, max(num_genes, 2))
    exchanged, start = [], 0
    for leaf in leaves:
        size = math.prod(leaf.shape[1:])
        places = start + jnp.arange(size, dtype=jnp.int32)
        exchanged.append((places[None] >= points[:, None]).reshape(leaf.shape))
        start += size
    return _exchange(first, second, jax.tree.unflatten(structure, exchanged))


def simulated_binary(
    first: Params, second: Params, key: Key, eta: float | Array = 20.0, probability: float | Array = 0.5
) -> tuple[Params, Params]:
    """Spread each gene of the parents around their mean with this probability (SBX, Deb & Agrawal, 1995).

    The larger `eta`, the closer the children are to their parents. For each gene it is random which child is close to
    which parent.
    """

    def mix(first: Array, second: Array, key: Key) -> tuple[Array, Array]:
        uniform_key, choice_key, side_key = jax.random.split(key, 3)
        uniform = jax.random.uniform(uniform_key, first.shape, first.dtype)
        base = jnp.where(uniform < 0.5, 2.0 * uniform, 0.5 / (1.0 - uniform))
        spread = base ** (1.0 / (eta + 1.0))
        spread = jnp.where(jax.random.bernoulli(side_key, 0.5, first.shape), spread, -spread)
        spread = jnp.where(jax.random.bernoulli(choice_key, probability, first.shape), spread, 1.0)
        return _approach(first, second, 0.5 * (1.0 - spread))

    return _map_pairs(mix, first, second, keys_like(first, key))


def arithmetic(first: Params, second: Params, key: Key) -> tuple[Params, Params]:
    """Interpolate between the parents with one random weight for all genes (Michalewicz, 1992)."""
    shares = jax.random.uniform(key, jax.tree.leaves(first)[0].shape[:1])

    def mix(first: Array, second: Array) -> tuple[Array, Array]:
        return _approach(first, second, shares.reshape(-1, *(1,) * (first.ndim - 1)))

    return _map_pairs(mix, first, second)


def recombine(parents: Params, key: Key, probability: float | Array, crossover: Crossover) -> Params:
    """Pair the first half of the parents `[2N, ...]` with the second and cross each pair with this probability.

    Children take the positions of their parents; pairs that are not crossed stay unchanged.
    """
    choice_key, crossover_key = jax.random.split(key)
    first, second = (jax.tree.map(lambda leaf, half=half: jnp.split(leaf, 2)[half], parents) for half in range(2))
    children = jax.tree.map(lambda *halves: jnp.concatenate(halves), *crossover(first, second, crossover_key))
    num_parents = jax.tree.leaves(parents)[0].shape[0]
    is_crossed = jnp.tile(jax.random.bernoulli(choice_key, probability, (num_parents // 2,)), 2)
    return where_tree(is_crossed, children, parents)


def _exchange(first: Params, second: Params, exchanged: Params) -> tuple[Params, Params]:
    return jax.tree.map(jnp.where, exchanged, second, first), jax.tree.map(jnp.where, exchanged, first, second)


def _approach(first: Array, second: Array, share: Array) -> tuple[Array, Array]:
    """Move both towards each other by a fraction of their distance: 0 keeps them, 1 exchanges them."""
    step = share * (second - first)
    return first + step, second - step


def _map_pairs(
    mix: Callable[..., tuple[Array, Array]], first: Params, second: Params, *rest: Params
) -> tuple[Params, Params]:
    """Apply `mix` to each pair of leaves; return the trees of both children."""
    structure = jax.tree.structure(first)
    columns = (jax.tree.leaves(tree) for tree in (first, second, *rest))
    pairs = [mix(*leaves) for leaves in zip(*columns, strict=True)]
    return jax.tree.unflatten(structure, [a for a, _ in pairs]), jax.tree.unflatten(structure, [b for _, b in pairs])
