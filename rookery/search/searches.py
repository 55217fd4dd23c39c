"""Searches: after a round, who takes over from whom, and which numbers every member tries next.

They see the fitness `[P]` of the whole population. A member whose training has diverged has the fitness NaN: it ranks
last and nobody takes over from it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rookery.errors import InvalidInputError, unknown_name
from rookery.hyperparameters import Hyperparameters, HyperparameterValues, Scalar, number
from rookery.search.space import Numbers, SearchSpace, key_of
from rookery.trust import import_object
from rookery.types import Key, PyTree, PyTreeData


class SearchHyperparameters(Hyperparameters):
    """The hyper-parameters of the searches."""

    perturb_factor: Scalar = number(
        1.25, low=1.0, help="truncation: an heir's numbers are multiplied or divided by this, each on its scale"
    )
    resample_probability: Scalar = number(
        0.25, low=0.0, high=1.0, help="truncation: how often an heir's number is drawn from its whole range instead"
    )
    social_factor: Scalar = number(0.1, low=0.0, help="cso: how strongly losers are drawn to the mean of the numbers")


class Selection(PyTreeData):
    """What a round decides for each member.

    A member takes over what its parent has learned; one that is its own parent goes on as it is.
    """

    parents: Int[Array, " P"]
    numbers: Numbers
    search_state: PyTree


@dataclass(frozen=True)
class Search(ABC):
    """How a population of `population_size` members searches a space."""

    space: SearchSpace
    population_size: int

    def init(self) -> PyTree:
        """Make the first state of the search."""
        return ()

    @abstractmethod
    def select(
        self,
        numbers: Numbers,
        fitness: Float[Array, " P"],
        search_state: PyTree,
        hyperparameters: HyperparameterValues,
        key: Key,
    ) -> Selection:
        """Decide what follows a round."""

    def unchanged(self, numbers: Numbers, search_state: PyTree) -> Selection:
        """Return the selection that lets every member go on as it is."""
        return Selection(parents=self._members, numbers=numbers, search_state=search_state)

    @property
    def _members(self) -> Int[Array, " P"]:
        return jnp.arange(self.population_size, dtype=jnp.int32)

    def _keys(self, key: Key) -> Key:
        """Return one key for each member."""
        return jax.vmap(partial(jax.random.fold_in, key))(self._members)


@dataclass(frozen=True)
class Truncation(Search):
    """Population-based training (Jaderberg et al., 2017).

    Each of the worst `num_bottom` members, and each that has diverged, takes over from one of the best `num_top`.
    """

    num_top: int
    num_bottom: int

    def __post_init__(self) -> None:
        if self.num_top + self.num_bottom > self.population_size:
            raise InvalidInputError(
                f"the best {self.num_top} and the worst {self.num_bottom} members overlap in a population of "
                f"{self.population_size}: use a larger population, or smaller shares top and bottom."
            )

    def select(
        self,
        numbers: Numbers,
        fitness: Float[Array, " P"],
        search_state: PyTree,
        hyperparameters: HyperparameterValues,
        key: Key,
    ) -> Selection:
        parent_key, perturb_key = jax.random.split(key)
        is_valid = jnp.isfinite(fitness)
        best_first = jnp.argsort(-jnp.where(is_valid, fitness, -jnp.inf)).astype(jnp.int32)
        rank = jnp.argsort(best_first)
        num_parents = jnp.clip(jnp.sum(is_valid, dtype=jnp.int32), 1, self.num_top)
        is_heir = jnp.any(is_valid) & (~is_valid | (rank >= self.population_size - self.num_bottom))
        places = jax.vmap(lambda key: jax.random.randint(key, (), 0, num_parents))(self._keys(parent_key))
        parents = jnp.where(is_heir, best_first[places], self._members)
        perturbed = jax.vmap(
            lambda numbers, key: self.space.perturb(
                numbers, key, hyperparameters.perturb_factor, hyperparameters.resample_probability
            )
        )({name: of_all[parents] for name, of_all in numbers.items()}, self._keys(perturb_key))
        changed = {name: jnp.where(is_heir, perturbed[name], numbers[name]) for name in numbers}
        return Selection(parents=parents, numbers=changed, search_state=search_state)


@dataclass(frozen=True)
class Competition(Search):
    """Competitive swarm over hyper-parameters (after Cheng & Jin, 2015).

    Members meet in random pairs. The loser takes over what the winner has learned; its own numbers move towards those
    of the winner, in unit scale. The velocity stays with the place.
    """

    def __post_init__(self) -> None:
        if self.population_size % 2:
            raise InvalidInputError(
                f"agent.population_size={self.population_size} must be even: with agent.search=cso, members meet in "
                "pairs."
            )

    def init(self) -> Numbers:
        """Make the velocities, which start at 0."""
        return {name: jnp.zeros(self.population_size) for name in self.space.names}

    def select(
        self,
        numbers: Numbers,
        fitness: Float[Array, " P"],
        search_state: Numbers,
        hyperparameters: HyperparameterValues,
        key: Key,
    ) -> Selection:
        pairing_key, moving_key = jax.random.split(key)
        rank = jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)
        first, second = jax.random.permutation(pairing_key, self._members).reshape(2, -1)
        first_wins = rank[first] >= rank[second]
        winners, losers = jnp.where(first_wins, first, second), jnp.where(first_wins, second, first)
        is_decided = jnp.isfinite(fitness[winners])
        parents = self._members.at[losers].set(jnp.where(is_decided, winners, losers))
        keys, places = self._keys(moving_key)[losers], self.space.to_unit(numbers)
        moved, velocities = dict(places), dict(search_state)
        for name, place in places.items():
            draws = jax.vmap(lambda key, name=name: jax.random.uniform(key_of(key, name), (3,)))(keys)
            keep, follow, gather = draws.T
            velocity = (
                keep * search_state[name][losers]
                + follow * (place[winners] - place[losers])
                + hyperparameters.social_factor * gather * (jnp.mean(place) - place[losers])
            )  # equation (6) of Cheng & Jin
            velocity = jnp.where(is_decided, velocity, search_state[name][losers])
            velocities[name] = search_state[name].at[losers].set(velocity)
            moved[name] = place.at[losers].add(jnp.where(is_decided, velocity, 0.0))  # equation (7)
        is_loser = parents != self._members
        changed = self.space.from_unit(moved)
        changed = {name: jnp.where(is_loser, changed[name], numbers[name]) for name in numbers}
        return Selection(parents=parents, numbers=changed, search_state=velocities)


@dataclass(frozen=True)
class RandomSearch(Search):
    """Every member keeps its numbers, and nobody takes over from another."""

    def select(
        self,
        numbers: Numbers,
        fitness: Float[Array, " P"],
        search_state: PyTree,
        hyperparameters: HyperparameterValues,
        key: Key,
    ) -> Selection:
        return self.unchanged(numbers, search_state)


SEARCHES: dict[str, type[Search]] = {"truncation": Truncation, "cso": Competition, "none": RandomSearch}


def search_class(name: str) -> type[Search]:
    """Return a search by its name, or an own one by `module:Class`."""
    if name in SEARCHES:
        return SEARCHES[name]
    if ":" not in name:
        raise unknown_name("search", name, SEARCHES, "Your own is module:Class.")
    found = import_object(name, f"agent.search={name}")
    if not (isinstance(found, type) and issubclass(found, Search)):
        raise InvalidInputError(f"agent.search={name} is {found!r:.80}: expected a subclass of rookery.search.Search.")
    return found
