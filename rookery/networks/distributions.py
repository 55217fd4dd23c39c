"""Distributions over actions, and the one place that decides which of them an action space gets.

A sample is in the distribution's own coordinates, called raw; `action(raw)` maps it to what the environment gets.
Losses use `log_prob(raw)`, so no squashed or clipped action is ever mapped back: it is exact at the bounds.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InvalidInputError, ShapeError
from rookery.spaces import ArraySpace, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Shape, Space, Tuple
from rookery.types import Array, Key, PyTreeData, PyTreeDict, pytree_field

Raw = Any
"""An action, or a tree of them for a composite space, in the coordinates of its distribution."""


class Distribution(PyTreeData, ABC):
    """A distribution over the actions of `space`, or a batch of them; results have the batch's shape `[...]`."""

    space: Space = pytree_field(static=True)

    @property
    @abstractmethod
    def batch_shape(self) -> Shape:
        """The leading axes: one distribution for each."""

    @abstractmethod
    def sample(self, key: Key) -> Raw:
        """Draw one raw action from each distribution; differentiable where the space is continuous."""

    @abstractmethod
    def mode(self) -> Raw:
        """Return the raw action to take when not exploring."""

    @abstractmethod
    def log_prob(self, raw: Raw) -> Array:
        """Return the log-probability (or log-density) of raw actions."""

    @abstractmethod
    def entropy(self) -> Array:
        """Return the entropy in nats."""

    @abstractmethod
    def kl_divergence(self, other: Self) -> Array:
        """Return KL(self || other) in nats, for another distribution of the same kind."""

    @abstractmethod
    def action(self, raw: Raw) -> Any:
        """Map a raw action to the element of `space` that the environment gets."""

    @abstractmethod
    def raw_of(self, action: Any) -> Raw:
        """Map an action that was chosen elsewhere back to a raw one; what this distribution chose needs no way back."""

    def _check_raw(self, raw: Raw) -> None:
        self.space.check(raw, "raw action", self.batch_shape)

    def _check_same_kind(self, other: "Distribution") -> None:
        if type(self) is not type(other) or self.space != other.space:
            raise InvalidInputError(
                f"the KL divergence of {type(self).__name__} over {self.space} from {type(other).__name__} over "
                f"{other.space} is not defined: both must be of the same kind, over the same space."
            )


class Categorical(Distribution):
    """One of the n actions of a `Discrete` space; raw actions are `0, ..., n - 1` whatever the first action is.

    Where `mask` is 0 the probability is exactly 0. A row that allows nothing is treated as if it allowed everything:
    such rows belong to no decision (an episode that has ended), and must not put a NaN into those that do.
    """

    space: Discrete = pytree_field(static=True)
    logits: Array
    mask: Array | None = None

    def __post_init__(self) -> None:
        _check_mask(self.mask, self.logits, self.space)

    @property
    def batch_shape(self) -> Shape:
        return self.logits.shape[:-1]

    @property
    def log_probs(self) -> Array:
        """The log-probabilities of all actions, `[..., n]`; those of masked actions are `-inf`."""
        return jax.nn.log_softmax(self._allowed_logits)

    @property
    def _allowed_logits(self) -> Array:
        """The logits, `-inf` for masked actions."""
        if self.mask is None:
            return self.logits
        return jnp.where(_all_if_none(self.mask.astype(bool)), self.logits, -jnp.inf)

    def sample(self, key: Key) -> Array:
        return jax.random.categorical(key, self.log_probs).astype(jnp.int32)

    def mode(self) -> Array:
        return jnp.argmax(self._allowed_logits, axis=-1).astype(jnp.int32)

    def log_prob(self, raw: Array) -> Array:
        self._check_raw(raw)
        return _log_prob_at(self.log_probs, raw)

    def entropy(self) -> Array:
        return _categorical_entropy(self.log_probs)

    def kl_divergence(self, other: Self) -> Array:
        """Return KL(self || other); infinite where `other` masks an action that this one may take."""
        self._check_same_kind(other)
        return _categorical_kl_divergence(self.log_probs, other.log_probs)

    def action(self, raw: Array) -> Array:
        return raw.astype(self.space.sample_dtype) + self.space.start

    def raw_of(self, action: Array) -> Array:
        return (action - self.space.start).astype(jnp.int32)


