"""Distributions over discrete actions: categorical, several categorical ones, or Bernoulli."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InvalidInputError, ShapeError
from rookery.networks.distributions.distribution import Distribution, sum_over_event
from rookery.spaces import Discrete, MultiBinary, MultiDiscrete, Shape, Space
from rookery.types import Array, Key, pytree_field

MAX_LOGITS = 2**23
"""The maximum number of values of all components of a `MultiDiscrete` space, each as long as the longest."""


class _Choices(Distribution):
    """The base of categorical distributions: logits of all values, and a mask of the allowed ones."""

    logits: Array
    mask: Array | None = None

    def __post_init__(self) -> None:
        _check_mask(self.mask, self.logits, self.space)

    @property
    def batch_shape(self) -> Shape:
        return self.logits.shape[:-1]

    @property
    def log_probs(self) -> Array:
        """The log-probabilities of all values, one choice on the last axis; `-inf` for masked values."""
        return jax.nn.log_softmax(self._allowed_logits)

    @property
    @abstractmethod
    def _allowed_logits(self) -> Array:
        """The logits in the layout of `log_probs`; `-inf` for masked values."""

    def sample(self, key: Key) -> Array:
        return jax.random.categorical(key, self.log_probs).astype(jnp.int32)

    def mode(self) -> Array:
        return jnp.argmax(self._allowed_logits, axis=-1).astype(jnp.int32)


class Categorical(_Choices):
    """One of the n actions of a `Discrete` space; raw actions are `0, ..., n - 1`.

    Where `mask` is 0 the probability is exactly 0. If a row masks all actions, all are allowed: such rows belong to no
    decision (the episode is done) and must not produce NaN.
    """

    space: Discrete = pytree_field(static=True)

    @property
    def _allowed_logits(self) -> Array:
        if self.mask is None:
            return self.logits
        return jnp.where(_all_if_none(self.mask.astype(bool)), self.logits, -jnp.inf)

    def log_prob(self, raw: Array) -> Array:
        self._check_raw(raw)
        return _log_prob_at(self.log_probs, raw)

    def entropy(self) -> Array:
        return _categorical_entropy(self.log_probs)

    def kl_divergence(self, other: Self) -> Array:
        """Return KL(self || other); infinite if `other` masks an action that `self` allows."""
        self._check_same_kind(other)
        return _categorical_kl_divergence(self.log_probs, other.log_probs)

    def action(self, raw: Array) -> Array:
        return raw.astype(self.space.sample_dtype) + self.space.start

    def raw_of(self, action: Array) -> Array:
        return (action - self.space.start).astype(jnp.int32)


class MultiCategorical(_Choices):
    """Independent choices for the components of a `MultiDiscrete` space; raw actions start at 0.

    `logits` and `mask` concatenate the values of all components, `[..., sum(nvec)]`; the mask works as in `Categorical`
    for each component.
    """

    space: MultiDiscrete = pytree_field(static=True)

    @property
    def _allowed_logits(self) -> Array:
        """`[..., *nvec.shape, max(nvec)]`; the padding of a component is masked."""
        logits = self._padded(self.logits)
        allowed = exists = jnp.broadcast_to(_component_layout(self.space).exists, logits.shape)
        if self.mask is not None:
            allowed = _all_if_none(self._padded(self.mask.astype(bool)) & exists) & exists
        return jnp.where(allowed, logits, -jnp.inf)

    def _padded(self, values: Array) -> Array:
        """Rearrange `[..., sum(nvec)]` to `[..., *nvec.shape, max(nvec)]`; the padding has arbitrary values."""
        return values[..., _component_layout(self.space).position]

    def log_prob(self, raw: Array) -> Array:
        self._check_raw(raw)
        return sum_over_event(_log_prob_at(self.log_probs, raw), self.space)

    def entropy(self) -> Array:
        return sum_over_event(_categorical_entropy(self.log_probs), self.space)

    def kl_divergence(self, other: Self) -> Array:
        self._check_same_kind(other)
        return sum_over_event(_categorical_kl_divergence(self.log_probs, other.log_probs), self.space)

    def action(self, raw: Array) -> Array:
        dtype = self.space.sample_dtype
        return raw.astype(dtype) + jnp.broadcast_to(jnp.asarray(self.space.start, dtype), raw.shape)

    def raw_of(self, action: Array) -> Array:
        start = jnp.broadcast_to(jnp.asarray(self.space.start, action.dtype), action.shape)
        return (action - start).astype(jnp.int32)


class Bernoulli(Distribution):
    """Independent Bernoulli variables for a `MultiBinary` space; `logits` `[..., *shape]` are those of 1."""

    space: MultiBinary = pytree_field(static=True)
    logits: Array

    @property
    def batch_shape(self) -> Shape:
        return self.space.batch_shape_of(self.logits)

    def sample(self, key: Key) -> Array:
        return jax.random.bernoulli(key, jax.nn.sigmoid(self.logits)).astype(self.space.dtype)

    def mode(self) -> Array:
        return (self.logits > 0.0).astype(self.space.dtype)

    def log_prob(self, raw: Array) -> Array:
        self._check_raw(raw)
        log_probs = jnp.where(raw == 1, jax.nn.log_sigmoid(self.logits), jax.nn.log_sigmoid(-self.logits))
        return sum_over_event(log_probs, self.space)

    def entropy(self) -> Array:
        return sum_over_event(-self._expectation(self._log_probs), self.space)

    def kl_divergence(self, other: Self) -> Array:
        self._check_same_kind(other)
        log_ratios = [mine - theirs for mine, theirs in zip(self._log_probs, other._log_probs, strict=True)]
        return sum_over_event(self._expectation(log_ratios), self.space)

    def action(self, raw: Array) -> Array:
        return raw

    def raw_of(self, action: Array) -> Array:
        return action

    @property
    def _log_probs(self) -> list[Array]:
        """The log-probabilities of 0 and of 1."""
        return [jax.nn.log_sigmoid(-self.logits), jax.nn.log_sigmoid(self.logits)]

    def _expectation(self, values: list[Array]) -> Array:
        """Return the expectation of a function with these values at 0 and 1."""
        return jax.nn.sigmoid(-self.logits) * values[0] + jax.nn.sigmoid(self.logits) * values[1]


def _check_mask(mask: Array | None, logits: Array, space: Space) -> None:
    if mask is not None and mask.shape != logits.shape:
        raise ShapeError(f"action mask has shape {list(mask.shape)}; expected {list(logits.shape)} for {space}.")


def _all_if_none(allowed: Array) -> Array:
    """Allow all values in rows that allow none."""
    return allowed | ~jnp.any(allowed, axis=-1, keepdims=True)


def _log_prob_at(log_probs: Array, raw: Array) -> Array:
    return jnp.take_along_axis(log_probs, raw[..., None].astype(jnp.int32), axis=-1)[..., 0]


def _categorical_entropy(log_probs: Array) -> Array:
    possible = log_probs > -jnp.inf
    return -jnp.sum(jnp.exp(log_probs) * jnp.where(possible, log_probs, 0.0), axis=-1)


def _categorical_kl_divergence(log_probs: Array, other_log_probs: Array) -> Array:
    possible = log_probs > -jnp.inf
    return jnp.sum(jnp.exp(log_probs) * jnp.where(possible, log_probs - other_log_probs, 0.0), axis=-1)


@dataclass(frozen=True)
class _ComponentLayout:
    """Position of each value of each component in the flat logits, and whether it exists: `[*shape, max(nvec)]`."""

    position: np.ndarray
    exists: np.ndarray


def _component_layout(space: MultiDiscrete) -> _ComponentLayout:
    num_values = space.nvec.flatten()
    if float(num_values.max()) * space.size > MAX_LOGITS:
        raise InvalidInputError(
            f"{space.size:,} discrete actions have up to {num_values.max():,} values each: expected at most "
            f"{MAX_LOGITS:,} together."
        )
    first = np.cumsum(num_values) - num_values
    value = np.arange(num_values.max())
    exists = value < num_values[:, None]
    position = np.where(exists, first[:, None] + value, 0)
    shape = (*space.shape, value.size)
    return _ComponentLayout(position.reshape(shape), exists.reshape(shape))
