"""A fully connected layer whose gradient is fast on CPU."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from rookery.types import Array

MAX_NARROW_OUTPUTS = 4
"""For layers with at most this many outputs, the kernel gradient is computed output by output."""


class Dense(nn.Module):
    """`flax.linen.Dense` with the same parameters and results, but its own backward pass.

    On CPU, XLA has no fast kernel for the product in the gradient of the weights. Reverse-mode derivatives of any order
    work; forward mode (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) does not.
    """

    features: int
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros_init()

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """Map `[..., F]` to `[..., features]`."""
        *batch_shape, num_inputs = inputs.shape
        kernel = self.param("kernel", self.kernel_init, (num_inputs, self.features), jnp.float32)
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        outputs = _product(inputs.reshape(math.prod(batch_shape), num_inputs), kernel) + bias[None]
        return outputs.reshape(*batch_shape, self.features)


@jax.custom_vjp
def _product(inputs: Array, kernel: Array) -> Array:
    """Multiply `[N, F]` by `[F, K]`."""
    return inputs @ kernel


def _product_forward(inputs: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(inputs, kernel), (inputs, kernel)


def _product_backward(residuals: tuple[Array, Array], gradients: Array) -> tuple[Array, Array]:
    inputs, kernel = residuals
    kernel_gradient = jax.lax.platform_dependent(
        inputs, gradients, cpu=_kernel_gradient_on_cpu, default=lambda inputs, gradients: inputs.T @ gradients
    )
    return gradients @ kernel.T, kernel_gradient


def _kernel_gradient_on_cpu(inputs: Array, gradients: Array) -> Array:
    num_outputs = gradients.shape[1]
    if num_outputs <= MAX_NARROW_OUTPUTS:
        return jnp.stack([gradients[:, output] @ inputs for output in range(num_outputs)], axis=1)
    # The barrier makes XLA store the transposed matrix instead of fusing it into the slow product.
    return jax.lax.optimization_barrier(inputs.T) @ gradients


_product.defvjp(_product_forward, _product_backward)