class MultiCategorical(Distribution):
    """Independent choices, one for each component of a `MultiDiscrete` space; raw actions count from 0.

    `logits` and `mask` hold the values of all components one after the other, `[..., sum(nvec)]`; the mask is that of
    `Categorical`, for each component by itself.
    """

    space: MultiDiscrete = pytree_field(static=True)
    logits: Array
    mask: Array | None = None

    def __post_init__(self) -> None:
        _check_mask(self.mask, self.logits, self.space)

    @property
    def batch_shape(self) -> Shape:
        return self.logits.shape[:-1]

    @property
    def log_probs(self) -> Array:
        """The log-probabilities of all values, `[..., *nvec.shape, max(nvec)]`; `-inf` past the end of a component."""
        return jax.nn.log_softmax(self._allowed_logits)

    @property
    def _allowed_logits(self) -> Array:
        """The logits in the layout of `log_probs`, `-inf` for masked values and past the end of a component."""
        logits = self._padded(self.logits)
        allowed = exists = jnp.broadcast_to(_component_layout(self.space).exists, logits.shape)
        if self.mask is not None:
            allowed = _all_if_none(self._padded(self.mask.astype(bool)) & exists) & exists
        return jnp.where(allowed, logits, -jnp.inf)

    def _padded(self, values: Array) -> Array:
        """Lay out `[..., sum(nvec)]` as `[..., *nvec.shape, max(nvec)]`; what stands past an end has no meaning."""
        return values[..., _component_layout(self.space).position]

    def sample(self, key: Key) -> Array:
        return jax.random.categorical(key, self.log_probs).astype(jnp.int32)

    def mode(self) -> Array:
        return jnp.argmax(self._allowed_logits, axis=-1).astype(jnp.int32)

    def log_prob(self, raw: Array) -> Array:
        self._check_raw(raw)
        return _sum_over_event(_log_prob_at(self.log_probs, raw), self.space)

    def entropy(self) -> Array:
        return _sum_over_event(_categorical_entropy(self.log_probs), self.space)

    def kl_divergence(self, other: Self) -> Array:
        self._check_same_kind(other)
        return _sum_over_event(_categorical_kl_divergence(self.log_probs, other.log_probs), self.space)

    def action(self, raw: Array) -> Array:
        dtype = self.space.sample_dtype
        return raw.astype(dtype) + jnp.broadcast_to(jnp.asarray(self.space.start, dtype), raw.shape)

    def raw_of(self, action: Array) -> Array:
        start = jnp.broadcast_to(jnp.asarray(self.space.start, action.dtype), action.shape)
        return (action - start).astype(jnp.int32)


class Bernoulli(Distribution):
    """Independent coins, one for each entry of a `MultiBinary` space; `logits` `[..., *shape]` are those of a 1."""

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
        return _sum_over_event(log_probs, self.space)

    def entropy(self) -> Array:
        return _sum_over_event(-self._expectation(self._log_probs), self.space)

    def kl_divergence(self, other: Self) -> Array:
        self._check_same_kind(other)
        log_ratios = [mine - theirs for mine, theirs in zip(self._log_probs, other._log_probs, strict=True)]
        return _sum_over_event(self._expectation(log_ratios), self.space)

    def action(self, raw: Array) -> Array:
        return raw

    def raw_of(self, action: Array) -> Array:
        return action

    @property
    def _log_probs(self) -> list[Array]:
        """The log-probabilities of 0 and of 1."""
        return [jax.nn.log_sigmoid(-self.logits), jax.nn.log_sigmoid(self.logits)]

    def _expectation(self, values: list[Array]) -> Array:
        """Weigh the value at 0 and the value at 1 with their probabilities."""
        return jax.nn.sigmoid(-self.logits) * values[0] + jax.nn.sigmoid(self.logits) * values[1]


class Gaussian(Distribution):
    """What the distributions over a `Box` have in common: `mean` and `log_std`, both `[..., *shape]`."""

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
        return _sum_over_event(divergence, self.space)

    def _raw_log_prob(self, raw: Array) -> Array:
        """Return the log-density of the Gaussian for each entry, before any squashing."""
        self._check_raw(raw)
        deviation = (raw - self.mean) * jnp.exp(-self.log_std)
        return -0.5 * deviation**2 - self.log_std - 0.5 * math.log(2.0 * math.pi)

    def _raw_entropy(self) -> Array:
        return self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)


