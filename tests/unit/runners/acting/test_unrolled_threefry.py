"""The generator written out against JAX's own."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.runners.acting.unrolled_threefry import unrolled

DRAWS: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda key: jax.random.uniform(key, (5, 3)),
    "normal scalar": lambda key: jax.random.normal(key),
    "categorical": lambda key: jax.random.categorical(key, jnp.zeros((4, 3))),
    "permutation": lambda key: jax.random.permutation(key, 10),
    "integers": lambda key: jax.random.randint(key, (7,), 0, 1_000),
    "bytes": lambda key: jax.random.bits(key, (6,), jnp.uint8),
    "nothing": lambda key: jax.random.uniform(key, (0, 3)),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (3, 2))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 2**32 - 1)),
    "mapped": lambda key: jax.vmap(lambda one: jax.random.normal(one, (3,)))(jax.random.split(key, 4)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_it_draws_the_numbers_of_jax(name: str) -> None:
    for seed in (0, 7):
        key = jax.random.key(seed)
        np.testing.assert_array_equal(jax.jit(DRAWS[name])(unrolled(key)), jax.jit(DRAWS[name])(key))


def test_it_compiles_to_no_loop() -> None:
    def loops_of(key: Any) -> int:
        return jax.jit(DRAWS["uniform"]).lower(key).as_text("hlo").count(" while(")

    assert loops_of(jax.random.key(0)) > 0
    assert loops_of(unrolled(jax.random.key(0))) == 0


def test_keys_of_other_generators_stay_what_they_are() -> None:
    key = jax.random.key(0, impl="rbg")
    assert unrolled(key) is key
