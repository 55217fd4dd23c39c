"""Competitive swarm optimizer: in each random pair of particles, the loser learns from the winner (Cheng & Jin, 2015).

Departures from the paper: the swarm starts as Gaussian samples around the given parameters. Winners are evaluated again
in the next generation, because the fitness of an agent is noisy.
"""

import jax
import jax.numpy as jnp

from rookery.errors import InvalidInputError
from rookery.evolution import ECState
from rookery.evolution.mutation import cloud_around
from rookery.evolution.populations import PopulationOptimizer
from rookery.hyperparameters import Hyperparameters, Scalar, number
from rookery.types import Array, Key, Params, as_mappable_key, pytree_field
from rookery.workflows.evolution.workflow import ECWorkflow


class CSOHyperparameters(Hyperparameters):
    """The hyper-parameters of the competitive swarm optimizer."""

    initial_std: Scalar = number(
        0.5, low=1e-9, schedule=False, help="standard deviation of the first population around the initial network"
    )
    social_factor: Scalar = number(0.1, low=0.0, help="how strongly losers are drawn to the mean of the swarm")


class CSOState(ECState):
    """All particles and their velocities, `[P, ...]`."""

    population: Params
    velocity: Params


class CSO(PopulationOptimizer):
    """A swarm in which the loser of each pair moves towards the winner and the mean."""

    hyperparameters: CSOHyperparameters = pytree_field(default_factory=CSOHyperparameters)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.population_size % 2:
            raise InvalidInputError(f"population_size={self.population_size} must be even: particles compete in pairs.")

    def init(self, params: Params, key: Key) -> CSOState:
        state_key, cloud_key = jax.random.split(as_mappable_key(key))
        common = self.common_fields(params, state_key)
        initial_std = common["hyperparameters"].initial_std
        population = cloud_around(params, cloud_key, self.population_size, initial_std)
        return CSOState(**common, population=population, velocity=jax.tree.map(jnp.zeros_like, population))

    def update(self, state: CSOState, fitness: Array, key: Key) -> CSOState:
        pairing_key, moving_key = jax.random.split(key)
        first, second = jax.random.permutation(pairing_key, self.population_size).reshape(2, -1)
        first_wins = fitness[first] >= fitness[second]
        winners, losers = jnp.where(first_wins, first, second), jnp.where(first_wins, second, first)

        def learn(population: Array, velocity: Array, key: Key) -> tuple[Array, Array]:
            losing = population[losers]
            keep, follow, gather = jax.random.uniform(key, (3, *losing.shape), losing.dtype)
            center = jnp.mean(population, axis=0, keepdims=True)
            moving = (
                keep * velocity[losers]
                + follow * (population[winners] - losing)
                + state.hyperparameters.social_factor * gather * (center - losing)
            )  # equation (6)
            return population.at[losers].set(losing + moving), velocity.at[losers].set(moving)  # equation (7)

        particles, structure = jax.tree.flatten(state.population)
        velocities = jax.tree.leaves(state.velocity)
        keys = jax.random.split(moving_key, len(particles))
        moved = [learn(*leaves) for leaves in zip(particles, velocities, keys, strict=True)]
        population, velocity = (jax.tree.unflatten(structure, leaves) for leaves in zip(*moved, strict=True))
        return state.replace(population=population, velocity=velocity)

    def center(self, state: CSOState) -> Params:
        return state.best_params

    def report(self, state: CSOState) -> dict[str, Array]:
        stds = [jnp.std(leaf, axis=0).ravel() for leaf in jax.tree.leaves(state.population)]
        return {"step_size": jnp.mean(jnp.concatenate(stds))}


class CSOWorkflow(ECWorkflow):
    """The competitive swarm optimizer."""

    agent_name = "cso"
    is_same_on_devices = True
    optimizer_class = CSO
