"""Encoders from observations of any space to feature vectors, with any leading batch axes."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import ACTION_MASK
from rookery.errors import InvalidInputError, ShapeError
from rookery.networks.convolution import GRID_LAYERS, cnn_for, scaled_to_float, smallest_side
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Shape, Space, Tuple
from rookery.trust import import_object
from rookery.types import Array, Obs

MAX_ONE_HOT = 2**23
"""The maximum number of features of the one-hot vectors of a `MultiDiscrete` space."""


def own_encoder(name: str) -> nn.Module:
    """Make the flax module that a config names as `module:Class`."""
    found = import_object(name, f"agent.network={name}")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise InvalidInputError(f"encoder={name} is {found!r:.80}: expected a subclass of flax.linen.Module.")
    try:
        return found(name="own")
    except TypeError as error:
        raise InvalidInputError(f"encoder={name} is called without arguments, and that fails: {error}.") from error


class OwnEncoder(nn.Module):
    """Encodes an observation of `space` by an own module, which maps rows `[N, ...]` to features `[N, F]`."""

    space: Space
    encoder: str

    @nn.compact
    def __call__(self, obs: Obs) -> Array:
        """Map an observation with leading axes `[...]` to `[..., F]`."""
        batch_shape = self.space.batch_shape_of(obs)
        num_rows = math.prod(batch_shape)
        rows = jax.tree.map(lambda leaf: leaf.reshape(num_rows, *leaf.shape[len(batch_shape) :]), obs)
        features = own_encoder(self.encoder)(rows)
        self._check(features, num_rows)
        return features.reshape(*batch_shape, features.shape[-1])

    def _check(self, features: Any, num_rows: int) -> None:
        is_array = isinstance(features, jax.Array)
        if not is_array or features.ndim != 2 or len(features) != num_rows or features.dtype != jnp.float32:
            given = f"{features.dtype}{list(features.shape)}" if is_array else f"a {type(features).__name__}"
            raise ShapeError(
                f"agent.network={self.encoder} returned {given} for {num_rows} observations of {self.space}: expected "
                f"float32[{num_rows}, F], a row of F features for each."
            )
        if others := sorted(set(self.variables) - {"params"}):
            raise InvalidInputError(
                f"agent.network={self.encoder} has variables {others[0]!r}, which training does not keep: use "
                "parameters only, LayerNorm instead of BatchNorm for example."
            )


class ObservationEncoder(nn.Module):
    """Encodes an observation of `space` as one vector of float32 features.

    A `Box` with three axes is treated as an image, channels last, unless it is too small for a convolution; every other
    `Box` is flattened. Integers become one-hot vectors. The parts of a `Dict` (sorted by name) or `Tuple` are encoded
    and concatenated, except for the action mask.
    """

    space: Space
    kernel_init: str = "orthogonal"

    @nn.compact
    def __call__(self, obs: Obs) -> Array:
        """Map an observation with leading axes `[...]` to `[..., F]`."""
        match self.space:
            case Box():
                # The dtype of the space counts: an env may return pixels in a wider dtype than it declares.
                obs = obs.astype(self.space.sample_dtype)
                if is_image(self.space.shape):
                    return cnn_for(self.space.shape, self.kernel_init)(obs)
                return scaled_to_float(_with_flat_events(obs, self.space.shape))
            case MultiBinary():
                return _with_flat_events(obs, self.space.shape).astype(jnp.float32)
            case Discrete():
                return jax.nn.one_hot(obs.astype(jnp.int32) - self.space.start, self.space.n)
            case MultiDiscrete():
                return _one_hots(obs, self.space)
            case Dict():
                names = [name for name in sorted(self.space) if name != ACTION_MASK]
                return self._concatenate([(name, self.space[name], obs[name]) for name in names])
            case Tuple():
                indexes = range(len(self.space))
                return self._concatenate([(index, self.space[index], obs[index]) for index in indexes])
        raise InvalidInputError(f"expected an observation space of rookery.spaces, got {self.space!r}.")

    def _concatenate(self, parts: list[tuple[str | int, Space, Any]]) -> Array:
        if not parts:
            raise InvalidInputError(f"the observation space {self.space} has no entry to encode.")
        features = [
            ObservationEncoder(space, self.kernel_init, name=f"part_{name}")(part) for name, space, part in parts
        ]
        return jnp.concatenate(features, axis=-1)


def is_image(shape: Shape) -> bool:
    """Tell whether an array of this shape is encoded by a convolutional network."""
    return len(shape) == 3 and min(shape[:2]) >= smallest_side(GRID_LAYERS)


def _with_flat_events(array: Array, event_shape: Shape) -> Array:
    batch_shape = array.shape[: array.ndim - len(event_shape)]
    return array.reshape(*batch_shape, math.prod(event_shape))


def _one_hots(obs: Array, space: MultiDiscrete) -> Array:
    """Concatenate the one-hot vectors of all components: `[..., sum(nvec)]`."""
    num_values = space.nvec.flatten()
    num_features = num_values.sum(dtype=np.float64)  # the sum of integers may overflow
    if num_features > MAX_ONE_HOT:
        raise InvalidInputError(
            f"a MultiDiscrete observation has {num_features:.3g} values, more than {MAX_ONE_HOT:,} for one-hot "
            "vectors: encode it by a network of your own (agent.network)."
        )
    component = np.repeat(np.arange(space.size), num_values)  # the component of each feature
    first = np.cumsum(num_values) - num_values
    value = np.arange(component.size) + (space.start.flatten() - first)[component]
    given = _with_flat_events(obs.astype(jnp.int32), space.shape)[..., component]
    return (given == jnp.broadcast_to(value.astype(np.int32), given.shape)).astype(jnp.float32)
