"""Options of the compiler: for programs that run once, and for results that do not depend on neighbours.

The result of an agent should not depend on how many agents are computed side by side. But on CPU, XLA hands large sums
to a library that adds up in another order than its own code, and whether a sum is large depends on the number of lanes.
That is so for a population, in which every lane has parameters of its own; products with shared parameters are another
matter, and may still differ in the last bit between batches of one or two and larger ones.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

SAME_SUMS_IN_ANY_BATCH = {"xla_cpu_experimental_ynn_fusion_type": ""}
SIMPLE_CODE = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": "False"}


def batch_invariant_options() -> dict[str, str]:
    """The `compiler_options` of `jax.jit` that do it."""
    return _known(SAME_SUMS_IN_ANY_BATCH)


def run_once_options() -> dict[str, str]:
    """The `compiler_options` for a program that is run once: compiled in a third of the time, to slower code."""
    return _known(SIMPLE_CODE) if jax.default_backend() == "cpu" else {}


def _known(options: dict[str, str]) -> dict[str, str]:
    """Leave out the options that this version of XLA does not know."""
    return {name: value for name, value in options.items() if _is_known(name, value)}


@functools.cache
def _is_known(name: str, value: str) -> bool:
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options={name: value})()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def batch_invariant_jit(function: Callable, static_argnames: tuple[str, ...]) -> Callable:
    """Compile `function` with these options, unless it is called inside another program, whose options then count."""
    part_of_a_program = jax.jit(function, static_argnames=static_argnames)

    @functools.cache
    def program() -> Callable:
        return jax.jit(function, static_argnames=static_argnames, compiler_options=batch_invariant_options() or None)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_traced = isinstance(jnp.zeros(()), jax.core.Tracer)
        return (part_of_a_program if is_traced else program())(*args, **kwargs)

    return call
