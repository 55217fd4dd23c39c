"""Compiler options for programs that run once and for batch-invariant results, and tracing of other libraries' code.

The result of an individual should not depend on the size of its population. On CPU, XLA passes large sums to a library
that adds in a different order than XLA's own code, and the size of a sum depends on the population size. The options
prevent this for populations, where each individual has its own parameters. Products with shared parameters may still
differ in the last bit between batches of one or two and larger batches.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

SAME_SUMS_IN_ANY_BATCH = {"xla_cpu_experimental_ynn_fusion_type": ""}
SIMPLE_CODE = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": "False"}


def batch_invariant_options() -> dict[str, str]:
    """Return the `compiler_options` of `jax.jit` for batch-invariant results."""
    return _known(SAME_SUMS_IN_ANY_BATCH)


def run_once_options() -> dict[str, str]:
    """Return the `compiler_options` for a program that runs once: a third of the compile time, slower code."""
    return _known(SIMPLE_CODE) if jax.default_backend() == "cpu" else {}


def _known(options: dict[str, str]) -> dict[str, str]:
    """Drop the options that this version of XLA does not know."""
    return {name: value for name, value in options.items() if _is_known(name, value)}


@functools.cache
def _is_known(name: str, value: str) -> bool:
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options={name: value})()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def batch_invariant_jit(function: Callable, static_argnames: tuple[str, ...]) -> Callable:
    """Compile `function` with batch-invariant options; inside another program, that program's options apply."""
    part_of_a_program = jax.jit(function, static_argnames=static_argnames)

    @functools.cache
    def program() -> Callable:
        return jax.jit(function, static_argnames=static_argnames, compiler_options=batch_invariant_options() or None)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_traced = isinstance(jnp.zeros(()), jax.core.Tracer)
        return (part_of_a_program if is_traced else program())(*args, **kwargs)

    return call


@contextlib.contextmanager
def relaxed_promotion() -> Iterator[None]:
    """Trace code of a library that mixes dtypes and ranks, even if promotion is strict elsewhere."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
