"""What every strategy promises, and what it reaches beside its counterpart in evosax."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from evosax import algorithms as evosax

from rookery.algorithms.evolution.ars import ARS, ARSHyperparameters
from rookery.algorithms.evolution.cso import CSO, CSOHyperparameters
from rookery.algorithms.evolution.ga import GA
from rookery.algorithms.evolution.open_es import OpenES, OpenESHyperparameters
from rookery.algorithms.evolution.sep_cem import SepCEM, SepCEMHyperparameters
from rookery.algorithms.evolution.sep_cma_es import SepCMAES, SepCMAESHyperparameters
from rookery.algorithms.evolution.snes import SNES, SNESHyperparameters
from rookery.algorithms.evolution.vanilla_es import VanillaES, VanillaESHyperparameters
from rookery.evolution import EvoOptimizer
from rookery.evolution.evosax import EvosaxOptimizer

OPTIMIZERS: dict[str, Callable[..., EvoOptimizer]] = {
    "openes": OpenES,
    "vanilla_es": VanillaES,
    "ars": ARS,
    "sepcem": SepCEM,
    "snes": SNES,
    "sep_cma_es": SepCMAES,
    "cso": CSO,
    "ga": GA,
    "cmaes": partial(EvosaxOptimizer, strategy="CMA_ES"),
    "pso": partial(EvosaxOptimizer, strategy="PSO"),
}
WEIGH_BY_RANK = ["openes", "vanilla_es", "ars", "sepcem", "snes", "sep_cma_es"]
"""Those that see individuals by rank or fitness alone; in the others they have places, or meet by lot."""
WEIGHTS_ADD_UP_TO_ZERO = ["openes", "ars", "snes"]

PARAMS = {"kernel": jnp.full((2, 3), 0.5), "bias": jnp.array([1.0, -1.0])}
# Adam of optax and all of evosax are not written for strict promotion; the strategies themselves are.
pytestmark = pytest.mark.third_party


def fitness_of(population: Any) -> Any:
    return -jnp.sum(population["kernel"] ** 2, axis=(1, 2)) - jnp.sum((population["bias"] - 3.0) ** 2, axis=1)


def generations(optimizer: EvoOptimizer, state: Any, num_generations: int, fitness_fn: Any = fitness_of) -> Any:
    def generation(state: Any, _: None) -> tuple[Any, None]:
        population, state = optimizer.ask(state)
        return optimizer.tell(state, fitness_fn(population)), None

    return jax.lax.scan(generation, state, None, length=num_generations)[0]


def types_of(state: Any) -> list[Any]:
    return [(path, leaf.shape, leaf.dtype) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]


def numbers_of(state: Any) -> list[Any]:
    """The leaves that are not random keys."""
    return [leaf for leaf in jax.tree.leaves(state) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]


def five_generations(optimizer: EvoOptimizer, state: Any, added_fitness: Any) -> Any:
    return generations(optimizer, state, 5, lambda population: fitness_of(population) + added_fitness)


@cache
def started(name: str) -> tuple[EvoOptimizer, Any, Callable[[Any, Any], Any]]:
    """A strategy, its first state, and a program of five generations; what is added to the fitness may be invalid."""
    optimizer = OPTIMIZERS[name](population_size=8)
    state = jax.jit(optimizer.init)(PARAMS, jax.random.key(0))
    return optimizer, state, jax.jit(partial(five_generations, optimizer))


NOTHING_ADDED = np.zeros(8, np.float32)


@cache
def outlook(name: str) -> Callable[[Any], tuple[Any, Any, Any]]:
    """A program for what a state says: the next population, the center, and the report."""
    optimizer, _, _ = started(name)
    return jax.jit(lambda state: (optimizer.ask(state)[0], optimizer.center(state), optimizer.report(state)))


def assert_finite(name: str, state: Any) -> None:
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(outlook(name)(state)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_generations_improve_the_center_and_keep_the_structure_of_the_state(name: str) -> None:
    _, state, program = started(name)
    after = state
    for _ in range(8):
        after = program(after, NOTHING_ADDED)
        assert types_of(after) == types_of(state)
    assert int(after.generation) == 40

    def fitness_of_one(params: Any) -> float:
        return float(fitness_of(jax.tree.map(lambda leaf: leaf[None], params))[0])

    _, center, _ = outlook(name)(after)
    assert fitness_of_one(center) > fitness_of_one(PARAMS)
    np.testing.assert_allclose(after.best_fitness, fitness_of_one(after.best_params), rtol=1e-5)
    assert_finite(name, after)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_side_by_side_evolve_as_each_does_alone(name: str) -> None:
    optimizer, state, program = started(name)
    other = state.replace(key=jax.random.key(1))
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), other, state)
    together = jax.jit(jax.vmap(partial(five_generations, optimizer), in_axes=(0, None)))(both, NOTHING_ADDED)
    alone = program(state, NOTHING_ADDED)
    for left, right in zip(numbers_of(together), numbers_of(alone), strict=True):
        np.testing.assert_allclose(left[1], right, rtol=1e-3, atol=1e-4)  # CMA-ES decomposes a matrix


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_invalid_fitness_never_wins_never_spreads_and_is_counted(name: str) -> None:
    _, state, program = started(name)
    state = program(state, np.array([np.nan, 0.0, 0.0, np.inf, 0.0, -np.inf, 0.0, 0.0], np.float32))
    assert int(state.num_invalid) == 15
    assert np.isfinite(state.best_fitness)
    assert_finite(name, state)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_populations_without_any_valid_fitness_are_survived(name: str) -> None:
    _, state, program = started(name)
    state = program(state, np.full(8, np.nan, np.float32))
    assert int(state.num_invalid) == 40
    assert float(state.best_fitness) == -jnp.inf
    jax.tree.map(np.testing.assert_array_equal, state.best_params, PARAMS)
    assert_finite(name, state)


@pytest.mark.parametrize("name", WEIGH_BY_RANK)
def test_the_order_of_the_population_makes_no_difference(name: str) -> None:
    optimizer, state, _ = started(name)
    population, state = jax.jit(optimizer.ask)(state)
    fitness = np.array([3.0, 1.0, 2.0, 2.0, 7.0, 2.0, 0.0, 5.0], np.float32)
    order = np.array([6, 7, 0, 1, 4, 5, 2, 3]) if name == "ars" else np.array([5, 2, 7, 0, 4, 1, 6, 3])
    permuted = state.replace(asked=jax.tree.map(lambda leaf: np.asarray(leaf)[order], population))
    tell = jax.jit(optimizer.tell)
    expected, found = tell(state, fitness), tell(permuted, fitness[order])
    for left, right in zip(numbers_of(expected), numbers_of(found), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", WEIGHTS_ADD_UP_TO_ZERO)
def test_a_population_of_equals_moves_nothing(name: str) -> None:
    optimizer, state, _ = started(name)
    told = jax.jit(lambda state: optimizer.tell(optimizer.ask(state)[1], jnp.full(8, 4.0)))(state)
    (_, _, before), (_, center, after) = outlook(name)(state), outlook(name)(told)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), center, PARAMS)
    np.testing.assert_allclose(after["step_size"], before["step_size"], rtol=1e-6)


PROGRAM = """
import sys
from functools import partial