class DiagonalGaussian(Gaussian):
    """Independent normal variables; the action is the raw sample, clipped to the bounds that are finite.

    Clipping belongs to the environment's side: log-probability and entropy are those of the sample before it.
    """

    def log_prob(self, raw: Array) -> Array:
        return _sum_over_event(self._raw_log_prob(raw), self.space)

    def entropy(self) -> Array:
        return _sum_over_event(self._raw_entropy(), self.space)

    def action(self, raw: Array) -> Array:
        low, high = _bounds(self.space, raw)
        return jnp.clip(raw, low, high).astype(self.space.sample_dtype)

    def raw_of(self, action: Array) -> Array:
        return action.astype(self.mean.dtype)


class TanhGaussian(Gaussian):
    """Independent normal variables squashed by tanh and scaled to the bounds of the space, which must be finite.

    Densities and entropies are those of tanh(raw) in [-1, 1]: the logarithm of the scale, a constant of the space, is
    left out, so a target entropy of minus the number of entries fits all bounds. `mode` is the median, the squashed
    mean: the mode of the squashed density runs to the border as the standard deviation grows.
    """

    # The entropy is an expectation over one normal variable for each entry. The trapezoidal rule on these nodes has an
    # error below 1e-3 for any mean and any standard deviation up to exp(2).
    _NODES: ClassVar[np.ndarray] = np.linspace(-5.0, 5.0, 48, dtype=np.float32)
    _WEIGHTS: ClassVar[np.ndarray] = np.exp(-0.5 * _NODES**2) / np.sum(np.exp(-0.5 * _NODES**2))
    _MARGIN: ClassVar[float] = 1e-6

    def log_prob(self, raw: Array) -> Array:
        return _sum_over_event(self._raw_log_prob(raw) - _log_tanh_derivative(raw), self.space)

    def entropy(self) -> Array:
        """Return the entropy, by numerical integration: it has no closed form."""
        shape = (*self.mean.shape, self._NODES.size)
        nodes, weights = jnp.broadcast_to(self._NODES, shape), jnp.broadcast_to(self._WEIGHTS, shape)
        raw = self.mean[..., None] + jnp.exp(self.log_std)[..., None] * nodes  # [..., *shape, nodes]
        squashing = jnp.sum(weights * _log_tanh_derivative(raw), axis=-1)
        return _sum_over_event(self._raw_entropy() + squashing, self.space)

    def action(self, raw: Array) -> Array:
        low, high = _bounds(self.space, raw)
        # Half the range at a time: high - low may not be representable. Rounding may step over a bound: clip.
        action = (low / 2.0 + high / 2.0) + (high / 2.0 - low / 2.0) * jnp.tanh(raw)
        return jnp.clip(action, low, high).astype(self.space.sample_dtype)

    def raw_of(self, action: Array) -> Array:
        """Map an action back; one at a bound, which no raw action reaches, as if it were just inside of it."""
        low, high = _bounds(self.space, self.mean)
        share = (action.astype(self.mean.dtype) - (low / 2.0 + high / 2.0)) / (high / 2.0 - low / 2.0)
        return jnp.arctanh(jnp.clip(share, -1.0 + self._MARGIN, 1.0 - self._MARGIN))


class Composite(Distribution):
    """Independent distributions, one for each entry of a `Dict` or `Tuple` space: `parts` has the space's structure."""

    space: Dict | Tuple = pytree_field(static=True)
    parts: PyTreeDict | tuple[Distribution, ...]

    @property
    def batch_shape(self) -> Shape:
        return self._list_of(self.parts)[0].batch_shape

    def sample(self, key: Key) -> Raw:
        parts = self._list_of(self.parts)
        keys = jax.random.split(key, len(parts))
        return _like_space(self.space, [part.sample(part_key) for part, part_key in zip(parts, keys, strict=True)])

    def mode(self) -> Raw:
        return _like_space(self.space, [part.mode() for part in self._list_of(self.parts)])

    def log_prob(self, raw: Raw) -> Array:
        self._check_raw(raw)
        return _total([part.log_prob(part_raw) for part, part_raw in self._with_parts(raw)])

    def entropy(self) -> Array:
        return _total([part.entropy() for part in self._list_of(self.parts)])

    def kl_divergence(self, other: Self) -> Array:
        self._check_same_kind(other)
        return _total([part.kl_divergence(other_part) for part, other_part in self._with_parts(other.parts)])

    def action(self, raw: Raw) -> Any:
        return _like_space(self.space, [part.action(part_raw) for part, part_raw in self._with_parts(raw)])

    def raw_of(self, action: Any) -> Raw:
        return _like_space(self.space, [part.raw_of(part_action) for part, part_action in self._with_parts(action)])

    def _list_of(self, tree: Any) -> list[Any]:
        return [tree[name] for name in _entry_names(self.space)]

    def _with_parts(self, tree: Any) -> list[tuple[Distribution, Any]]:
        return list(zip(self._list_of(self.parts), self._list_of(tree), strict=True))


