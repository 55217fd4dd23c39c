"""The base of all evolutionary strategies: `ask` for a population, `tell` its fitness.

Fitness is maximized. A NaN or infinite fitness ranks below all others, is never the best, and is counted; strategies do
not see it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from rookery.configuration import check_settings, field_names
from rookery.distributed import fixed_order
from rookery.errors import InvalidInputError, ShapeError, check_count
from rookery.evolution.fitness import without_invalid
from rookery.types import (
    Array,
    Key,
    Params,
    PyTree,
    PyTreeData,
    PyTreeNode,
    Tree,
    as_mappable_key,
    as_one_key,
    index_tree,
    is_finite,
    pytree_field,
    where_tree,
)

CHUNK_SIZE = 64
"""The number of individuals, or mirrored pairs, made at once."""
MIN_BLOCK_SIZE = 8
"""A sum over the population adds blocks of at least this number of individuals: it needs memory for one of each."""
OWN = ("key", "num_invalid")
"""The fields of a state that belong to one search: its random numbers and its count of events."""


class ECState(PyTreeData):
    """The fields that all strategies share.

    `asked` is the population between `ask` and `tell`; `is_valid` marks valid fitness during `update`.
    """

    inherited: ClassVar[tuple[str, ...]]
    """The fields that a member of a population of searches takes over from another: all but `OWN`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.inherited = tuple(name for name in field_names(cls) if name not in OWN)

    key: Key
    generation: Array
    hyperparameters: Any
    best_params: Params
    best_fitness: Array
    num_invalid: Array
    asked: Params = None
    is_valid: Any = None


StateT = TypeVar("StateT", bound=ECState)


