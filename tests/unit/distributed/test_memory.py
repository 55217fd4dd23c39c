"""What a program needs is known before it is compiled."""

import jax
import jax.numpy as jnp
import pytest

from rookery.distributed.memory import bytes_of_program, check_memory, format_bytes, memory_bytes
from rookery.errors import InvalidInputError


def test_more_than_the_memory_is_refused_with_both_numbers() -> None:
    check_memory("num_envs=4", memory_bytes())
    with pytest.raises(InvalidInputError, match=r"^num_envs=4: at least 4 EB of memory needed, and \d.* available\.$"):
        check_memory("num_envs=4", 4 * 10**18)


def test_results_and_loops_count_and_what_the_compiler_can_fuse_does_not() -> None:
    def program(x: jax.Array) -> jax.Array:
        inner = jax.jit(lambda x: jax.lax.scan(lambda total, _: (total + x, total), x, None, length=1000)[1])
        return inner(x).sum() + jnp.broadcast_to(x, (10**6, 8)).sum()

    traced = jax.jit(program).trace(jnp.zeros(8, jnp.float32))
    assert 4 * 8 * 1000 <= bytes_of_program(traced.jaxpr) < 2 * 4 * 8 * 1000
    keys = jax.jit(lambda key: jax.random.split(key, 10**6)).trace(jax.random.key(0))
    assert bytes_of_program(keys.jaxpr) == 8 * 10**6


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (999, "999 B"), (25.3e9, "25.3 GB"), (1e12, "1 TB"), (4e18, "4 EB")]
)
def test_bytes_are_written_for_reading(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text
