"""The layer with its own backward pass against the one of flax."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.networks.dense import Dense
from rookery.types import Array

SHAPES = [((), 3, 5), ((7,), 4, 64), ((256,), 64, 64), ((256,), 64, 1), ((2, 3, 5), 6, 2), ((33,), 8, 4)]
EVERY_SHAPE = pytest.mark.parametrize(("batch_shape", "num_inputs", "num_outputs"), SHAPES)


def inputs_of(*shape: int) -> Array:
    return jax.random.normal(jax.random.key(0), shape)


def loss_of(layer: nn.Module) -> Callable[[Any, Array], Array]:
    return lambda params, inputs: jnp.mean(jnp.tanh(layer.apply(params, inputs)) ** 2)


def assert_trees_close(ours: Any, theirs: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)


def test_parameters_are_those_of_flax_to_the_bit() -> None:
    inputs = inputs_of(2, 9)
    kernel_init, bias_init = nn.initializers.orthogonal(0.3), nn.initializers.normal(1.0)
    ours = Dense(5, kernel_init=kernel_init, bias_init=bias_init).init(jax.random.key(1), inputs)
    theirs = nn.Dense(5, kernel_init=kernel_init, bias_init=bias_init).init(jax.random.key(1), inputs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@EVERY_SHAPE
def test_outputs_and_gradients_equal_those_of_flax(batch_shape: tuple, num_inputs: int, num_outputs: int) -> None:
    inputs = inputs_of(*batch_shape, num_inputs)
    ours, theirs = Dense(num_outputs), nn.Dense(num_outputs)
    params = ours.init(jax.random.key(1), inputs)
    for layer_gradients in (jax.value_and_grad, lambda loss, argnums: jax.jit(jax.value_and_grad(loss, argnums))):
        assert_trees_close(
            layer_gradients(loss_of(ours), argnums=(0, 1))(params, inputs),
            layer_gradients(loss_of(theirs), argnums=(0, 1))(params, inputs),
        )


@pytest.mark.parametrize("num_outputs", [2, 6])
def test_mapping_over_parameters_and_inputs_equals_one_after_the_other(num_outputs: int) -> None:
    layer, inputs = Dense(num_outputs), inputs_of(3, 16, 8)
    params = jax.vmap(layer.init)(jax.random.split(jax.random.key(1), 3), inputs)
    gradients_of = jax.grad(loss_of(layer), argnums=(0, 1))
    together = jax.jit(jax.vmap(gradients_of))(params, inputs)
    for index in range(3):
        alone = gradients_of(*jax.tree.map(lambda leaf, index=index: leaf[index], (params, inputs)))
        assert_trees_close(jax.tree.map(lambda leaf, index=index: leaf[index], together), alone)


@pytest.mark.parametrize("num_outputs", [2, 6])
def test_gradients_of_gradients_equal_those_of_flax(num_outputs: int) -> None:
    inputs = inputs_of(16, 8)
    ours, theirs = Dense(num_outputs), nn.Dense(num_outputs)
    params = ours.init(jax.random.key(1), inputs)

    def gradient_penalty(layer: nn.Module) -> Callable[[Any], Array]:
        input_gradient = jax.grad(loss_of(layer), argnums=1)
        return lambda params: jnp.sum(input_gradient(params, inputs) ** 2)

    assert_trees_close(jax.grad(gradient_penalty(ours))(params), jax.grad(gradient_penalty(theirs))(params))


def test_the_barrier_in_the_gradient_is_for_cpu_alone() -> None:
    layer, inputs = Dense(6), inputs_of(16, 8)
    params = layer.init(jax.random.key(1), inputs)
    traced = jax.jit(jax.grad(loss_of(layer))).trace(params, inputs)
    assert "optimization_barrier" in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "optimization_barrier" not in traced.lower(lowering_platforms=("tpu",)).as_text()
