"""Gaussian distributions over a box, clipped or squashed to its bounds."""

import math
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.networks.distributions.distribution import Distribution, sum_over_event
from rookery.spaces import Box, Shape
from rookery.types import Array, Key, pytree_field


class Gaussian(Distribution):
    """The base of distributions over a `Box`: `mean` and `log_std`, both `[..., *shape]`."""

    space: Box = pytree_field(static=True)
    mean: Array
    log_std: Array

    @property
    def batch_shape(self) -> Shape:
        return self.space.batch_shape_of(self.mean)

    def sample(self, key: Key) -> Array:
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Array:
        return self.mean

    def kl_divergence(self, other: Self) -> Array:
        self._check_same_kind(other)
        variance_ratio = jnp.exp(2.0 * (self.log_std - other.log_std))
        distance = (self.mean - other.mean) * jnp.exp(-other.log_std)
        divergence = 0.5 * (variance_ratio + distance**2 - 1.0) - (self.log_std - other.log_std)
        return sum_over_event(divergence, self.space)

    def _raw_log_prob(self, raw: Array) -> Array:
        """Return the log-density of the Gaussian for each entry, before any squashing."""
        self._check_raw(raw)
        deviation = (raw - self.mean) * jnp.exp(-self.log_std)
        return -0.5 * deviation**2 - self.log_std - 0.5 * math.log(2.0 * math.pi)

    def _raw_entropy(self) -> Array:
        return self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)


class DiagonalGaussian(Gaussian):
    """Independent normal variables; the action is the raw sample clipped to the finite bounds.

    Log-probability and entropy are those of the sample before clipping.
    """

    def log_prob(self, raw: Array) -> Array:
        return sum_over_event(self._raw_log_prob(raw), self.space)

    def entropy(self) -> Array:
        return sum_over_event(self._raw_entropy(), self.space)

    def action(self, raw: Array) -> Array:
        low, high = _bounds(self.space, raw)
        return jnp.clip(raw, low, high).astype(self.space.sample_dtype)

    def raw_of(self, action: Array) -> Array:
        return action.astype(self.mean.dtype)


class TanhGaussian(Gaussian):
    """Independent normal variables squashed by tanh and scaled to the bounds of the space, which must be finite.

    Densities and entropies are those of tanh(raw) in [-1, 1]: they omit the logarithm of the scale, a constant, so a
    target entropy of minus the number of entries fits all bounds. `mode` is the median, the squashed mean: the mode of
    the squashed density moves to the bounds as the standard deviation grows.
    """

    # The entropy is an expectation over one normal variable for each entry. The trapezoidal rule on these nodes has an
    # error below 1e-3 for any mean and any standard deviation up to exp(2).
    _NODES: ClassVar[np.ndarray] = np.linspace(-5.0, 5.0, 48, dtype=np.float32)
    _WEIGHTS: ClassVar[np.ndarray] = np.exp(-0.5 * _NODES**2) / np.sum(np.exp(-0.5 * _NODES**2))
    _MARGIN: ClassVar[float] = 1e-6

    def log_prob(self, raw: Array) -> Array:
        return sum_over_event(self._raw_log_prob(raw) - _log_tanh_derivative(raw), self.space)

    def entropy(self) -> Array:
        """Return the entropy, by numerical integration: it has no closed form."""
        shape = (*self.mean.shape, self._NODES.size)
        nodes, weights = jnp.broadcast_to(self._NODES, shape), jnp.broadcast_to(self._WEIGHTS, shape)
        raw = self.mean[..., None] + jnp.exp(self.log_std)[..., None] * nodes  # [..., *shape, nodes]
        squashing = jnp.sum(weights * _log_tanh_derivative(raw), axis=-1)
        return sum_over_event(self._raw_entropy() + squashing, self.space)

    def action(self, raw: Array) -> Array:
        low, high = _bounds(self.space, raw)
        # In halves, since high - low may overflow; clipped, since rounding may exceed a bound.
        action = (low / 2.0 + high / 2.0) + (high / 2.0 - low / 2.0) * jnp.tanh(raw)
        return jnp.clip(action, low, high).astype(self.space.sample_dtype)

    def raw_of(self, action: Array) -> Array:
        """Map an action back; actions at a bound, which no raw action reaches, are moved slightly inside."""
        low, high = _bounds(self.space, self.mean)
        share = (action.astype(self.mean.dtype) - (low / 2.0 + high / 2.0)) / (high / 2.0 - low / 2.0)
        return jnp.arctanh(jnp.clip(share, -1.0 + self._MARGIN, 1.0 - self._MARGIN))


def _log_tanh_derivative(raw: Array) -> Array:
    """Return log(1 - tanh(raw)^2) without cancellation."""
    return 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))


def _bounds(space: Box, like: Array) -> tuple[Array, Array]:
    """Return the bounds in the shape and dtype of a batch of raw actions."""
    low, high = jnp.asarray(space.low, like.dtype), jnp.asarray(space.high, like.dtype)
    return jnp.broadcast_to(low, like.shape), jnp.broadcast_to(high, like.shape)
