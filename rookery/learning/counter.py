"""A 64-bit counter: an int32 count of env steps overflows at 2.1e9, which a fast device reaches in an hour."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, UInt32

from rookery.errors import InvalidInputError, ShapeError
from rookery.types import PyTreeData

BASE = 2**32


class Counter(PyTreeData):
    """A whole number from 0 to 2^64 - 1, stored as `high * 2^32 + low`: JAX has no 64-bit integers by default."""

    low: UInt32[Array, "..."]
    high: UInt32[Array, "..."]

    @staticmethod
    def zero() -> "Counter":
        """Make a counter at 0."""
        return Counter.of(0)

    @staticmethod
    def of(number: int) -> "Counter":
        """Make a counter at `number`."""
        high, low = divmod(number, BASE)
        return Counter(low=jnp.asarray(np.uint32(low)), high=jnp.asarray(np.uint32(high)))

    def add(self, increment: int | np.integer | Integer[Array, ""]) -> "Counter":
        """Return the counter increased by a number from 0 to 2^32 - 1."""
        if isinstance(increment, (int, np.integer)):
            if not 0 <= increment < BASE:
                raise InvalidInputError(f"increment={increment} must be at least 0 and less than 2^32.")
            increment = jnp.asarray(np.uint32(increment))
        elif not jnp.issubdtype(increment.dtype, jnp.integer) or increment.shape != ():
            raise ShapeError(f"increment is {increment.dtype}{list(increment.shape)}; expected one whole number.")
        increment = increment.astype(jnp.uint32)
        low = self.low + increment
        carry = (low < increment).astype(jnp.uint32)
        return self.replace(low=low, high=self.high + carry)

    def sum(self) -> "Counter":
        """Return the sum of up to 2^16 counters, along the first axis."""
        half = jnp.uint32(0xFFFF)
        lower = jnp.sum(self.low & half, axis=0, dtype=jnp.uint32)
        upper = jnp.sum(self.low >> 16, axis=0, dtype=jnp.uint32) + (lower >> 16)
        high = jnp.sum(self.high, axis=0, dtype=jnp.uint32) + (upper >> 16)
        return Counter(low=(upper << 16) | (lower & half), high=high)

    def is_below(self, other: "Counter") -> Bool[Array, "..."]:
        """Tell whether this count is less than `other`."""
        return (self.high < other.high) | ((self.high == other.high) & (self.low < other.low))

    def as_float(self) -> Float[Array, "..."]:
        """Return the number rounded to float32, for schedules and rates."""
        return self.high.astype(jnp.float32) * float(BASE) + self.low.astype(jnp.float32)

    def __int__(self) -> int:
        return int(self.high) * BASE + int(self.low)

    def to_ints(self) -> list[int]:
        """Return the exact numbers of an array of counters."""
        high, low = np.asarray(self.high).tolist(), np.asarray(self.low).tolist()
        return [high_part * BASE + low_part for high_part, low_part in zip(high, low, strict=True)]
