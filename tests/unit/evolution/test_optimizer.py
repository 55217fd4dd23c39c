"""What all strategies have in common, seen through one that only draws around its start."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError, ShapeError
from rookery.evolution import ECState, EvoOptimizer
from rookery.evolution.optimizer import normal_like
from rookery.types import Array, Key, Params

PARAMS = {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros((2, 3))}


class ShotState(ECState):
    """Where to draw, and the fitness that `update` was given."""

    mean: Params
    seen: Array


class Shots(EvoOptimizer):
    """Draws around its start and remembers the fitness it was given."""

    mirrored: bool = False

    def init(self, params: Params, key: Key) -> ShotState:
        return ShotState(**self.common_fields(params, key), mean=params, seen=jnp.zeros(self.population_size))

    def sample(self, state: Any, key: Key) -> Params:
        return self.individuals(lambda noise: noise, state.mean, key, self.mirrored)

    def update(self, state: Any, fitness: Array, key: Key) -> Any:
        return state.replace(seen=fitness)

    def center(self, state: Any) -> Params:
        return state.mean


@pytest.fixture
def shots() -> Shots:
    return Shots(population_size=4)


def test_a_generation_is_asked_for_and_told(shots: Shots) -> None:
    state = shots.init(PARAMS, jax.random.key(0))
    population, asked = shots.ask(state)
    assert jax.tree.map(jnp.shape, population) == {"kernel": (4, 2, 3), "bias": (4, 2, 3)}
    told = shots.tell(asked, jnp.arange(4.0))
    assert int(told.generation) == 1
    assert told.asked is None
    np.testing.assert_array_equal(told.seen, [0.0, 1.0, 2.0, 3.0])
    assert shots.report(told) == {}


def test_each_generation_each_individual_and_each_leaf_has_its_own_noise(shots: Shots) -> None:
    first, state = shots.ask(shots.init(PARAMS, jax.random.key(0)))
    second, _ = shots.ask(shots.tell(state, jnp.zeros(4)))
    rows = np.concatenate([np.asarray(leaf).reshape(4, -1) for leaf in jax.tree.leaves((first, second))])
    assert len(np.unique(rows)) == rows.size


def test_mirrored_noise_comes_in_opposite_pairs() -> None:
    population, _ = Shots(population_size=6, mirrored=True).ask(
        Shots(population_size=6).init(PARAMS, jax.random.key(0))
    )
    for leaf in jax.tree.leaves(population):
        np.testing.assert_array_equal(leaf[0::2], -leaf[1::2])
        assert len(np.unique(np.abs(leaf))) == leaf.size // 2


def test_the_best_is_kept_until_a_better_one_comes(shots: Shots) -> None:
    first, state = shots.ask(shots.init(PARAMS, jax.random.key(0)))
    state = shots.tell(state, jnp.array([1.0, 7.0, 3.0, 2.0]))
    _, state = shots.ask(state)
    state = shots.tell(state, jnp.array([6.0, 5.0, 4.0, 3.0]))
    assert float(state.best_fitness) == 7.0
    np.testing.assert_array_equal(state.best_params["bias"], first["bias"][1])
    third, state = shots.ask(state)
    state = shots.tell(state, jnp.array([6.0, 5.0, 8.0, 3.0]))
    np.testing.assert_array_equal(state.best_params["bias"], third["bias"][2])


def test_an_invalid_fitness_is_counted_and_neither_seen_nor_the_best(shots: Shots) -> None:
    population, state = shots.ask(shots.init(PARAMS, jax.random.key(0)))
    state = shots.tell(state, jnp.array([jnp.nan, 1.0, jnp.inf, -2.0]))
    assert int(state.num_invalid) == 2
    assert np.isfinite(state.seen).all()
    assert float(state.best_fitness) == 1.0
    np.testing.assert_array_equal(state.best_params["bias"], population["bias"][1])
    _, state = shots.ask(state)
    state = shots.tell(state, jnp.full(4, jnp.nan))
    assert int(state.num_invalid) == 6
    assert float(state.best_fitness) == 1.0


def test_before_any_valid_fitness_the_best_are_the_first_params(shots: Shots) -> None:
    _, state = shots.ask(shots.init(PARAMS, jax.random.key(0)))
    state = shots.tell(state, jnp.full(4, jnp.nan))
    assert float(state.best_fitness) == -jnp.inf
    np.testing.assert_array_equal(state.best_params["bias"], PARAMS["bias"])


def test_a_weighted_sum_runs_over_the_individuals(shots: Shots) -> None:
    population = {"bias": jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])}
    total = shots.weighted_sum(jnp.array([1.0, 0.0, 2.0, -1.0]), population)
    np.testing.assert_array_equal(total["bias"], [4.0, 6.0])
    np.testing.assert_array_equal(shots.individual(population, jnp.int32(2))["bias"], [5.0, 6.0])


def test_normal_noise_is_standard() -> None:
    noise = normal_like({"a": jnp.zeros(20_000), "b": jnp.zeros(20_000)}, jax.random.key(0))
    drawn = np.stack(jax.tree.leaves(noise))
    np.testing.assert_allclose([drawn.mean(), drawn.std(), np.corrcoef(drawn)[0, 1]], [0.0, 1.0, 0.0], atol=0.03)


def test_a_legacy_key_is_accepted(shots: Shots) -> None:
    legacy, _ = shots.ask(shots.init(PARAMS, jax.random.PRNGKey(3)))
    typed, _ = shots.ask(shots.init(PARAMS, jax.random.key(3)))
    np.testing.assert_array_equal(legacy["bias"], typed["bias"])


def test_telling_without_asking_is_an_error(shots: Shots) -> None:
    with pytest.raises(InvalidInputError, match="needs the state that ask returned"):
        shots.tell(shots.init(PARAMS, jax.random.key(0)), jnp.zeros(4))


@pytest.mark.parametrize(("shape", "given"), [((3,), r"\[3\]"), ((4, 1), r"\[4, 1\]")])
def test_a_fitness_of_the_wrong_shape_is_an_error(shots: Shots, shape: tuple, given: str) -> None:
    _, state = shots.ask(shots.init(PARAMS, jax.random.key(0)))
    with pytest.raises(ShapeError, match=rf"fitness is {given}; expected \[4\], one value for each individual"):
        shots.tell(state, jnp.zeros(shape))


def test_a_population_has_somebody_in_it() -> None:
    with pytest.raises(InvalidInputError, match="population_size=0 must be an integer of at least 1"):
        Shots(population_size=0)
