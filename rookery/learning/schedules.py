"""Hyper-parameters that change while a run proceeds, counted in env steps."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from rookery.types import PyTreeData, Tree

Number = int | float | Shaped[Array, "..."]


class LinearSchedule(PyTreeData):
    """Goes from `start` to `end` within `steps` env steps and stays there.

    All three are traced: the members of a population may each have their own schedule.
    """

    start: Number
    end: Number
    steps: Number

    def value(self, env_steps: Number) -> Float[Array, "..."]:
        """Return the value after so many env steps, exact at both ends; with `steps=0` it is `end` from the outset."""
        start, end, steps, taken = (_as_float(number) for number in (self.start, self.end, self.steps, env_steps))
        progress = taken / jnp.where(steps > 0.0, steps, 1.0)
        return jnp.where(taken >= steps, end, start + progress * (end - start))


def values_at(tree: Tree, env_steps: Number) -> Tree:
    """Replace every schedule in a tree of hyper-parameters by its value, and every number by a float32 array."""

    def value_of(leaf: Any) -> Array:
        return leaf.value(env_steps) if isinstance(leaf, LinearSchedule) else _as_float(leaf)

    return jax.tree.map(value_of, tree, is_leaf=lambda node: isinstance(node, LinearSchedule))


def _as_float(number: Number) -> Float[Array, "..."]:
    return jnp.asarray(number, jnp.float32)
