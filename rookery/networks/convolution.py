"""Convolutional networks for pixels and for small grids, channels last, with any number of leading batch axes."""

import math
from typing import NamedTuple

import flax.linen as nn
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
            window = (layer.kernel_size, layer.kernel_size)
            strides = (layer.stride, layer.stride)
            convolution = nn.Conv(
                layer.num_features, window, strides, "VALID", kernel_init=kernel_init, name=f"convolution_{index}"
            )
            features = activate(convolution(features))
        features = features.reshape(*features.shape[:-3], math.prod(features.shape[-3:]))  # [..., H * W * C]
        return activate(Dense(self.output_size, kernel_init=kernel_init, name="dense")(features))


def cnn_for(image_shape: Shape, kernel_init: str = "orthogonal") -> CNN:
    """Choose the network for images `[H, W, C]`: Nature-DQN's if they are large enough for it, else MinAtar's."""
    if min(image_shape[:2]) >= smallest_side(NATURE_LAYERS):
        return CNN(layers=NATURE_LAYERS, output_size=512, kernel_init=kernel_init)
    return CNN(layers=GRID_LAYERS, output_size=128, kernel_init=kernel_init)


def smallest_side(layers: tuple[ConvolutionLayer, ...]) -> int:
    """Return the smallest height or width of which these layers leave at least one value."""
    side = 1
    for layer in reversed(layers):
        side = (side - 1) * layer.stride + layer.kernel_size
    return side


def scaled_to_float(array: Array) -> Array:
    """Convert to float32; bytes (`uint8`) are scaled from [0, 255] to [0, 1], other numbers keep their values."""
    as_float = array.astype(jnp.float32)
    return as_float / 255.0 if array.dtype == jnp.uint8 else as_float
