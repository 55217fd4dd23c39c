"""Emitters: the parts of a quality-diversity search that make children of elites, each for places of its own."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rookery.evolution.archives import Archive, ArchiveState
from rookery.evolution.mutation import iso_line
from rookery.types import Array, Key, Params, PyTree, PyTreeData, PyTreeNode, index_tree, where_tree


class Elites(PyTreeData):
    """The elites of an archive, to sample parents from; `population` takes their place while there are none."""

    archive: Archive
    contents: ArchiveState
    population: Params

    def sample(self, key: Key, num_samples: int) -> Params:
        """Sample individuals uniformly from the filled cells."""
        is_empty = ~jnp.any(self.contents.is_filled)
        sampled = self.archive.sample(self.contents, key, num_samples)
        return where_tree(is_empty, index_tree(self.population, slice(num_samples)), sampled)


class Emitter(PyTreeNode, ABC):
    """Makes children. Its hyper-parameters are those of the strategy; its state may follow its success."""

    metric: ClassVar[str]
    """The name of the number of its children that entered the archive in the last generation."""

    def init(self, params: Params) -> PyTree:
        """Make the first state, for individuals like this one."""
        return ()

    @abstractmethod
    def emit(self, elites: Elites, state: PyTree, hyperparameters: Any, key: Key, num_children: int) -> Params:
        """Make the next children `[num_children, ...]`."""

    def update(self, state: PyTree, is_added: Array) -> PyTree:
        """Learn which of its last children `[num_children]` entered the archive."""
        return state


class IsoLine(Emitter):
    """Varies elites along the line to another elite (Vassiliades & Mouret, 2018)."""

    metric = "qd/added_by_variation"

    def emit(self, elites: Elites, state: PyTree, hyperparameters: Any, key: Key, num_children: int) -> Params:
        first_key, second_key, variation_key = jax.random.split(key, 3)
        first, second = elites.sample(first_key, num_children), elites.sample(second_key, num_children)
        return iso_line(first, second, variation_key, hyperparameters.iso_std, hyperparameters.line_std)
