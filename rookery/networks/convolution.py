"""Convolutional networks for pixels and for small grids, channels last, with any number of leading batch axes."""

import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from rookery.errors import ShapeError
from rookery.networks.dense import Dense
from rookery.networks.mlp import activation_named, hidden_initializer
from rookery.spaces import Shape
from rookery.types import Array


class ConvolutionLayer(NamedTuple):
    """A square convolution without padding."""

    num_features: int
    kernel_size: int
    stride: int


NATURE_LAYERS = (ConvolutionLayer(32, 8, 4), ConvolutionLayer(64, 4, 2), ConvolutionLayer(64, 3, 1))
"""For pixels: Mnih et al., "Human-level control through deep reinforcement learning", Nature, 2015."""
GRID_LAYERS = (ConvolutionLayer(16, 3, 1),)
"""For small grids: Young and Tian, "MinAtar", 2019."""
MAX_PATCH_BYTES = 4 * 2**20
"""The backward pass on CPU copies patches in chunks of images up to this size, but at least one image."""


class Convolution(nn.Module):
    """`flax.linen.Conv` without padding, with the same parameters and results, but its own backward pass.

    Inside a loop on CPU, XLA computes the gradient of the kernel more than ten times slower than a matrix product.
    Reverse-mode derivatives of any order work; forward mode (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) does not.
    """

    layer: ConvolutionLayer
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Map `[..., H, W, C]` to `[..., H', W', num_features]`."""
        num_features, kernel_size, stride = self.layer
        *batch_shape, height, width, num_channels = images.shape
        kernel_shape = (kernel_size, kernel_size, num_channels, num_features)
        kernel = self.param("kernel", self.kernel_init, kernel_shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), (num_features,), jnp.float32)
        flat_images = images.reshape(math.prod(batch_shape), height, width, num_channels)
        outputs = _convolve(flat_images, kernel, stride) + bias[None, None, None]
        return outputs.reshape(*batch_shape, *outputs.shape[1:])


class CNN(nn.Module):
    """Convolutions and one dense layer, each followed by the activation; `uint8` pixels are scaled to [0, 1]."""

    layers: tuple[ConvolutionLayer, ...] = NATURE_LAYERS
    output_size: int = 512
    activation: str = "relu"
    kernel_init: str = "orthogonal"

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """Map `[..., H, W, C]` to `[..., output_size]`."""
        if images.ndim < 3 or min(images.shape[-3:-1]) < smallest_side(self.layers):
            raise ShapeError(
                f"images have shape {list(images.shape)}; expected [..., H, W, C] with H and W of at least "
                f"{smallest_side(self.layers)} for the layers {[tuple(layer) for layer in self.layers]}."
            )
        activate = activation_named(self.activation).function
        kernel_init = hidden_initializer(self.kernel_init, self.activation)
        features = scaled_to_float(images)
        for index, layer in enumerate(self.layers):
            features = activate(Convolution(layer, kernel_init, name=f"convolution_{index}")(features))
        features = features.reshape(*features.shape[:-3], math.prod(features.shape[-3:]))  # [..., H * W * C]
        return activate(Dense(self.output_size, kernel_init=kernel_init, name="dense")(features))


def cnn_for(image_shape: Shape, kernel_init: str = "orthogonal") -> CNN:
    """Make the network for images `[H, W, C]`: that of Nature DQN if they are large enough, else that of MinAtar."""
    if min(image_shape[:2]) >= smallest_side(NATURE_LAYERS):
        return CNN(layers=NATURE_LAYERS, output_size=512, kernel_init=kernel_init)
    return CNN(layers=GRID_LAYERS, output_size=128, kernel_init=kernel_init)


def smallest_side(layers: tuple[ConvolutionLayer, ...]) -> int:
    """Return the smallest height or width for which the layers have an output."""
    side = 1
    for layer in reversed(layers):
        side = (side - 1) * layer.stride + layer.kernel_size
    return side


def scaled_to_float(array: Array) -> Array:
    """Convert to float32; bytes (`uint8`) are scaled from [0, 255] to [0, 1], other numbers keep their values."""
    as_float = array.astype(jnp.float32)
    return as_float / 255.0 if array.dtype == jnp.uint8 else as_float


def _xla_convolution(images: Array, kernel: Array, stride: int) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, kernel, (stride, stride), "VALID", dimension_numbers=layout)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve(images: Array, kernel: Array, stride: int) -> Array:
    """Convolve `[N, H, W, C]` with `[K, K, C, F]` to `[N, H', W', F]`."""
    return _xla_convolution(images, kernel, stride)


def _convolve_forward(images: Array, kernel: Array, stride: int) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(images, kernel, stride), (images, kernel)


def _convolve_backward(stride: int, residuals: tuple[Array, Array], gradients: Array) -> tuple[Array, Array]:
    on_cpu = functools.partial(_gradients_on_cpu, stride=stride)
    by_xla = functools.partial(_gradients_by_xla, stride=stride)
    return jax.lax.platform_dependent(*residuals, gradients, cpu=on_cpu, default=by_xla)


_convolve.defvjp(_convolve_forward, _convolve_backward)


def _gradients_by_xla(images: Array, kernel: Array, gradients: Array, stride: int) -> tuple[Array, Array]:
    _, pull_back = jax.vjp(functools.partial(_xla_convolution, stride=stride), images, kernel)
    return pull_back(gradients)


def _gradients_on_cpu(images: Array, kernel: Array, gradients: Array, stride: int) -> tuple[Array, Array]:
    kernel_size, _, num_channels, num_features = kernel.shape
    matrix = kernel.reshape(kernel_size * kernel_size * num_channels, num_features)
    to_patches = functools.partial(_patches, kernel_size=kernel_size, stride=stride)

    def image_gradient(chunk: tuple[Array, Array]) -> Array:
        images, gradients = chunk
        return jax.linear_transpose(to_patches, images)(gradients @ matrix.T)[0]

    def add_kernel_gradient(total: Array, chunk: tuple[Array, Array]) -> tuple[Array, None]:
        images, gradients = chunk
        # The barrier makes XLA store the transposed matrix instead of fusing it into the slow product.
        return total + jax.lax.optimization_barrier(to_patches(images).T) @ gradients, None

    # In separate loops: XLA removes the first one if its result is not used, as in the first layer.
    chunks = _in_chunks(images, gradients, kernel_size)
    image_gradients = jax.lax.map(image_gradient, chunks)
    kernel_gradient, _ = jax.lax.scan(add_kernel_gradient, jnp.zeros_like(matrix), chunks)
    image_gradients = image_gradients.reshape(-1, *images.shape[1:])[: images.shape[0]]
    return image_gradients, kernel_gradient.reshape(kernel.shape)


def _in_chunks(images: Array, gradients: Array, kernel_size: int) -> tuple[Array, Array]:
    """Split into chunks of at most `MAX_PATCH_BYTES` of patches; the last one is padded with zeros.

    Returns images `[chunks, n, H, W, C]` and gradients `[chunks, n * H' * W', F]`.
    """
    num_images, num_rows, num_columns, num_features = gradients.shape
    image_bytes = num_rows * num_columns * kernel_size**2 * images.shape[-1] * images.dtype.itemsize
    num_chunks = max(1, math.ceil(num_images / max(1, MAX_PATCH_BYTES // image_bytes)))
    chunk_size = math.ceil(num_images / num_chunks)

    def padded(array: Array) -> Array:
        return jnp.pad(array, [(0, num_chunks * chunk_size - num_images)] + [(0, 0)] * 3)

    image_chunks = padded(images).reshape(num_chunks, chunk_size, *images.shape[1:])
    return image_chunks, padded(gradients).reshape(num_chunks, chunk_size * num_rows * num_columns, num_features)


def _patches(images: Array, kernel_size: int, stride: int) -> Array:
    """Copy the inputs of the kernel at each position into a row: `[N, H, W, C]` to `[N * H' * W', K * K * C]`."""
    num_images, height, width, num_channels = images.shape
    num_rows, num_columns = (height - kernel_size) // stride + 1, (width - kernel_size) // stride + 1
    # Copy whole blocks of `stride` columns: longer runs of memory and fewer slices to compile.
    blocks_per_kernel = -(-kernel_size // stride)
    num_blocks = num_columns - 1 + blocks_per_kernel
    crop_or_pad = ((0, 0, 0), (0, 0, 0), (0, num_blocks * stride - width, 0), (0, 0, 0))
    blocks = jax.lax.pad(images, jnp.zeros((), images.dtype), crop_or_pad)
    blocks = blocks.reshape(num_images, height, num_blocks, stride * num_channels)
    slices = [
        blocks[:, row : row + (num_rows - 1) * stride + 1 : stride, block : block + num_columns]
        for row in range(kernel_size)
        for block in range(blocks_per_kernel)
    ]
    num_patches = num_images * num_rows * num_columns
    patches = jnp.concatenate(slices, axis=-1)
    patches = patches.reshape(num_patches, kernel_size, blocks_per_kernel * stride, num_channels)
    return patches[:, :, :kernel_size].reshape(num_patches, kernel_size * kernel_size * num_channels)
