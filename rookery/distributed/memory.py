"""The memory of the devices, and what a program needs of it before it is compiled."""

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from rookery.errors import InvalidInputError
from rookery.types import PyTree

UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
LOOPS = ("scan", "while")
"""The operations whose arguments and results must be in memory; the compiler may avoid those of others."""


def check_memory(what: str, num_bytes: int) -> None:
    """Raise if `what` needs more bytes than all devices of this process have."""
    available = memory_bytes()
    if num_bytes > available:
        raise InvalidInputError(
            f"{what}: at least {format_bytes(num_bytes)} of memory needed, and {format_bytes(available)} available."
        )


def memory_bytes() -> int:
    """Return the memory of all devices of this process; on a CPU, that of the machine."""
    limits = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    if all(limits):
        return sum(limits)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def bytes_of_tree(tree: PyTree) -> int:
    """Return the bytes of all arrays of a tree, or of their shapes."""
    return _bytes_of_shapes(jax.tree.leaves(tree))


def bytes_of_program(jaxpr: Any) -> int:
    """Return a lower bound of the bytes that a program needs: its results, or the largest loop within."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return max([_bytes_of(inner.outvars), *_bytes_of_loops(inner)])


def _bytes_of_loops(jaxpr: Any) -> Iterator[int]:
    for equation in jaxpr.eqns:
        if equation.primitive.name in LOOPS:
            yield max(_bytes_of(equation.invars), _bytes_of(equation.outvars))
        for parameter in equation.params.values():
            for part in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
                part = getattr(part, "jaxpr", part)
                if hasattr(part, "eqns"):
                    yield from _bytes_of_loops(part)


def _bytes_of(variables: Any) -> int:
    avals = [variable.aval for variable in variables]
    return _bytes_of_shapes(aval for aval in avals if hasattr(aval, "shape"))


def _bytes_of_shapes(shapes: Iterable[Any]) -> int:
    return sum(math.prod(shape.shape) * _item_bytes(shape.dtype) for shape in shapes)


def _item_bytes(dtype: Any) -> int:
    return np.dtype(dtype).itemsize if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else 8


def format_bytes(num_bytes: float) -> str:
    """Format a number of bytes: 1.5 GB."""
    exponent = min(int(math.log10(max(num_bytes, 1)) // 3), len(UNITS) - 1)
    return f"{num_bytes / 1000**exponent:,.3g} {UNITS[exponent]}"
