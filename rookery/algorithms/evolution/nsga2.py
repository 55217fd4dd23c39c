"""NSGA-II: a genetic algorithm for several objectives that spreads along the Pareto front (Deb et al., 2002).

Departures from the paper: individuals have no bounds, so `mutation_span` limits the change of a gene by a mutation, and
crossover ignores bounds. Parents keep the fitness of their first evaluation.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.configuration import setting
from rookery.errors import InvalidInputError
from rookery.evolution import ECState
from rookery.evolution.crossover import recombine, simulated_binary, uniform
from rookery.evolution.mutation import cloud_around, polynomial
from rookery.evolution.pareto import crowding_distance, non_dominated_ranks, pareto_front
from rookery.evolution.populations import PopulationOptimizer
from rookery.evolution.selection import take, tournament
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, as_mappable_key, index_tree, pytree_field
from rookery.workflows.evolution.workflow import ECWorkflow

CROSSOVERS = ("sbx", "uniform")


class NSGA2Hyperparameters(Hyperparameters):
    """The hyper-parameters of NSGA-II."""

    initial_std: Scalar = number(
        0.5, low=0.0, schedule=False, help="standard deviation of the first population around the initial network"
    )
    crossover_probability: Scalar = number(0.9, low=0.0, high=1.0, help="of each pair of parents")
    crossover_eta: Scalar = number(20.0, low=0.0, help="sbx: the larger, the closer children stay to their parents")
    mutation_probability: Scalar = number(0.1, low=0.0, high=1.0, help="of each parameter of a child")
    mutation_eta: Scalar = number(20.0, low=0.0, help="the larger, the smaller most mutations are")
    mutation_span: Scalar = number(1.0, low=0.0, help="largest change of a parameter by a mutation")


class NSGA2State(ECState):
    """The parents `[P, ...]` ordered by rank and crowding, their fitness `[P, M]`, and their children.

    Parents without a valid fitness have minus infinity; so have all parents before the first evaluation.
    """

    population: Params
    fitness: Array
    offspring: Params


class NSGA2(PopulationOptimizer):
    """Keeps the best of parents and children, front by front, and the least crowded of the last front."""

    next_population = "offspring"
    hyperparameters: NSGA2Hyperparameters = pytree_field(default_factory=NSGA2Hyperparameters)
    objectives: tuple[str, ...] = setting(
        ("sum:reward", "last:obs.0"), help="measures of an episode to maximize: sum, mean or last"
    )
    crossover: str = setting("sbx", choices=CROSSOVERS, help="sbx: simulated binary; uniform: exchange parameters")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.objectives) < 2:
            raise InvalidInputError(f"objectives={list(self.objectives)}: expected at least two.")

    def init(self, params: Params, key: Key) -> NSGA2State:
        state_key, cloud_key = jax.random.split(as_mappable_key(key))
        common = self.common_fields(params, state_key)
        initial_std = common["hyperparameters"].initial_std
        population = cloud_around(params, cloud_key, self.population_size, initial_std)
        fitness = jnp.full((self.population_size, len(self.objectives)), -jnp.inf)
        return NSGA2State(**common, population=population, fitness=fitness, offspring=population)

    @property
    def fitness_shape(self) -> tuple[int, ...]:
        return (self.share_size, len(self.objectives))

    @property
    def fitness_axes(self) -> str:
        return f"a row for each individual, a column for each of the objectives {', '.join(self.objectives)}"

    def update(self, state: NSGA2State, fitness: Array, key: Key) -> NSGA2State:
        # Invalid children rank below all parents, which may be worse than the worst child.
        fitness = jnp.where(state.is_valid[:, None], fitness, -jnp.inf)
        candidates = jax.tree.map(lambda *parts: jnp.concatenate(parts), state.population, state.offspring)
        fitness = jnp.concatenate([state.fitness, fitness])
        ranks = non_dominated_ranks(fitness)
        survivors = jnp.lexsort((-crowding_distance(fitness, ranks), ranks))[: self.population_size]
        state = state.replace(population=take(candidates, survivors), fitness=fitness[survivors])
        return state.replace(offspring=self._offspring(state, key))

    def _offspring(self, state: NSGA2State, key: Key) -> Params:
        hyperparameters = state.hyperparameters
        selection_key, crossover_key, mutation_key = jax.random.split(key, 3)
        num_parents = self.population_size + self.population_size % 2
        # Parents are sorted by the crowded comparison (section III-B): the earlier one wins a tournament.
        places = jnp.arange(self.population_size, dtype=jnp.float32)
        parents = take(state.population, tournament(-places, selection_key, num_parents))
        cross = uniform if self.crossover == "uniform" else partial(simulated_binary, eta=hyperparameters.crossover_eta)
        children = recombine(parents, crossover_key, hyperparameters.crossover_probability, cross)
        return polynomial(
            index_tree(children, slice(self.population_size)),
            mutation_key,
            hyperparameters.mutation_eta,
            hyperparameters.mutation_probability,
            hyperparameters.mutation_span,
        )

    def center(self, state: NSGA2State) -> Params:
        """Return the individual of the front with the largest sum of objectives, each divided by its deviation."""
        _, fitness, is_front = self.front(state)
        std = jnp.std(fitness, axis=0, keepdims=True, where=jnp.isfinite(fitness))
        scores = jnp.sum(fitness / jnp.where(std > 0.0, std, 1.0), axis=1)
        index = jnp.argmax(jnp.where(is_front, scores, -jnp.inf))
        return index_tree(state.population, index)

    def front(self, state: NSGA2State) -> tuple[Params, Array, Array]:
        """Return the parents `[P, ...]`, their fitness `[P, M]`, and a mask `[P]` of the Pareto front."""
        return state.population, state.fitness, pareto_front(state.fitness)

    has_best = False

    @property
    def measures(self) -> tuple[str, ...]:
        return self.objectives

    def fitness(self, returns: Array, measures: Array) -> Array:
        return jnp.mean(measures, axis=1)

    def describe(self, state: NSGA2State) -> dict[str, Any]:
        fitness = np.asarray(state.fitness)
        is_valid = np.isfinite(fitness).all(axis=1)
        return {
            "kind": "front",
            "axes": list(self.objectives),
            "points": fitness[is_valid].tolist(),
            "is_front": np.asarray(pareto_front(jnp.asarray(fitness)))[is_valid].tolist(),
        }

    def report(self, state: NSGA2State) -> dict[str, Array]:
        _, _, is_front = self.front(state)
        return {"front_size": jnp.sum(is_front, dtype=jnp.float32)}


class NSGA2Workflow(ECWorkflow):
    """NSGA-II, for several objectives."""

    agent_name = "nsga2"
    is_same_on_devices = True
    optimizer_class = NSGA2
