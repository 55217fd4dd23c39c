"""The choice of a distribution for an action space, and its construction from network outputs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from rookery.configuration import check_settings, setting
from rookery.errors import InvalidInputError
from rookery.networks.distributions.composite import Composite, entry_names, like_space
from rookery.networks.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from rookery.networks.distributions.distribution import Distribution
from rookery.networks.distributions.gaussian import DiagonalGaussian, TanhGaussian
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from rookery.types import Array


@dataclass(frozen=True)
class GaussianConfig:
    """How a policy acts in a `Box`."""

    bounds: str = setting(
        "clip", choices=("clip", "squash"), help="clip: cut samples off at the bounds; squash: map them through tanh"
    )
    state_dependent_std: bool = setting(
        False, help="true: the network outputs the standard deviation; false: it is a parameter of its own"
    )
    initial_std: float = setting(1.0, help="first standard deviation")
    min_log_std: float = setting(-10.0, help="lower limit of the logarithm of the standard deviation")
    max_log_std: float = setting(2.0, help="upper limit of the logarithm")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.initial_std <= 0.0 or not self.min_log_std <= math.log(self.initial_std) <= self.max_log_std:
            raise InvalidInputError(
                f"initial_std={self.initial_std} must be positive, and its logarithm between "
                f"min_log_std={self.min_log_std} and max_log_std={self.max_log_std}: move it or the limits."
            )


DEFAULT_GAUSSIAN = GaussianConfig()


@dataclass(frozen=True)
class DistributionFamily:
    """The parametrized distributions over one action space.

    The network has `num_outputs` outputs. The free parameters are trained but do not depend on the observation; they
    start at `initial_free_parameters`. `build(outputs, free_parameters, mask)` makes the distribution from outputs
    `[..., num_outputs]`; `mask` is the action mask of the observation, or None.
    """

    num_outputs: int
    initial_free_parameters: tuple[float, ...]
    build: Callable[[Array, Array, Array | None], Distribution]


def distribution_family(action_space: Space, gaussian: GaussianConfig = DEFAULT_GAUSSIAN) -> DistributionFamily:
    """Choose the distributions for an action space."""
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
    raise InvalidInputError(
        f"no distribution for the action space {action_space!r}: expected a space that is not empty."
    )


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
        raise InvalidInputError(
            f"the action space {space} has dtype {space.dtype}: declare it as MultiDiscrete instead."
        )
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
    families = [distribution_family(space[name], gaussian) for name in entry_names(space)]
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
        return Composite(space=space, parts=like_space(space, parts))

    initial_free_parameters = sum((family.initial_free_parameters for family in families), ())
    return DistributionFamily(int(output_ends[-1]), initial_free_parameters, build)


def _reject_mask(mask: Array | None, space: Space) -> None:
    if mask is not None:
        raise InvalidInputError(
            f"the observation has an action mask, but actions of {space} cannot be masked: only those of Discrete and "
            "MultiDiscrete can. Remove the mask from the observation."
        )
