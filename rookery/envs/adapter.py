"""Shared parts of the adapters for environment libraries."""

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rookery.envs.env import Env
from rookery.errors import InvalidInputError, unknown_name


def make_from_table(library: str, envs: Mapping[str, type[Env]], name: str, kwargs: dict[str, Any]) -> Env:
    """Build the env named `name` in a table of classes; `kwargs` are the arguments of its class."""
    if name not in envs:
        raise unknown_name("environment", f"{library}/{name}", [f"{library}/{known}" for known in envs])
    known = list(inspect.signature(envs[name]).parameters)
    unknown = sorted(set(kwargs) - set(known))
    if unknown:
        advice = f"it takes {', '.join(known)}" if known else "it takes no arguments"
        raise InvalidInputError(f"{library}/{name}: unknown argument {', '.join(map(repr, unknown))}; {advice}.")
    return envs[name](**kwargs)


def as_arrays(tree: Any) -> Any:
    """Convert Python numbers in the initial state of a library to arrays with the dtypes of later states."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), tree)
