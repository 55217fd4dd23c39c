"""Selection of parents: functions that return indexes, and `take`, which returns the individuals.

Individuals with a NaN or infinite fitness rank below all others.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rookery.errors import InvalidInputError
from rookery.evolution.fitness import weights_by_rank
from rookery.types import Key, Params, index_tree


def take(population: Params, indexes: Int[Array, " N"]) -> Params:
    """Return the individuals with these indexes."""
    return index_tree(population, indexes)


def tournament(
    fitness: Float[Array, " P"], key: Key, num_selected: int, tournament_size: int = 2
) -> Int[Array, " num_selected"]:
    """Select each parent by a tournament: the fittest of `tournament_size` individuals sampled with replacement."""
    fitness = _with_invalid_last(fitness)
    entrants = jax.random.randint(key, (num_selected, tournament_size), 0, fitness.shape[0])
    winners = jnp.argmax(fitness[entrants], axis=1)
    return entrants[jnp.arange(num_selected), winners]


def elites(fitness: Float[Array, " P"], num_selected: int) -> Int[Array, " num_selected"]:
    """Select the fittest, best first; ties go to the earlier."""
    if num_selected > fitness.shape[0]:
        raise InvalidInputError(f"num_selected={num_selected}: the population has only {fitness.shape[0]} individuals.")
    fitness = _with_invalid_last(fitness)
    return jnp.argsort(-fitness)[:num_selected].astype(jnp.int32)


def truncation(
    fitness: Float[Array, " P"], key: Key, num_selected: int, num_parents: int
) -> Int[Array, " num_selected"]:
    """Select each parent uniformly from the `num_parents` fittest."""
    places = jax.random.randint(key, (num_selected,), 0, num_parents)
    return elites(fitness, num_parents)[places]


def rank_proportional(
    fitness: Float[Array, " P"], key: Key, num_selected: int, pressure: float | Array = 2.0
) -> Int[Array, " num_selected"]:
    """Select each parent with a probability linear in its rank (Baker, 1985); ties have equal probabilities.

    The best is selected `pressure` times as often as the average, the worst `2 - pressure` times: 1 selects uniformly,
    2 never selects the worst.
    """
    fitness = _with_invalid_last(fitness)
    num_individuals = fitness.shape[0]
    shares = pressure + (2.0 - 2.0 * pressure) * jnp.linspace(0.0, 1.0, num_individuals, dtype=fitness.dtype)
    probabilities = weights_by_rank(fitness, shares / num_individuals)
    return jax.random.choice(key, num_individuals, (num_selected,), p=probabilities).astype(jnp.int32)


def _with_invalid_last(fitness: Float[Array, " P"]) -> Float[Array, " P"]:
    return jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)
