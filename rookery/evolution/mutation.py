"""Mutation: each function takes individuals `[N, ...]` and returns mutated ones.

By default the parameters of normalization layers are not mutated: most networks fail when their scales change.
`is_mutable` selects the parameters to mutate by their path.
"""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey, GetAttrKey, KeyPath

from rookery.types import Array, Key, Params, Tree

NORMALIZATION = re.compile(r"(norm|[A-Za-z]*Norm)(_\d+)?")
"""Names of normalization layers: `norm_0` in Rookery's networks, `LayerNorm_0` by default in Flax."""


def is_not_normalization(path: KeyPath) -> bool:
    """Tell whether the parameter at this path is outside of normalization layers."""
    return not any(NORMALIZATION.fullmatch(_name(entry)) for entry in path)


def _name(entry: object) -> str:
    match entry:
        case DictKey(key=name) | GetAttrKey(name=name):
            return str(name)
    return ""


def keys_like(tree: Tree, key: Key) -> Tree:
    """Split a key into one for every leaf."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, list(jax.random.split(key, len(leaves))))


def gaussian(
    params: Params,
    key: Key,
    std: float | Array,
    probability: float | Array = 1.0,
    is_mutable: Callable[[KeyPath], bool] = is_not_normalization,
) -> Params:
    """Add normal noise to each gene with this probability."""

    def mutate(leaf: Array, key: Key) -> Array:
        noise_key, choice_key = jax.random.split(key)
        noise = std * jax.random.normal(noise_key, leaf.shape, leaf.dtype)
        return jnp.where(jax.random.bernoulli(choice_key, probability, leaf.shape), leaf + noise, leaf)

    return _map_mutable(mutate, params, key, is_mutable)


def cloud_around(params: Params, key: Key, num_individuals: int, std: float | Array) -> Params:
    """Make an initial population: the given individual, and copies of it with normal noise."""
    copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_individuals, *leaf.shape)), params)
    return jax.tree.map(lambda leaf, original: leaf.at[0].set(original), gaussian(copies, key, std), params)


def polynomial(
    params: Params,
    key: Key,
    eta: float | Array = 20.0,
    probability: float | Array = 0.1,
    span: float | Array = 1.0,
    is_mutable: Callable[[KeyPath], bool] = is_not_normalization,
) -> Params:
    """Move each gene with this probability by at most `span`, typically by about `span / eta` (Deb & Goyal, 1996)."""

    def mutate(leaf: Array, key: Key) -> Array:
        uniform_key, choice_key = jax.random.split(key)
        uniform = jax.random.uniform(uniform_key, leaf.shape, leaf.dtype)
        distance = 1.0 - (2.0 * jnp.minimum(uniform, 1.0 - uniform)) ** (1.0 / (eta + 1.0))
        moved = leaf + span * jnp.where(uniform < 0.5, -distance, distance)
        return jnp.where(jax.random.bernoulli(choice_key, probability, leaf.shape), moved, leaf)

    return _map_mutable(mutate, params, key, is_mutable)


def row_wise(
    params: Params,
    key: Key,
    strength: float | Array = 0.1,
    row_probability: float | Array = 0.9,
    gene_probability: float | Array = 0.1,
    super_strength: float | Array = 10.0,
    super_probability: float | Array = 0.05,
    reset_probability: float | Array = 0.05,
    min_magnitude: float = 0.1,
    is_mutable: Callable[[KeyPath], bool] = is_not_normalization,
) -> Params:
    """Perturb a fraction of the weights by noise scaled to their magnitude, and reset a few (Khadka & Tumer, 2018).

    A row lies along the last axis: the outgoing weights of a unit, or a bias vector. The noise of a gene has the
    standard deviation `strength`, or for a few `super_strength`, times its magnitude. Departures from the paper: it
    selects matrices instead of rows, does not mutate biases, and multiplies, so that a gene of 0 stays 0; here
    magnitudes are at least `min_magnitude`.
    """

    def mutate(leaf: Array, key: Key) -> Array:
        row_key, gene_key, kind_key, noise_key = jax.random.split(key, 4)
        rows = (*leaf.shape[:-1], 1) if leaf.ndim > 1 else leaf.shape
        is_chosen = jax.random.bernoulli(row_key, row_probability, rows)
        is_chosen &= jax.random.bernoulli(gene_key, gene_probability, leaf.shape)
        kind = jax.random.uniform(kind_key, leaf.shape)
        noise = jax.random.normal(noise_key, leaf.shape, leaf.dtype)
        is_super, is_reset = kind < super_probability, kind >= 1.0 - reset_probability
        std = jnp.where(is_super, super_strength, strength) * jnp.maximum(jnp.abs(leaf), min_magnitude)
        return jnp.where(is_chosen, jnp.where(is_reset, noise, leaf + std * noise), leaf)

    return _map_mutable(mutate, params, key, is_mutable)


def iso_line(
    params: Params,
    others: Params,
    key: Key,
    iso_std: float | Array = 0.01,
    line_std: float | Array = 0.2,
    is_mutable: Callable[[KeyPath], bool] = is_not_normalization,
) -> Params:
    """Move along the line to another individual, plus isotropic noise (Vassiliades & Mouret, 2018, eq. 1)."""
    line_key, iso_key = jax.random.split(key)
    num_individuals = jax.tree.leaves(params)[0].shape[0]
    steps = line_std * jax.random.normal(line_key, (num_individuals,))

    def mutate(leaf: Array, key: Key, other: Array) -> Array:
        along = steps.reshape(-1, *(1,) * (leaf.ndim - 1)) * (other - leaf)
        return leaf + iso_std * jax.random.normal(key, leaf.shape, leaf.dtype) + along

    return _map_mutable(mutate, params, iso_key, is_mutable, others)


def _map_mutable(
    mutate: Callable[..., Array], params: Params, key: Key, is_mutable: Callable[[KeyPath], bool], *rest: Params
) -> Params:
    """Call `mutate` with each mutable leaf, its own key, and the same leaf of the other trees."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf, *others: mutate(leaf, *others) if is_mutable(path) else leaf,
        params,
        keys_like(params, key),
        *rest,
    )