class EvoOptimizer(PyTreeNode, ABC):
    """A strategy: `population, state = ask(state)`, then `state = tell(state, fitness)`.

    Individuals are trees like the `params` passed to `init`; a population is such a tree with the individuals as first
    axis. Hyper-parameters are part of the state, so each seed or island can have its own.

    With `axis_name`, the population is split over the devices of that mesh axis: `ask` returns this device's share,
    `tell` takes the fitness of the share, and the state is the same on all devices. Devices exchange fitness values,
    not individuals. (Strategies whose state is a population keep all of it on every device.)
    """

    population_size: int = pytree_field(static=True)
    hyperparameters: Any = None
    axis_name: str | None = pytree_field(static=True, default=None)

    def __post_init__(self) -> None:
        check_count("population_size", self.population_size)
        check_settings(self)

    # Strategies define:

    @abstractmethod
    def init(self, params: Params, key: Key) -> ECState:
        """Make the initial state, with the search starting at `params`."""

    @abstractmethod
    def sample(self, state: Any, key: Key) -> Params:
        """Sample this device's share of the next population."""

    @abstractmethod
    def update(self, state: Any, fitness: Array, key: Key) -> Any:
        """Update the search with the fitness `[P]` of the whole population; `state.asked` is this device's share."""

    @abstractmethod
    def center(self, state: Any) -> Params:
        """Return the individual that represents the search: the mean of a distribution, the best of a population."""

    has_population: ClassVar[bool] = False
    """Whether the state contains the next population, so that individuals can be injected before `ask`."""

    has_best: ClassVar[bool] = True
    """Whether one individual can be the best of all so far; False for several objectives."""

    @property
    def measures(self) -> tuple[str, ...]:
        """What to measure of every episode besides its return."""
        return ()

    def fitness(self, returns: Array, measures: Array) -> Array:
        """Return the fitness of individuals from the returns `[P, E]` and measures `[P, E, K]` of their episodes."""
        return jnp.mean(returns, axis=1)

    def tell_episodes(self, state: Any, returns: Array, measures: Array) -> Any:
        """Learn from the episodes of the individuals that `ask` returned, in their order."""
        return self.tell(state, self.fitness(returns, measures))

    def describe(self, state: Any) -> dict[str, Any] | None:
        """Describe the final population as JSON data for the report; None if the center says it all."""
        return None

    def report(self, state: Any) -> dict[str, Array]:
        """Return metrics of the search, such as its `step_size`; records show them as `evolution/step_size`.

        A name with a slash is recorded as it is.
        """
        return {}

    def warning(self, report: Mapping[str, float]) -> str:
        """Return a warning about the values of a report; empty if there is none."""
        return ""

    @property
    def num_replays(self) -> int:
        """The number of episodes that each elite of an archive plays again in an evaluation; 0: none."""
        return 0

    def elites(self, state: Any) -> tuple[Params, Array]:
        """Return the individuals that an archive has room for, `[C, ...]`, and how many of the first exist."""
        raise NotImplementedError(f"{type(self).__name__} has no archive.")

    def reevaluated(self, state: Any, elites: Params, returns: Array, measures: Array) -> Any:
        """Return the state with the archive that its elites fill by the episodes that they played again."""
        raise NotImplementedError(f"{type(self).__name__} has no archive.")

    def recipe(self, state: Any) -> PyTree:
        """Return what `sample_some` makes any individuals of the next population from.

        It is far smaller than a population. None: individuals cannot be made one by one.
        """
        return None

    def sample_some(self, recipe: PyTree, key: Key, first: Array, count: int) -> Params:
        """Make `count` individuals of the population, from number `first`; those past its end mean nothing.

        With the `sample_key` of a state they are those that `ask` returns, to the bit on one platform.
        """
        raise NotImplementedError(f"{type(self).__name__} has no recipe for some individuals.")

    # Users call:

    def ask(self, state: StateT) -> tuple[Params, StateT]:
        """Return the individuals to evaluate, and the state to pass to `tell`."""
        key, sample_key = jax.random.split(state.key)
        population = self.sample(state, sample_key)
        return population, state.replace(key=key, asked=population)

    def inject(self, state: Any, individuals: Params, places: Array) -> Any:
        """Put individuals `[N, ...]` at places `[N]` of the whole population, in place of those that are there.

        Between `ask` and `tell`, it changes which individuals are judged. Before `ask`, it changes the next population;
        strategies that sample from a distribution have none. The individuals 2i and 2i + 1 of a mirrored strategy are
        no pair any more if one of them is replaced. Each device may inject its own individuals, at any places of its
        share, or all devices the same ones. An individual with parameters that are not finite does not enter.
        """
        return self.put(state, individuals, jnp.where(jax.vmap(is_finite)(individuals), places, self.population_size))

    def put(self, state: Any, individuals: Params, places: Array) -> Any:
        """Inject finite individuals; those whose place is past the population do not enter."""
        self._check_has_asked(state)
        return state.replace(asked=self.with_places(state.asked, individuals, places))

    def sample_key(self, state: ECState) -> Key:
        """Return the key that `ask` will sample the population of this state with."""
        return jax.random.split(state.key)[1]

    def tell(self, state: StateT, fitness: Array) -> StateT:
        """Update the search with the fitness of the individuals that `ask` returned, in their order."""
        if state.asked is None:
            raise InvalidInputError("tell needs the state that ask returned: this one has no population.")
        if fitness.shape != self.fitness_shape:
            raise ShapeError(
                f"fitness is {list(fitness.shape)}; expected {list(self.fitness_shape)}, {self.fitness_axes}."
            )
        fitness, is_valid = without_invalid(self.gathered(fitness))
        state = self._with_best(state, fitness, is_valid)
        key, update_key = jax.random.split(state.key)
        # Without it XLA keeps a common subexpression of `sample` and `update`: the mean repeated for the population.
        state = jax.lax.optimization_barrier(state)
        state = state.replace(key=key, is_valid=is_valid)
        # Without valid individuals there is nothing to learn.
        updated = jax.lax.cond(jnp.any(is_valid), lambda: self.update(state, fitness, update_key), lambda: state)
        return updated.replace(
            asked=None,
            is_valid=None,
            generation=state.generation + 1,
            num_invalid=state.num_invalid + jnp.sum(~is_valid, dtype=jnp.int32),
        )

    # Helpers for strategies:

    def common_fields(self, params: Params, key: Key) -> dict[str, Any]:
        """Return the initial values of the fields that all strategies share."""
        return {
            "key": as_mappable_key(as_one_key(key)),
            "generation": jnp.zeros((), jnp.int32),
            "hyperparameters": jax.tree.map(jnp.float32, self.hyperparameters),
            "best_params": params,
            "best_fitness": jnp.float32(-jnp.inf),
            "num_invalid": jnp.zeros((), jnp.int32),
        }

    @property
    def fitness_shape(self) -> tuple[int, ...]:
        """The shape of the fitness that `tell` takes."""
        return (self.share_size,)

    @property
    def fitness_axes(self) -> str:
        """The meaning of that shape, for error messages."""
        return "one value for each individual"

    @property
    def group_size(self) -> int:
        """The number of individuals that must be on the same device: 2 for mirrored pairs."""
        return 1

    @property
    def num_shares(self) -> int:
        return 1 if self.axis_name is None else jax.lax.axis_size(self.axis_name)

    @property
    def share_size(self) -> int:
        """The number of individuals on this device."""
        return self.population_size // self.num_shares

    def share(self, tree: Tree) -> Tree:
        """Return this device's share of a tree that all devices have: `[P, ...]`, or of some individuals."""
        if self.axis_name is None:
            return tree

        def share(leaf: Array) -> Array:
            size = leaf.shape[0] // self.num_shares
            return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(self.axis_name) * size, size)

        return jax.tree.map(share, tree)

    def with_places(self, population: Params, individuals: Params, places: Array) -> Params:
        """Return this device's share of a population with individuals at places of the whole one; drop the others."""
        own = places if self.axis_name is None else places - jax.lax.axis_index(self.axis_name) * self.share_size
        own = jnp.where(own < 0, self.share_size, own)
        return jax.tree.map(lambda leaf, new: leaf.at[own].set(new, mode="drop"), population, individuals)

    def _check_has_asked(self, state: ECState) -> None:
        if state.asked is None:
            raise InvalidInputError(
                f"{type(self).__name__} samples its population in ask: inject individuals between ask and tell."
            )

    def gathered(self, tree: Tree) -> Tree:
        """Return the shares of all devices as one tree `[P, ...]`."""
        if self.axis_name is None:
            return tree
        return jax.lax.all_gather(tree, self.axis_name, tiled=True)

    def individuals(
        self, make_fn: Callable[[Params], Params], params: Params, key: Key, mirrored: bool = False
    ) -> Params:
        """Make this device's share of a population: `make_fn` of standard normal noise like `params` for each.

        Each individual has its own key, so it does not depend on the number of devices. If `mirrored`, the individuals
        2i and 2i + 1 have opposite noise.
        """
        num_groups = self.share_size // (2 if mirrored else 1)
        first = 0 if self.axis_name is None else jax.lax.axis_index(self.axis_name) * num_groups
        made = make_groups(make_fn, params, key, first, num_groups, mirrored)
        return jax.tree.map(lambda leaf: leaf[: self.share_size], made)

    def weighted_sum(self, weights: Array, population: Params) -> Params:
        """Sum the individuals of the whole population, weighted by `weights` `[P]`."""
        own = self.share(weights)
        num_blocks = self.share_size // math.gcd(self.share_size, block_size(self.population_size))

        def add_blocks(leaf: Array) -> Array:
            weighted = own.reshape(-1, *(1,) * (leaf.ndim - 1)) * leaf
            return jnp.sum(weighted.reshape(num_blocks, -1, *leaf.shape[1:]), axis=1)

        blocks = jax.tree.map(add_blocks, population)
        return fixed_order.combine(lambda one, other: jax.tree.map(jnp.add, one, other), blocks, self.axis_name)

    def individual(self, population: Params, index: Array) -> Params:
        """Return one individual of the whole population, whichever device has it."""
        own_index = index if self.axis_name is None else index - jax.lax.axis_index(self.axis_name) * self.share_size
        is_own = (own_index >= 0) & (own_index < self.share_size)
        chosen = index_tree(population, jnp.clip(own_index, 0, self.share_size - 1))
        if self.axis_name is None:
            return chosen
        return jax.lax.psum(where_tree(is_own, chosen, jax.tree.map(jnp.zeros_like, chosen)), self.axis_name)

    def _with_best(self, state: StateT, fitness: Array, is_valid: Array) -> StateT:
        """Store the fittest individual so far; with several objectives there is no best."""
        if fitness.ndim > 1:
            return state
        candidates = jnp.where(is_valid, fitness, -jnp.inf)
        index = jnp.argmax(candidates)
        # Ties go to the later individual: its search has advanced further.
        is_better = is_valid[index] & (candidates[index] >= state.best_fitness)
        return state.replace(
            best_params=where_tree(is_better, self.individual(state.asked, index), state.best_params),
            best_fitness=jnp.where(is_better, candidates[index], state.best_fitness),
        )