import jax

jax.config.update("jax_num_cpu_devices", 4)
import numpy as np
from jax.sharding import PartitionSpec

from tests.contracts.test_evo_optimizers import OPTIMIZERS, PARAMS, generations, numbers_of

mesh = jax.make_mesh((4,), ("dp",))
for name, make in OPTIMIZERS.items():
    one, split = make(population_size=16), make(population_size=16, axis_name="dp")
    state = jax.jit(one.init)(PARAMS, jax.random.key(0))
    four = jax.shard_map(
        partial(generations, split, num_generations=3),
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    expected = jax.jit(partial(generations, one, num_generations=3))(state)
    for left, right in zip(numbers_of(expected), numbers_of(jax.jit(four)(state)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5, err_msg=name)
    print(name)
"""


def test_a_population_over_four_devices_evolves_as_on_one() -> None:
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == list(OPTIMIZERS)


# What the strategies reach. Costs are those of the best individual so far, the median of several seeds.

POPULATION_SIZE, NUM_SEEDS = 32, 7
NUM_GENERATIONS = {2: 100, 10: 200, 100: 100}


def sphere(x: Any) -> Any:
    return jnp.sum(x**2, axis=-1)


def rosenbrock(x: Any) -> Any:
    return jnp.sum(100.0 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1.0 - x[..., :-1]) ** 2, axis=-1)


def rastrigin(x: Any) -> Any:
    return jnp.sum(x**2 - 10.0 * jnp.cos(2.0 * jnp.pi * x) + 10.0, axis=-1)


FUNCTIONS = (sphere, rosenbrock, rastrigin)
STARTS = jnp.array([2.0, -1.0, 2.0])

COUNTERPARTS: dict[str, tuple[EvoOptimizer, Callable[[int], Any], dict[str, float]]] = {
    "openes": (
        OpenES(
            population_size=POPULATION_SIZE,
            hyperparameters=OpenESHyperparameters(learning_rate=0.05, noise_std=0.1),
        ),
        lambda num_dims: evosax.Open_ES(
            POPULATION_SIZE,
            jnp.zeros(num_dims),
            optimizer=optax.adam(0.05),
            std_schedule=optax.constant_schedule(0.1),
        ),
        {},
    ),
    "vanilla_es": (
        VanillaES(
            population_size=POPULATION_SIZE,
            hyperparameters=VanillaESHyperparameters(noise_std=0.1, elite_fraction=0.5),
        ),
        lambda num_dims: evosax.SimpleES(POPULATION_SIZE, jnp.zeros(num_dims)),
        {"std_init": 0.1, "c_std": 0.0},
    ),
    "ars": (
        ARS(
            population_size=POPULATION_SIZE,
            hyperparameters=ARSHyperparameters(learning_rate=0.05, noise_std=0.1, elite_fraction=0.5),
        ),
        lambda num_dims: evosax.ARS(
            POPULATION_SIZE,
            jnp.zeros(num_dims),
            optimizer=optax.sgd(0.05),
            std_schedule=optax.constant_schedule(0.1),
        ),
        {},
    ),
    # evosax has no cross-entropy method; this one of its strategies, with c_std=1, is one without extra noise.
    "sepcem": (
        SepCEM(
            population_size=POPULATION_SIZE,
            hyperparameters=SepCEMHyperparameters(initial_std=1.0, elite_fraction=0.5),
        ),
        lambda num_dims: evosax.SimpleES(POPULATION_SIZE, jnp.zeros(num_dims)),
        {"c_std": 1.0},
    ),
    "snes": (
        SNES(population_size=POPULATION_SIZE, hyperparameters=SNESHyperparameters(initial_std=1.0)),
        lambda num_dims: evosax.SNES(POPULATION_SIZE, jnp.zeros(num_dims)),
        {},
    ),
    "sep_cma_es": (
        SepCMAES(population_size=POPULATION_SIZE, hyperparameters=SepCMAESHyperparameters(initial_std=1.0)),
        lambda num_dims: evosax.Sep_CMA_ES(POPULATION_SIZE, jnp.zeros(num_dims)),
        {},
    ),
    # evosax has no competitive swarm: beside the ordinary one.
    "cso": (
        CSO(population_size=POPULATION_SIZE, hyperparameters=CSOHyperparameters(initial_std=1.0)),
        lambda num_dims: evosax.PSO(POPULATION_SIZE, jnp.zeros(num_dims)),
        {},
    ),
}
RATES_DEPEND_ON_DIMENSIONS = ["snes", "sep_cma_es"]
"""Those that are compared at 2 dimensions too."""


def cost_of(function: Any, x: Any) -> Any:
    return jax.lax.switch(function, FUNCTIONS, x)


def our_best(optimizer: EvoOptimizer, num_dims: int, function: Any, key: Any) -> Any:
    state = optimizer.init(jnp.full(num_dims, STARTS[function]), key)
    state = generations(optimizer, state, NUM_GENERATIONS[num_dims], lambda x: -cost_of(function, x))
    return -state.best_fitness


def their_best(make: Any, overrides: dict[str, float], num_dims: int, function: Any, key: Any) -> Any:
    algorithm = make(num_dims)
    params = algorithm.default_params.replace(**overrides)
    start = jnp.full(num_dims, STARTS[function])
    init_key, cloud_key, run_key = jax.random.split(key, 3)
    if isinstance(algorithm, evosax.PSO):
        cloud = start + jax.random.normal(cloud_key, (POPULATION_SIZE, num_dims))
        state = algorithm.init(init_key, cloud, cost_of(function, cloud), params)
    else:
        state = algorithm.init(init_key, start, params)

    def generation(state: Any, key: Any) -> tuple[Any, None]:
        ask_key, tell_key = jax.random.split(key)
        population, state = algorithm.ask(ask_key, state, params)
        return algorithm.tell(tell_key, population, cost_of(function, population), state, params)[0], None

    state, _ = jax.lax.scan(generation, state, jax.random.split(run_key, NUM_GENERATIONS[num_dims]))
    return state.best_fitness


def median_costs(best_fn: Callable[[Any, Any], Any]) -> np.ndarray:
    """Run all seeds of all functions at once."""
    keys = jax.random.split(jax.random.key(0), NUM_SEEDS)
    over_seeds = jax.vmap(best_fn, in_axes=(None, 0))
    return np.median(jax.jit(jax.vmap(over_seeds, in_axes=(0, None)))(jnp.arange(len(FUNCTIONS)), keys), axis=1)


@pytest.mark.parametrize(
    ("name", "num_dims"),
    [(name, num_dims) for name in COUNTERPARTS for num_dims in (10, 100)]
    + [(name, 2) for name in RATES_DEPEND_ON_DIMENSIONS],
)
def test_a_strategy_reaches_what_its_counterpart_in_evosax_reaches(name: str, num_dims: int) -> None:
    optimizer, make, overrides = COUNTERPARTS[name]
    ours = median_costs(partial(our_best, optimizer, num_dims))
    theirs = median_costs(partial(their_best, make, overrides, num_dims))
    # Medians of a few seeds are rough at 2 dimensions, where whole runs end in one minimum or another. Below 1e-3 the
    # sphere counts as solved: with a fixed noise, or an extra one, the rest is chance.
    margin = np.array([1.5, 1.5, 2.0]) if num_dims > 2 else np.array([3.0, 3.0, 3.0])
    allowed = np.maximum(margin * theirs, [1e-3, 1e-2, 1e-2])
    assert (ours <= allowed).all(), f"{name} at {num_dims}: {ours} beside {theirs}"


def test_cma_es_by_evosax_solves_what_no_diagonal_strategy_can() -> None:
    optimizer = EvosaxOptimizer(strategy="CMA_ES", population_size=POPULATION_SIZE)
    costs = median_costs(partial(our_best, optimizer, 10))
    assert costs[0] < 1e-6
    assert costs[1] < 2.0
