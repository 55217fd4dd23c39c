"""Metrics since the last record: exact means over any number of iterations, and values as they are now."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.metrics import Latest, Mean, accumulate, running_shapes, values_of_seed


def accumulated(metrics_at, num_iterations: int) -> dict[str, float]:
    """The values of a record after some iterations of a compiled loop."""
    shapes = running_shapes(jax.eval_shape(metrics_at, jnp.int32(0)))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    loop = jax.jit(
        lambda running: jax.lax.fori_loop(
            0, num_iterations, lambda index, running: accumulate(running, metrics_at(index)), running
        )
    )
    return values_of_seed(jax.device_get(loop(zeros)), 0)


@pytest.mark.usefixtures("optimized_programs")
def test_the_mean_of_a_constant_over_a_million_iterations_is_the_constant() -> None:
    values = accumulated(lambda index: {"a": Mean.of(jnp.float32(0.1))}, 10**6)
    assert values["a"] == pytest.approx(np.float32(0.1), rel=1e-12)


@pytest.mark.usefixtures("optimized_programs")
def test_a_weight_beyond_the_whole_numbers_of_a_float_goes_on_growing() -> None:
    def metrics_at(index):
        return {"a": Mean(total=jnp.where(index == 0, 0.0, 3.0), weight=jnp.where(index == 0, 2.0**24, 1.0))}

    num_iterations = 10**5
    weight = 2**24 + num_iterations - 1
    assert accumulated(metrics_at, num_iterations)["a"] == pytest.approx(3.0 * (num_iterations - 1) / weight, rel=1e-12)


def test_a_latest_value_is_not_averaged_and_an_unknown_one_is_left_out() -> None:
    def metrics_at(index):
        number = index.astype(jnp.float32)
        return {
            "now": Latest.of(number),
            "early": Latest.of(jnp.where(index < 3, number, jnp.nan)),
            "never": Latest.of(jnp.float32(-jnp.inf)),
        }

    assert accumulated(metrics_at, 10) == {"now": 9.0, "early": 2.0}


def test_a_mean_of_nothing_has_no_value() -> None:
    assert accumulated(lambda index: {"a": Mean.where(jnp.zeros(3), jnp.full(3, jnp.nan))}, 3) == {}
