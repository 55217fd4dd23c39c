"""What the modules that make a library's environments have in common."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rookery.envs.env import Env
from rookery.errors import InvalidInputError, unknown_name


def make_from_table(library: str, envs: Mapping[str, type[Env]], name: str, kwargs: dict[str, Any]) -> Env:
    """Build the env that a table has under `name`; `kwargs` are the arguments of its class."""
    if name not in envs:
        raise unknown_name("environment", f"{library}/{name}", [f"{library}/{known}" for known in envs])
    known = list(inspect.signature(envs[name]).parameters)
    unknown = sorted(set(kwargs) - set(known))
    if unknown:
        advice = f"it takes {', '.join(known)}" if known else "it takes none"
        raise InvalidInputError(f"{library}/{name}: unknown argument {', '.join(map(repr, unknown))}; {advice}.")
    return envs[name](**kwargs)


@contextlib.contextmanager
def library_promotion() -> Iterator[None]:
    """Let a library mix dtypes and ranks, whatever the rest of the program is held to."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def as_arrays(tree: Any) -> Any:
    """Make arrays of the Python numbers that a library's fresh state holds, of the dtype that later states have."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), tree)