def make_groups(
    make_fn: Callable[[Params], Params], params: Params, key: Key, first: Array | int, num_groups: int, mirrored: bool
) -> Params:
    """Make `make_fn` of noise like `params` for at least `num_groups` individuals or pairs, from number `first`."""
    # In chunks: sampling a number needs several times the memory of the number.
    num_chunks = -(-num_groups // CHUNK_SIZE)
    chunk_size = -(-num_groups // num_chunks)
    indexes = first + jnp.arange(num_chunks * chunk_size, dtype=jnp.int32)

    def make_group(index: Array) -> Params:
        noise = normal_like(params, jax.random.fold_in(key, index))
        noises = (noise, jax.tree.map(jnp.negative, noise)) if mirrored else (noise,)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(make_fn, noises))

    groups = jax.lax.map(jax.vmap(make_group), indexes.reshape(num_chunks, chunk_size))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), groups)


def block_size(population_size: int) -> int:
    """Return the number of individuals in a block: at least `MIN_BLOCK_SIZE`; the blocks are a power of two."""
    num_blocks = population_size & -population_size
    while num_blocks > 1 and population_size // num_blocks < MIN_BLOCK_SIZE:
        num_blocks //= 2
    return population_size // num_blocks


def max_same_devices(population_size: int, limit: int) -> int:
    """Return the largest power of two, up to `limit`, of devices that get whole blocks and whole mirrored pairs."""
    num_devices = 1
    most = min(limit, population_size // block_size(population_size))
    while 2 * num_devices <= most and population_size % (4 * num_devices) == 0:
        num_devices *= 2
    return num_devices


def normal_like(params: Params, key: Key) -> Params:
    """Sample standard normal noise in the shape of one individual."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    noise = [jax.random.normal(leaf_key, leaf.shape, leaf.dtype) for leaf_key, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, noise)
