"""Fitness shaping: invalid values, ranks, and weights by rank.

Equal fitness gives equal weights, so the order of the population does not matter.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def without_invalid(fitness: Float[Array, "P *M"]) -> tuple[Float[Array, "P *M"], Bool[Array, " P"]]:
    """Make a NaN or infinite fitness worse than all others; also return which individuals were valid."""
    is_finite = jnp.isfinite(fitness)
    is_valid = is_finite if fitness.ndim == 1 else jnp.all(is_finite, axis=1)
    valid = is_valid.reshape(-1, *(1,) * (fitness.ndim - 1))
    worst = jnp.min(jnp.where(valid, fitness, jnp.inf), axis=0, keepdims=True)
    worse = jnp.where(jnp.isfinite(worst), next_below(worst), 0.0)
    return jnp.where(valid, fitness, worse), is_valid


def next_below(fitness: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return a slightly smaller finite number; the difference is not denormal, since XLA flushes those to 0."""
    numbers = jnp.finfo(fitness.dtype)
    return jnp.maximum(fitness - jnp.maximum(jnp.abs(fitness) * numbers.eps, numbers.tiny), numbers.min)


def centered_ranks(fitness: Float[Array, " P"]) -> Float[Array, " P"]:
    """Return ranks from -0.5 (worst) to 0.5 (best)."""
    first, last = _rank_ranges(fitness)
    ranks = (first + last).astype(fitness.dtype) / 2.0
    return ranks / max(fitness.shape[0] - 1, 1) - (0.5 if fitness.shape[0] > 1 else 0.0)


def standardized(fitness: Float[Array, " P"]) -> Float[Array, " P"]:
    """Center and scale to standard deviation 1; zeros if all values are equal."""
    deviations = fitness - jnp.mean(fitness)
    std = jnp.std(fitness)
    is_spread = jnp.max(fitness) > jnp.min(fitness)  # the mean of equal values may differ from them by rounding
    return jnp.where(is_spread, deviations / jnp.where(std > 0.0, std, 1.0), 0.0)


def weights_by_rank(fitness: Float[Array, " P"], weights: Float[Array, " P"]) -> Float[Array, " P"]:
    """Assign `weights` by rank, the first to the best; individuals with equal fitness share their weights."""
    first, last = _rank_ranges(fitness)
    best_place, worst_place = fitness.shape[0] - 1 - last, fitness.shape[0] - 1 - first
    sums = jnp.concatenate([jnp.zeros(1, weights.dtype), jnp.cumsum(weights)])
    shared = (sums[worst_place + 1] - sums[best_place]) / (worst_place - best_place + 1).astype(weights.dtype)
    return jnp.where(first == last, weights[best_place], shared)


def _rank_ranges(fitness: Float[Array, " P"]) -> tuple[Array, Array]:
    """Return the first and last rank, 0 for the worst, of the individuals with equal fitness."""
    ordered = jnp.sort(fitness)
    return jnp.searchsorted(ordered, fitness, side="left"), jnp.searchsorted(ordered, fitness, side="right") - 1


FITNESS_SHAPINGS: dict[str, Callable[[Array], Array]] = {
    "centered_ranks": centered_ranks,
    "standardized": standardized,
    "raw": lambda fitness: fitness,
}
"""Fitness shapings by name."""
