"""Running other libraries' code when ours is held to strict promotion."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def library_promotion() -> Iterator[None]:
    """Let a library mix dtypes and ranks, whatever the rest of the program is held to."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
