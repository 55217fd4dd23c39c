"""Numbers stored as two floats, for sums over a whole run in float32.

Dekker, "A floating-point technique for extending the available precision", 1971. Counts are exact up to 2^47.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rookery.types import PyTreeData


class TwoFloat(PyTreeData):
    """A number stored as the sum of two floats: `low` is the rounding error of `high`."""

    high: Float[Array, "..."]
    low: Float[Array, "..."]

    @classmethod
    def of(cls, number: Float[Array, "..."]) -> "TwoFloat":
        """Store a float."""
        return cls(high=number, low=jnp.zeros_like(number))

    @property
    def value(self) -> Float[Array, "..."]:
        """The number rounded to one float."""
        return self.high + self.low

    def add(self, other: "TwoFloat") -> "TwoFloat":
        """Return the sum."""
        total = two_sum(self.high, other.high)
        return two_sum(total.high, total.low + (self.low + other.low))

    def times(self, factor: Array | float) -> "TwoFloat":
        """Return the product, rounded part by part."""
        return TwoFloat(high=self.high * factor, low=self.low * factor)


def two_sum(first: Float[Array, "..."], second: Float[Array, "..."]) -> TwoFloat:
    """Add two floats exactly: the rounded sum and its rounding error (Knuth, TAOCP, 4.2.2)."""
    total = first + second
    second_part = total - first
    error = (first - (total - second_part)) + (second - second_part)
    return TwoFloat(high=total, low=error)
