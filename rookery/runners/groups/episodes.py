"""Episodes as requests: what runners are asked to play, and what they return."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rookery.agent import AgentState
from rookery.learning.running_statistics import RunningStatistics
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.faults import Fault
from rookery.runners.groups.jobs import Chunk
from rookery.sample_batch import SampleBatch
from rookery.types import Array, Obs, Params, PyTree, PyTreeData, pytree_field


class Handle(Protocol):
    """Arrays that a group stores, to name in requests."""


class Plan(PyTreeData):
    """What all chunks of a generation have in common.

    Seeds and random actions depend on the plan, the individual and the episode. So a chunk has the same result in
    whichever runner it is played, and when it is played again.
    """

    agent_state: AgentState
    """What individuals share: the agent state without parameters."""
    key: Array
    """The data of the key of random actions."""
    recipe: PyTree = None
    """What individuals are made from, see `EvoOptimizer.recipe`; None: chunks carry their individuals."""
    sample_key: Array | None = None
    """The data of the key that individuals are made with."""
    seed: int = pytree_field(static=True)
    num_individuals: int = pytree_field(static=True)
    num_episodes: int = pytree_field(static=True)
    """The number of episodes of each individual."""
    chunk_size: int = pytree_field(static=True)
    """The size of all chunks; smaller ones are padded with individuals that are not played."""


@dataclass(frozen=True)
class EpisodesRequest:
    """Play the episodes of some individuals."""

    plan: Handle
    chunk: Chunk
    individuals: Params = None
    """Leaves `[chunk_size, ...]`; None: the plan has a recipe for them."""


@dataclass(frozen=True)
class Played:
    """The episodes of a chunk, in the order of its jobs, and the counts of its runner.

    An unfinished episode has a return of NaN and a length of 0.
    """

    returns: np.ndarray
    lengths: np.ndarray
    measures: np.ndarray
    """`[jobs, M]`"""
    obs_statistics: RunningStatistics | None
    """Of each job, leaves `[jobs, ...]`; None if observations are not tracked."""
    metrics: Sequence[Mapping[str, float]]
    """What the environments report of each episode."""
    faults: Sequence[Fault]
    num_given_up: int
    counts: Counter[str]
    """All faults of the runner by kind, `restarts` and `steps_discarded`."""
    num_lost_envs: int
    rows: SampleBatch | None = None
    """The steps `[steps, ...]` of finished episodes, one episode after the other; None if they are not kept."""


@dataclass(frozen=True)
class RandomRequest:
    """Act at random in `num_envs` environments that are made for it."""

    num_envs: int
    num_steps: int
    seed: int


@dataclass(frozen=True)
class RandomlyPlayed:
    """Observations `[T, B, ...]` of random play, and their weights: 0 for dead rows."""

    obs: Obs
    weights: np.ndarray


@dataclass(frozen=True)
class EvaluationRequest:
    """Play the episodes of a chunk, of `num_episodes`, with the greedy policy of an agent."""

    agent_states: Handle
    seed: int
    num_episodes: int
    chunk: Chunk


@dataclass(frozen=True)
class Evaluated:
    """Some episodes of an evaluation, in their order.

    An unfinished episode has returns of NaN and a length of 0.
    """

    returns: np.ndarray
    """`[episodes, policies]`; NaN for policies that did not act in an episode."""
    lengths: np.ndarray
    metrics: Sequence[Mapping[str, float]]
    """What the environments report of each episode."""
    problem: str = ""
    """Why some are unfinished."""


class EvaluatedEpisodes(Protocol):
    """Plays episodes of evaluations, in environments of its own."""

    def play(self, agent_state: PyTree, seed: int, num_episodes: int, played: range) -> Evaluated: ...

    def close(self) -> None: ...


class EvaluatorSpec(Protocol):
    """How the player of evaluations is made, where its runner works. It can be pickled."""

    def make(self) -> EvaluatedEpisodes: ...


class EpisodesPlayer(Protocol):
    """Plays episodes in the environments of one runner."""

    def play(self, plan: Plan, chunk: Chunk, individuals: Params) -> Played:
        """Play the episodes of a chunk; without individuals, make them by the recipe of the plan."""


class PlayerSpec(Protocol):
    """How a player is made, where its runner works. It can be pickled."""

    def make(self, base_env: BaseEnv) -> EpisodesPlayer: ...