@dataclass(frozen=True)
class GaussianConfig:
    """How a policy acts in a `Box`.

    `bounds` says how raw samples meet them: "clip" cuts them off, "squash" maps them through tanh. The standard
    deviation is a parameter of its own, or with `state_dependent_std` an output of the network; its logarithm starts
    at that of `initial_std` and is clipped to `min_log_std` and `max_log_std`.
    """

    bounds: str = "clip"
    state_dependent_std: bool = False
    initial_std: float = 1.0
    min_log_std: float = -10.0
    max_log_std: float = 2.0

    def __post_init__(self) -> None:
        if self.bounds not in ("clip", "squash"):
            raise InvalidInputError(f"bounds={self.bounds!r}: choose 'clip' or 'squash'.")
        if self.initial_std <= 0.0 or not self.min_log_std <= math.log(self.initial_std) <= self.max_log_std:
            raise InvalidInputError(
                f"initial_std={self.initial_std} must be positive, and its logarithm between "
                f"min_log_std={self.min_log_std} and max_log_std={self.max_log_std}: move it or the limits."
            )


DEFAULT_GAUSSIAN = GaussianConfig()


@dataclass(frozen=True)
class DistributionFamily:
    """The distributions over one action space, and the parameters that select one of them.

    The network gives `num_outputs` numbers for each observation. The free parameters are trained with it but do not
    depend on the observation; they start at `initial_free_parameters`. `build(outputs, free_parameters, mask)` makes
    the distribution from outputs `[..., num_outputs]`; the mask is the observation's action mask, or None.
    """

    num_outputs: int
    initial_free_parameters: tuple[float, ...]
    build: Callable[[Array, Array, Array | None], Distribution]


def distribution_family(action_space: Space, gaussian: GaussianConfig = DEFAULT_GAUSSIAN) -> DistributionFamily:
    """Choose the distributions for an action space: the one place in the library that looks at its type."""
    match action_space:
        case Discrete():
            return _categorical_family(Categorical, action_space, action_space.n)
        case MultiDiscrete():
            return _categorical_family(MultiCategorical, action_space, int(action_space.nvec.sum()))
        case MultiBinary():
            return _bernoulli_family(action_space)
        case Box():
            return _gaussian_family(action_space, gaussian)
        case Dict() | Tuple() if len(action_space) > 0:
            return _composite_family(action_space, gaussian)
    raise InvalidInputError(f"no distribution for the action space {action_space!r}: expected one that is not empty.")


def _categorical_family(
    kind: type[Categorical] | type[MultiCategorical], space: Any, num_outputs: int
) -> DistributionFamily:
    def build(outputs: Array, free_parameters: Array, mask: Array | None) -> Distribution:
        return kind(space=space, logits=outputs, mask=mask)

    return DistributionFamily(num_outputs, (), build)


def _bernoulli_family(space: MultiBinary) -> DistributionFamily:
    def build(outputs: Array, free_parameters: Array, mask: Array | None) -> Distribution:
        _reject_mask(mask, space)
        return Bernoulli(space=space, logits=outputs.reshape(*outputs.shape[:-1], *space.shape))

    return DistributionFamily(space.size, (), build)


