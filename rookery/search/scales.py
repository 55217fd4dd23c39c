"""Scales of a search: `linear`, `log`, and `complement`, the logarithm of `1 - x`."""

from abc import ABC, abstractmethod

import jax.numpy as jnp
from jaxtyping import Array, Float

Number = Float[Array, "..."]

LINEAR_STEP = 0.1
"""The step of a perturbation as a share of the range, where a factor would never leave 0."""


class Scale(ABC):
    """Maps numbers to a line on which equal steps are equally important."""

    @staticmethod
    @abstractmethod
    def to_line(x: Number) -> Number:
        """Return the place of a number on the line."""

    @staticmethod
    @abstractmethod
    def from_line(place: Number) -> Number:
        """Return the number at a place of the line: the inverse of `to_line`."""

    @staticmethod
    @abstractmethod
    def stretched(x: Number, factor: Number, low: float, high: float) -> Number:
        """Return a number perturbed by a factor; it may leave the range."""


class Linear(Scale):
    """For numbers such as `clip_ratio`."""

    @staticmethod
    def to_line(x: Number) -> Number:
        return x

    @staticmethod
    def from_line(place: Number) -> Number:
        return place

    @staticmethod
    def stretched(x: Number, factor: Number, low: float, high: float) -> Number:
        if low > 0.0 or high < 0.0:
            return x * factor
        return x + jnp.where(factor > 1.0, LINEAR_STEP, -LINEAR_STEP) * (high - low)


class Log(Scale):
    """For positive numbers of unknown magnitude, such as `learning_rate`."""

    @staticmethod
    def to_line(x: Number) -> Number:
        return jnp.log(x)

    @staticmethod
    def from_line(place: Number) -> Number:
        return jnp.exp(place)

    @staticmethod
    def stretched(x: Number, factor: Number, low: float, high: float) -> Number:
        return x * factor


class Complement(Scale):
    """For numbers near 1, such as `discount`: 0.9, 0.99 and 0.999 are equally far apart."""

    @staticmethod
    def to_line(x: Number) -> Number:
        return -jnp.log(1.0 - x)

    @staticmethod
    def from_line(place: Number) -> Number:
        return 1.0 - jnp.exp(-place)

    @staticmethod
    def stretched(x: Number, factor: Number, low: float, high: float) -> Number:
        return 1.0 - (1.0 - x) * factor


SCALES: dict[str, type[Scale]] = {"linear": Linear, "log": Log, "complement": Complement}
