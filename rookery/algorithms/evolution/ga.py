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
from rookery.evolution.mutation import cloud_around, gaussian, row_wise
from rookery.evolution.populations import PopulationOptimizer
from rookery.evolution.selection import elites, take, tournament
from rookery.hyperparameters import Hyperparameters, HyperparameterValues, Scalar, number
from rookery.types import Array, Key, Params, as_mappable_key, index_tree, pytree_field, where_tree
from rookery.workflows.evolution.workflow import ECWorkflow

MUTATIONS = ("gaussian", "row_wise")


class GAHyperparameters(Hyperparameters):
    """The hyper-parameters of the genetic algorithm."""

    initial_std: Scalar = number(
        0.5, low=0.0, schedule=False, help="standard deviation of the first population around the initial network"
    )
    noise_std: Scalar = number(
        0.05, low=0.0, help="standard deviation of a mutation; row_wise: as a fraction of the parameter"
    )
    mutation_probability: Scalar = number(
        0.5, low=0.0, high=1.0, help="of each parameter of a child; row_wise: of those in a chosen row"
    )
    row_probability: Scalar = number(0.75, low=0.0, high=1.0, help="row_wise: of each row of weights of a child")
    mutated_fraction: Scalar = number(1.0, low=0.0, high=1.0, help="of the children; the others stay as they are")
    crossover_probability: Scalar = number(0.5, low=0.0, high=1.0, help="of each pair of parents")


class GAState(ECState):
    """All individuals `[P, ...]`: the elites of the last generation, best first, then the children.

    `from_outside` `[P]` marks those that were injected, and all that descend from them as first parent.
    """

    population: Params
    from_outside: Array


class GA(PopulationOptimizer):
    """Keeps the fittest individuals and replaces the others by mutated children of tournament winners."""

    hyperparameters: GAHyperparameters = pytree_field(default_factory=GAHyperparameters)
    mutation: str = setting("gaussian", choices=MUTATIONS, help="gaussian, or row_wise: in proportion to the parameter")
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
        return GAState(
            **common,
            population=cloud_around(params, cloud_key, self.population_size, initial_std),
            from_outside=jnp.zeros(self.population_size, bool),
        )

    def put(self, state: GAState, individuals: Params, places: Array) -> GAState:
        injected = super().put(state, individuals, places)
        return injected.replace(from_outside=state.from_outside.at[self.gathered(places)].set(True))

    def update(self, state: GAState, fitness: Array, key: Key) -> GAState:
        hyperparameters: HyperparameterValues = state.hyperparameters
        selection_key, crossover_key, mutation_key, choice_key = jax.random.split(key, 4)
        num_children = self.population_size - self.num_elites
        num_parents = num_children + num_children % 2
        winners = tournament(fitness, selection_key, num_parents, self.tournament_size)
        parents = take(state.population, winners)
        children = recombine(parents, crossover_key, hyperparameters.crossover_probability, uniform)
        children = index_tree(children, slice(num_children))
        is_mutated = jax.random.bernoulli(choice_key, hyperparameters.mutated_fraction, (num_children,))
        children = where_tree(is_mutated, self._mutated(children, hyperparameters, mutation_key), children)
        kept = elites(fitness, self.num_elites)
        origins = jnp.concatenate([kept, winners[:num_children]])
        population = jax.tree.map(lambda *parts: jnp.concatenate(parts), take(state.population, kept), children)
        return state.replace(population=population, from_outside=state.from_outside[origins])

    def _mutated(self, children: Params, hyperparameters: HyperparameterValues, key: Key) -> Params:
        std, probability = hyperparameters.noise_std, hyperparameters.mutation_probability
        if self.mutation == "row_wise":
            return row_wise(children, key, std, hyperparameters.row_probability, probability)
        return gaussian(children, key, std, probability)

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
