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
MAX_PATCH_BYTES = 2 * 2**20
"""On CPU, patches are copied in chunks of images up to this size, but at least one image."""


class Convolution(nn.Module):
    """`flax.linen.Conv` without padding, with the same parameters and results, but as matrix products on CPU.

    There, XLA's convolution is about half as fast for small grids and for large batches of pixels; the gradient of its
    kernel is more than ten times slower inside a loop. Reverse-mode derivatives of any order work; forward mode
    (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) does not.
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve(images: Array, kernel: Array, stride: int) -> Array:
    """Convolve `[N, H, W, C]` with `[K, K, C, F]` to `[N, H', W', F]`."""
    on_cpu = functools.partial(_convolve_on_cpu, stride=stride)
    by_xla = functools.partial(_convolve_by_xla, stride=stride)
    return jax.lax.platform_dependent(images, kernel, cpu=on_cpu, default=by_xla)


def _convolve_forward(images: Array, kernel: Array, stride: int) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(images, kernel, stride), (images, kernel)


def _convolve_backward(stride: int, residuals: tuple[Array, Array], gradients: Array) -> tuple[Array, Array]:
    on_cpu = functools.partial(_gradients_on_cpu, stride=stride)
    by_xla = functools.partial(_gradients_by_xla, stride=stride)
    return jax.lax.platform_dependent(*residuals, gradients, cpu=on_cpu, default=by_xla)


_convolve.defvjp(_convolve_forward, _convolve_backward)


def _convolve_by_xla(images: Array, kernel: Array, stride: int) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, kernel, (stride, stride), "VALID", dimension_numbers=layout)


def _gradients_by_xla(images: Array, kernel: Array, gradients: Array, stride: int) -> tuple[Array, Array]:
    _, pull_back = jax.vjp(functools.partial(_convolve_by_xla, stride=stride), images, kernel)
    return pull_back(gradients)


def _convolve_on_cpu(images: Array, kernel: Array, stride: int) -> Array:
    output_shape = jax.eval_shape(functools.partial(_convolve_by_xla, stride=stride), images, kernel).shape
    matrix = _as_matrix(kernel)
    outputs = jax.lax.map(
        lambda images: _patches(images, kernel.shape[0], stride) @ matrix,
        _in_chunks(images, _num_chunks(output_shape, kernel)),
    )
    return outputs.reshape(-1, *output_shape[1:])[: images.shape[0]]


def _gradients_on_cpu(images: Array, kernel: Array, gradients: Array, stride: int) -> tuple[Array, Array]:
    to_patches = functools.partial(_patches, kernel_size=kernel.shape[0], stride=stride)
    matrix, num_features = _as_matrix(kernel), kernel.shape[-1]

    def image_gradient(chunk: tuple[Array, Array]) -> Array:
        images, gradients = chunk
        return jax.linear_transpose(to_patches, images)(gradients.reshape(-1, num_features) @ matrix.T)[0]

    def add_kernel_gradient(total: Array, chunk: tuple[Array, Array]) -> tuple[Array, None]:
        images, gradients = chunk
        # The transposed gradients on the left: XLA is slower with the transposed patches there.
        return total + gradients.reshape(-1, num_features).T @ to_patches(images), None

    # In separate loops: XLA removes the first one if its result is not used, as in the first layer.
    num_chunks = _num_chunks(gradients.shape, kernel)
    chunks = _in_chunks(images, num_chunks), _in_chunks(gradients, num_chunks)
    image_gradients = jax.lax.map(image_gradient, chunks)
    kernel_gradient, _ = jax.lax.scan(add_kernel_gradient, jnp.zeros_like(matrix.T), chunks)
    image_gradients = image_gradients.reshape(-1, *images.shape[1:])[: images.shape[0]]
    return image_gradients, kernel_gradient.T.reshape(kernel.shape)


def _as_matrix(kernel: Array) -> Array:
    """Reshape `[K, K, C, F]` to `[K * K * C, F]`."""
    return kernel.reshape(math.prod(kernel.shape[:3]), kernel.shape[3])


def _num_chunks(output_shape: Shape, kernel: Array) -> int:
    """Return a power of two, so that usual batch sizes need no padding."""
    num_images, num_rows, num_columns, _ = output_shape
    image_bytes = num_rows * num_columns * math.prod(kernel.shape[:3]) * kernel.dtype.itemsize
    num_chunks = math.ceil(num_images / max(1, MAX_PATCH_BYTES // image_bytes))
    return 1 << max(0, num_chunks - 1).bit_length()


def _in_chunks(array: Array, num_chunks: int) -> Array:
    """Split `[N, ...]` into `[num_chunks, n, ...]`; the last chunk is padded with zeros."""
    chunk_size = math.ceil(array.shape[0] / num_chunks)
    padded = jnp.pad(array, [(0, num_chunks * chunk_size - array.shape[0])] + [(0, 0)] * (array.ndim - 1))
    return padded.reshape(num_chunks, chunk_size, *array.shape[1:])


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
    # First along the columns, then along the rows: the second copy has runs of a whole row of the kernel.
    columns = jnp.concatenate([blocks[:, :, block : block + num_columns] for block in range(blocks_per_kernel)], -1)
    columns = jax.lax.optimization_barrier(columns[..., : kernel_size * num_channels])
    last_row = (num_rows - 1) * stride + 1
    patches = jnp.concatenate([columns[:, row : row + last_row : stride] for row in range(kernel_size)], axis=-1)
    return patches.reshape(num_images * num_rows * num_columns, kernel_size * kernel_size * num_channels)
