"""A genetic algorithm for networks: elitism, tournament selection, uniform crossover, Gaussian mutation.

Departures from Such et al. (2017), who evolve networks by mutation alone: tournaments instead of truncation select the
parents, pairs of parents are crossed, and a mutation may leave genes unchanged. Elites are evaluated again in every
generation, because the fitness of an agent is noisy.
"""

import jax
import jax.numpy as jnp

from rookery.configuration import setting
from rookery.errors import InvalidInputError
from rookery.evolution import ECState
from rookery.evolution.crossover import recombine, uniform
from rookery.evolution.mutation import cloud_around, gaussian
from rookery.evolution.populations import PopulationOptimizer
from rookery.evolution.selection import elites, take, tournament
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, as_mappable_key, index_tree, pytree_field
from rookery.workflows.evolution import ECWorkflow


class GAHyperparameters(Hyperparameters):
    """The hyper-parameters of the genetic algorithm."""

    initial_std: Scalar = number(
        0.5, low=0.0, schedule=False, help="standard deviation of the first population around the initial network"
    )
    noise_std: Scalar = number(0.05, low=0.0, help="standard deviation of a mutation")
    mutation_probability: Scalar = number(0.5, low=0.0, high=1.0, help="of each parameter of a child")
    crossover_probability: Scalar = number(0.5, low=0.0, high=1.0, help="of each pair of parents")


class GAState(ECState):
    """All individuals `[P, ...]`: the elites of the last generation, best first, then the children."""

    population: Params


class GA(PopulationOptimizer):
    """Keeps the fittest individuals and replaces the others by mutated children of tournament winners."""

    hyperparameters: GAHyperparameters = pytree_field(default_factory=GAHyperparameters)
    num_elites: int = setting(1, low=1, help="fittest individuals that survive unchanged")
    tournament_size: int = setting(3, low=1, help="individuals drawn at random; the fittest becomes a parent")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_elites >= self.population_size:
            raise InvalidInputError(
                f"num_elites={self.num_elites} leaves no room for children: use less than "
                f"population_size={self.population_size}."
            )

    def init(self, params: Params, key: Key) -> GAState:
        state_key, cloud_key = jax.random.split(as_mappable_key(key))
        common = self.common_fields(params, state_key)
        initial_std = common["hyperparameters"].initial_std
        return GAState(**common, population=cloud_around(params, cloud_key, self.population_size, initial_std))

    def update(self, state: GAState, fitness: Array, key: Key) -> GAState:
        hyperparameters = state.hyperparameters
        selection_key, crossover_key, mutation_key = jax.random.split(key, 3)
        num_children = self.population_size - self.num_elites
        num_parents = num_children + num_children % 2
        parents = take(state.population, tournament(fitness, selection_key, num_parents, self.tournament_size))
        children = recombine(parents, crossover_key, hyperparameters.crossover_probability, uniform)
        children = gaussian(
            index_tree(children, slice(num_children)),
            mutation_key,
            hyperparameters.noise_std,
            hyperparameters.mutation_probability,
        )
        kept = take(state.population, elites(fitness, self.num_elites))
        return state.replace(population=jax.tree.map(lambda *parts: jnp.concatenate(parts), kept, children))

    def center(self, state: GAState) -> Params:
        return index_tree(state.population, 0)

    def report(self, state: GAState) -> dict[str, Array]:
        stds = [jnp.std(leaf, axis=0).ravel() for leaf in jax.tree.leaves(state.population)]
        return {"step_size": jnp.mean(jnp.concatenate(stds))}


class GAWorkflow(ECWorkflow):
    """A genetic algorithm."""

    agent_name = "ga"
    is_same_on_devices = True
    optimizer_class = GA
