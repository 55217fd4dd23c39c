"""Recipes: some individuals, made from the mean and the deviation alone, are those of the whole population."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.evolution.ars import ARS
from rookery.algorithms.evolution.ga import GA
from rookery.algorithms.evolution.open_es import OpenES
from rookery.algorithms.evolution.sep_cem import SepCEM
from rookery.algorithms.evolution.sep_cma_es import SepCMAES
from rookery.algorithms.evolution.snes import SNES
from rookery.algorithms.evolution.vanilla_es import VanillaES

POPULATION_SIZE = 6
PARAMS = {"kernel": jnp.linspace(-1.0, 1.0, 33).reshape(3, 11), "scale": jnp.float32(0.7)}


@pytest.mark.usefixtures("optimized_programs")
@pytest.mark.parametrize("kind", [OpenES, VanillaES, ARS, SNES, SepCEM, SepCMAES])
def test_some_individuals_are_those_of_the_population_to_the_bit(kind: Any) -> None:
    optimizer = kind(population_size=POPULATION_SIZE)
    state = optimizer.init(PARAMS, jax.random.key(3))
    population, _ = jax.jit(optimizer.ask)(state)
    recipe, key = jax.tree.map(np.asarray, optimizer.recipe(state)), optimizer.sample_key(state)
    sample_some = jax.jit(optimizer.sample_some, static_argnums=3)
    for count in (1, 3):
        for first in (0, 1, POPULATION_SIZE - 1):
            some = sample_some(recipe, key, np.int32(first), count)
            num_there = min(count, POPULATION_SIZE - first)
            for leaf, expected in zip(jax.tree.leaves(some), jax.tree.leaves(population), strict=True):
                assert leaf.shape == (count, *expected.shape[1:])
                np.testing.assert_array_equal(leaf[:num_there], expected[first : first + num_there])


def test_a_strategy_that_breeds_has_no_recipe() -> None:
    optimizer = GA(population_size=4)
    state = optimizer.init(PARAMS, jax.random.key(0))
    assert optimizer.recipe(state) is None
    with pytest.raises(NotImplementedError, match="GA has no recipe"):
        optimizer.sample_some(None, state.key, jnp.int32(0), 1)


class ShiftedES(OpenES):
    """Samples in its own way."""

    def sample(self, state: Any, key: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + 100.0, super().sample(state, key))


def test_a_strategy_that_samples_in_its_own_way_has_no_recipe() -> None:
    optimizer = ShiftedES(population_size=4)
    assert optimizer.recipe(optimizer.init(PARAMS, jax.random.key(0))) is None
