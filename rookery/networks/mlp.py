"""Fully connected networks, and activations and initializers by name."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rookery.errors import unknown_name
from rookery.networks.dense import Dense
from rookery.spaces import Shape
from rookery.types import Array, Key


class Activation(NamedTuple):
    """A nonlinearity, and the usual gain of an orthogonal layer before it."""

    function: Callable[[Array], Array]
    gain: float


# tanh has sqrt(2), as in the published results of PPO, instead of the variance-preserving 5/3.
ACTIVATIONS = {
    "elu": Activation(jax.nn.elu, math.sqrt(2.0)),
    "gelu": Activation(jax.nn.gelu, math.sqrt(2.0)),
    "leaky_relu": Activation(jax.nn.leaky_relu, math.sqrt(2.0 / (1.0 + 0.01**2))),
    "relu": Activation(jax.nn.relu, math.sqrt(2.0)),
    "selu": Activation(jax.nn.selu, 0.75),
    "sigmoid": Activation(jax.nn.sigmoid, 1.0),
    "silu": Activation(jax.nn.silu, math.sqrt(2.0)),
    "tanh": Activation(jax.nn.tanh, math.sqrt(2.0)),
}

VARIANCE_SCALING = {
    "he_normal": (2.0, "fan_in", "truncated_normal"),
    "he_uniform": (2.0, "fan_in", "uniform"),
    "lecun_normal": (1.0, "fan_in", "truncated_normal"),
    "lecun_uniform": (1.0, "fan_in", "uniform"),
    "xavier_normal": (1.0, "fan_avg", "truncated_normal"),
    "xavier_uniform": (1.0, "fan_avg", "uniform"),
}

KERNEL_INITIALIZERS = ("orthogonal", "zeros", *VARIANCE_SCALING)


def activation_named(name: str) -> Activation:
    """Return an activation by name."""
    if name not in ACTIVATIONS:
        raise unknown_name("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def initializer_named(name: str, gain: float = 1.0) -> nn.initializers.Initializer:
    """Make a kernel initializer by name; its values are multiplied by `gain`."""
    if name == "orthogonal":
        return orthogonal(gain)
    if name == "zeros":
        return nn.initializers.zeros_init()
    if name not in VARIANCE_SCALING:
        raise unknown_name("kernel initializer", name, KERNEL_INITIALIZERS)
    variance, fan, distribution = VARIANCE_SCALING[name]
    return nn.initializers.variance_scaling(variance * gain**2, fan, distribution)


def orthogonal(gain: float = 1.0) -> nn.initializers.Initializer:
    """Initialize matrices with orthonormal rows or columns, whichever are fewer, times `gain` (Saxe et al., 2014).

    Uses Gram-Schmidt, twice for accuracy, instead of the QR decomposition of LAPACK: on CPU, two QR decompositions
    mapped over a population inside one compiled program deadlock (jaxlib 0.10.2).
    """

    def init(key: Key, shape: Shape, dtype: Any = jnp.float32) -> Array:
        num_rows, num_columns = math.prod(shape[:-1]), shape[-1]
        basis = _random_basis(key, min(num_rows, num_columns), max(num_rows, num_columns), dtype)
        matrix = basis if num_rows <= num_columns else basis.T
        return gain * matrix.reshape(shape)

    return init


@partial(jax.jit, static_argnames=("size", "length", "dtype"))
def _random_basis(key: Key, size: int, length: int, dtype: Any) -> Array:
    """Sample `size` orthonormal vectors, `[size, length]`.

    Jitted so that it is traced once: flax calls the initializer at every use of a layer to check its shape.
    """
    vectors = jax.random.normal(key, (size, length), dtype)

    def add_to(basis: Array, row: tuple[Array, Array]) -> tuple[Array, None]:
        index, vector = row
        for _ in range(2):
            vector = vector - (basis @ vector) @ basis
        vector = vector / jnp.linalg.norm(vector)
        return jax.lax.dynamic_update_index_in_dim(basis, vector, index, axis=0), None

    basis, _ = jax.lax.scan(add_to, jnp.zeros_like(vectors), (jnp.arange(size), vectors))
    return basis


def hidden_initializer(kernel_init: str, activation: str) -> nn.initializers.Initializer:
    """Make the initializer of a layer before an activation; only the orthogonal one uses the activation's gain."""
    return initializer_named(kernel_init, activation_named(activation).gain if kernel_init == "orthogonal" else 1.0)


class MLP(nn.Module):
    """Hidden layers, each followed by the activation, and a linear output layer if `output_size` is given.

    `output_init_scale` multiplies the initial kernel of the output layer: with 0.01 a policy starts nearly uniform.
    """

    hidden_sizes: tuple[int, ...]
    activation: str = "tanh"
    kernel_init: str = "orthogonal"
    output_size: int | None = None
    output_init_scale: float = 1.0
    layer_norm: bool = False

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Map `[..., F]` to `[..., output_size]`, or to `[..., hidden_sizes[-1]]` without an output layer."""
        features = inputs
        activate = activation_named(self.activation).function
        kernel_init = hidden_initializer(self.kernel_init, self.activation)
        for index, size in enumerate(self.hidden_sizes):
            features = Dense(size, kernel_init=kernel_init, name=f"hidden_{index}")(features)
            if self.layer_norm:
                features = nn.LayerNorm(name=f"norm_{index}")(features)
            features = activate(features)
        if self.output_size is None:
            return features
        output_init = initializer_named(self.kernel_init, self.output_init_scale)
        return Dense(self.output_size, kernel_init=output_init, name="output")(features)
