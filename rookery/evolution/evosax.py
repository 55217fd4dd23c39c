"""The strategies of evosax (Lange, 2022) as `EvoOptimizer`s.

evosax minimizes flat vectors, starts most strategies with a standard deviation of 1, and changes its state in `ask`. So
a strategy works on z, where an individual is `params + initial_std * z` for the initial params; its cost is the
negative fitness; and `update` calls evosax's `tell` and then `ask` for the next population.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from evosax.algorithms import algorithms, population_based_algorithms
from jax.flatten_util import ravel_pytree

from rookery.compilation import relaxed_promotion
from rookery.errors import InvalidInputError, check_count, unknown_name
from rookery.evolution.fitness import next_below
from rookery.evolution.optimizer import ECState, EvoOptimizer
from rookery.types import Array, Key, Params, PyTree, PyTreeData, Tree, as_mappable_key, pytree_field

NEEDS_MORE_ARGUMENTS = {"RandomSearch", "SV_CMA_ES", "SV_Open_ES"}
"""Strategies that need more than a population size and a number of parameters."""

STRATEGIES = sorted(algorithms.keys() - NEEDS_MORE_ARGUMENTS)
"""The supported strategies."""

MAX_MATRIX_SIZE = 2_000
"""The most parameters for strategies with a full covariance matrix: a larger one takes seconds to decompose."""


class EvosaxHyperparameters(PyTreeData):
    """Hyper-parameters of the adapter; those of a strategy are its `params`."""

    initial_std: Any = 1.0


class EvosaxState(ECState):
    """The state of the strategy and its current population `z`, `[P, D]`.

    `is_started` tells whether a population-based strategy has received its first fitness; `worst_fitness` is the lowest
    valid fitness so far.
    """

    origin: Array
    initial_std: Array
    z: Array
    strategy_state: PyTree
    is_started: Array
    worst_fitness: Array


class EvosaxOptimizer(EvoOptimizer):
    """A strategy of evosax; `params` override its default parameters by name.

    Distribution-based strategies start at the initial params with their own spread, population-based ones with a
    Gaussian cloud around them.
    """

    strategy: str = pytree_field(static=True)
    params: tuple[tuple[str, float], ...] = pytree_field(static=True, default=())
    hyperparameters: Any = pytree_field(default_factory=EvosaxHyperparameters)

    def __post_init__(self) -> None:
        check_count("population_size", self.population_size)
        if self.strategy in NEEDS_MORE_ARGUMENTS:
            raise InvalidInputError(
                f"strategy={self.strategy!r} needs arguments that this adapter does not have: choose another strategy."
            )
        if self.strategy not in STRATEGIES:
            raise unknown_name("strategy", self.strategy, STRATEGIES, "They are the names of evosax.algorithms.")
        self._strategy_params(num_dims=2)

    def init(self, params: Params, key: Key) -> EvosaxState:
        state_key, init_key, cloud_key, ask_key = jax.random.split(as_mappable_key(key), 4)
        common = self.common_fields(params, state_key)
        origin = ravel_pytree(params)[0]
        algorithm, strategy_params = self._algorithm(origin.size), self._strategy_params(origin.size)
        if self.has_population:
            z = jax.random.normal(cloud_key, (self.population_size, origin.size))
            start: tuple[Array, ...] = (z, jnp.zeros(self.population_size))
        else:
            start = (jnp.zeros_like(origin),)
        with relaxed_promotion():
            self._check_matrices(jax.eval_shape(algorithm.init, init_key, *start, strategy_params), origin.size)
            strategy_state = algorithm.init(init_key, *start, strategy_params)
            if not self.has_population:
                z, strategy_state = algorithm.ask(ask_key, strategy_state, strategy_params)
        return EvosaxState(
            **common,
            origin=origin,
            initial_std=jnp.asarray(common["hyperparameters"].initial_std),
            z=z,
            strategy_state=with_strong_types(strategy_state),
            is_started=jnp.asarray(not self.has_population),
            worst_fitness=jnp.float32(jnp.inf),
        )

    def sample(self, state: EvosaxState, key: Key) -> Params:
        return jax.vmap(lambda z: self._individual(state, z))(self.share(state.z))

    def put(self, state: EvosaxState, individuals: Params, places: Array) -> EvosaxState:
        if not self.has_population:
            self._check_has_asked(state)
        everyone, places = self.gathered((individuals, places))
        own = jax.vmap(lambda individual: (ravel_pytree(individual)[0] - state.origin) / state.initial_std)(everyone)
        z = state.z.at[places].set(own)
        asked = None if state.asked is None else self.with_places(state.asked, everyone, places)
        return state.replace(z=z, asked=asked)

    def update(self, state: EvosaxState, fitness: Array, key: Key) -> EvosaxState:
        tell_key, ask_key = jax.random.split(key)
        costs, worst_fitness = self._costs(state, fitness)
        algorithm, strategy_params = self._algorithm(state.origin.size), self._strategy_params(state.origin.size)

        def start() -> PyTree:
            return with_strong_types(algorithm.init(tell_key, state.z, costs, strategy_params))

        def learn() -> PyTree:
            return with_strong_types(algorithm.tell(tell_key, state.z, costs, state.strategy_state, strategy_params)[0])

        with relaxed_promotion():
            updated = jax.lax.cond(state.is_started, learn, start) if self.has_population else learn()
            z, strategy_state = algorithm.ask(ask_key, updated, strategy_params)
        return state.replace(
            z=z,
            strategy_state=with_strong_types(strategy_state),
            is_started=jnp.asarray(True),
            worst_fitness=worst_fitness,
        )

    def center(self, state: EvosaxState) -> Params:
        if self.has_population:
            return state.best_params
        return self._individual(state, state.strategy_state.mean)

    def report(self, state: EvosaxState) -> dict[str, Array]:
        return {"step_size": state.initial_std * jnp.mean(jnp.std(state.z, axis=0))}

    @property
    def has_population(self) -> bool:  # type: ignore[override]
        return self.strategy in population_based_algorithms

    def _algorithm(self, num_dims: int) -> Any:
        return _algorithm(self.strategy, self.population_size, num_dims, jax.sharding.get_abstract_mesh())

    def _strategy_params(self, num_dims: int) -> PyTree:
        """Return the parameters of the strategy: its defaults with the overrides."""
        with relaxed_promotion(), jax.ensure_compile_time_eval():
            defaults = self._algorithm(num_dims).default_params
            numbers = {name: value for name, value in vars(defaults).items() if jnp.ndim(value) == 0}
        for name, _ in self.params:
            if name not in numbers:
                raise unknown_name(f"parameter of {self.strategy}", name, numbers)
        return defaults.replace(
            **{name: jnp.asarray(value, jnp.result_type(numbers[name])) for name, value in self.params}
        )

    def _costs(self, state: EvosaxState, fitness: Array) -> tuple[Array, Array]:
        """Return the costs for evosax and the lowest valid fitness so far.

        Strategies compare individuals across generations: an invalid one must be worse than all earlier ones.
        """
        lowest = jnp.min(jnp.where(state.is_valid, fitness, jnp.inf))
        worst_fitness = jnp.minimum(state.worst_fitness, lowest)
        return -jnp.where(state.is_valid, fitness, next_below(worst_fitness)), worst_fitness

    def _individual(self, state: EvosaxState, z: Array) -> Params:
        unravel = ravel_pytree(state.best_params)[1]
        return unravel(state.origin + state.initial_std * z)

    def _check_matrices(self, strategy_state: PyTree, num_dims: int) -> None:
        has_matrix = any(leaf.shape == (num_dims, num_dims) for leaf in jax.tree.leaves(strategy_state))
        if has_matrix and num_dims > MAX_MATRIX_SIZE:
            raise InvalidInputError(
                f"{self.strategy} has a full covariance matrix: {num_dims} parameters are too many, the limit is "
                f"{MAX_MATRIX_SIZE}. Use a smaller network, or a method with a diagonal covariance like sep_cma_es."
            )


@functools.cache
def _algorithm(strategy: str, population_size: int, num_dims: int, mesh: jax.sharding.AbstractMesh) -> Any:
    """Build a strategy of evosax once for all traces on a mesh: it compiles its methods per instance.

    The instance has constants that belong to the mesh on which they were traced.
    """
    try:
        with relaxed_promotion(), jax.ensure_compile_time_eval():
            return algorithms[strategy](population_size, jnp.zeros(num_dims))
    except AssertionError as error:
        raise InvalidInputError(f"population_size={population_size} does not fit {strategy}: {error}") from error


def with_strong_types(tree: Tree) -> Tree:
    """Convert numbers to arrays without weak types, which a state must not have."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.result_type(leaf)), tree)
