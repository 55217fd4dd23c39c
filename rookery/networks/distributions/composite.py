"""Distributions over actions with several parts."""

import functools
from typing import Any, Self

import jax
import jax.numpy as jnp

from rookery.networks.distributions.distribution import Distribution, Raw
from rookery.spaces import Dict, Shape, Tuple
from rookery.types import Action, Array, Key, PyTree, PyTreeDict, pytree_field


class Composite(Distribution):
    """Independent distributions for the entries of a `Dict` or `Tuple` space; `parts` is structured like it."""

    space: Dict | Tuple = pytree_field(static=True)
    parts: PyTreeDict | tuple[Distribution, ...]

    @property
    def batch_shape(self) -> Shape:
        return self._list_of(self.parts)[0].batch_shape

    def sample(self, key: Key) -> Raw:
        parts = self._list_of(self.parts)
        keys = jax.random.split(key, len(parts))
        return like_space(self.space, [part.sample(part_key) for part, part_key in zip(parts, keys, strict=True)])

    def mode(self) -> Raw:
        return like_space(self.space, [part.mode() for part in self._list_of(self.parts)])

    def log_prob(self, raw: Raw) -> Array:
        self._check_raw(raw)
        return _total([part.log_prob(part_raw) for part, part_raw in self._with_parts(raw)])

    def entropy(self) -> Array:
        return _total([part.entropy() for part in self._list_of(self.parts)])

    def kl_divergence(self, other: Self) -> Array:
        self._check_same_kind(other)
        return _total([part.kl_divergence(other_part) for part, other_part in self._with_parts(other.parts)])

    def action(self, raw: Raw) -> Action:
        return like_space(self.space, [part.action(part_raw) for part, part_raw in self._with_parts(raw)])

    def raw_of(self, action: Action) -> Raw:
        return like_space(self.space, [part.raw_of(part_action) for part, part_action in self._with_parts(action)])

    def _list_of(self, tree: PyTree) -> list[PyTree]:
        return [tree[name] for name in entry_names(self.space)]

    def _with_parts(self, tree: PyTree) -> list[tuple[Distribution, PyTree]]:
        return list(zip(self._list_of(self.parts), self._list_of(tree), strict=True))


def entry_names(space: Dict | Tuple) -> list[Any]:
    """Return the indexes of a `Tuple`, or the sorted names of a `Dict`."""
    return sorted(space) if isinstance(space, Dict) else list(range(len(space)))


def like_space(space: Dict | Tuple, values: list[PyTree]) -> PyTree:
    """Arrange values in the order of `entry_names` as an element of the space."""
    return PyTreeDict(zip(entry_names(space), values, strict=True)) if isinstance(space, Dict) else tuple(values)


def _total(values: list[Array]) -> Array:
    return functools.reduce(jnp.add, values)