def _gaussian_family(space: Box, config: GaussianConfig) -> DistributionFamily:
    if not np.issubdtype(space.dtype, np.floating):
        raise InvalidInputError(f"the action space {space} holds {space.dtype}: declare it as MultiDiscrete instead.")
    if config.bounds == "squash" and not space.bounded:
        raise InvalidInputError(f"the action space {space} has an infinite bound, which tanh cannot reach: use 'clip'.")
    kind = TanhGaussian if config.bounds == "squash" else DiagonalGaussian
    initial_log_std = math.log(config.initial_std)

    def build(outputs: Array, free_parameters: Array, mask: Array | None) -> Distribution:
        _reject_mask(mask, space)
        mean = outputs[..., : space.size]
        if config.state_dependent_std:
            log_std = outputs[..., space.size :] + initial_log_std
        else:
            log_std = jnp.broadcast_to(free_parameters, mean.shape)
        log_std = jnp.clip(log_std, config.min_log_std, config.max_log_std)
        shape = (*outputs.shape[:-1], *space.shape)
        return kind(space=space, mean=mean.reshape(shape), log_std=log_std.reshape(shape))

    if config.state_dependent_std:
        return DistributionFamily(2 * space.size, (), build)
    return DistributionFamily(space.size, (initial_log_std,) * space.size, build)


def _composite_family(space: Dict | Tuple, gaussian: GaussianConfig) -> DistributionFamily:
    families = [distribution_family(space[name], gaussian) for name in _entry_names(space)]
    output_ends = np.cumsum([family.num_outputs for family in families])
    free_ends = np.cumsum([len(family.initial_free_parameters) for family in families])

    def build(outputs: Array, free_parameters: Array, mask: Array | None) -> Distribution:
        _reject_mask(mask, space)
        parts = [
            family.build(part_outputs, part_free_parameters, None)
            for family, part_outputs, part_free_parameters in zip(
                families,
                jnp.split(outputs, output_ends[:-1], axis=-1),
                jnp.split(free_parameters, free_ends[:-1]),
                strict=True,
            )
        ]
        return Composite(space=space, parts=_like_space(space, parts))

    initial_free_parameters = sum((family.initial_free_parameters for family in families), ())
    return DistributionFamily(int(output_ends[-1]), initial_free_parameters, build)


def _reject_mask(mask: Array | None, space: Space) -> None:
    if mask is not None:
        raise InvalidInputError(
            f"the observation has an action mask, but actions of {space} cannot be masked: only those of Discrete and "
            "MultiDiscrete can. Remove the mask from the observation."
        )


def _check_mask(mask: Array | None, logits: Array, space: Space) -> None:
    if mask is not None and mask.shape != logits.shape:
        raise ShapeError(f"action mask has shape {list(mask.shape)}; expected {list(logits.shape)} for {space}.")


def _all_if_none(allowed: Array) -> Array:
    """Allow everything in the rows that allow nothing."""
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
    """Where each value of each component stands in the flat logits, and whether it exists: `[*shape, max(nvec)]`."""

    position: np.ndarray
    exists: np.ndarray


def _component_layout(space: MultiDiscrete) -> _ComponentLayout:
    num_values = space.nvec.flatten()
    first = np.cumsum(num_values) - num_values
    value = np.arange(num_values.max())
    exists = value < num_values[:, None]
    position = np.where(exists, first[:, None] + value, 0)
    shape = (*space.shape, value.size)
    return _ComponentLayout(position.reshape(shape), exists.reshape(shape))


def _log_tanh_derivative(raw: Array) -> Array:
    """Return log(1 - tanh(raw)^2) without the cancellation of computing it so."""
    return 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))


def _bounds(space: Box, like: Array) -> tuple[Array, Array]:
    """Return the bounds in the shape and dtype of a batch of raw actions."""
    low, high = jnp.asarray(space.low, like.dtype), jnp.asarray(space.high, like.dtype)
    return jnp.broadcast_to(low, like.shape), jnp.broadcast_to(high, like.shape)


def _sum_over_event(values: Array, space: ArraySpace) -> Array:
    """Sum over the trailing axes that belong to one action."""
    return jnp.sum(values, axis=tuple(range(values.ndim - len(space.shape), values.ndim)))


def _total(values: list[Array]) -> Array:
    return functools.reduce(jnp.add, values)


def _entry_names(space: Dict | Tuple) -> list[Any]:
    """Return the indexes of a `Tuple`, or the names of a `Dict`, sorted: their order of declaration does not count."""
    return sorted(space) if isinstance(space, Dict) else list(range(len(space)))


def _like_space(space: Dict | Tuple, values: list[Any]) -> Any:
    """Arrange values, given in the order of `_entry_names`, as an element of the space."""
    return PyTreeDict(zip(_entry_names(space), values, strict=True)) if isinstance(space, Dict) else tuple(values)
