"""Recorders: what is kept of the episodes that an engine plays."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from rookery.runners.acting.actor import Logged
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.envs.base_env import Actions, EnvOutputs, LoggedAction
from rookery.runners.ledger import Steps
from rookery.runners.perf import Perf
from rookery.runners.recording.episode import LiveEpisode
from rookery.sample_batch import SampleBatch

Tree = Any


class EpisodeRecorder(ABC):
    """Records the episodes that an engine plays, and chooses the actions."""

    @abstractmethod
    def observe(self, polled: EnvOutputs, episodes: Sequence[LiveEpisode]) -> Sequence[int]:
        """Record the outputs of envs; return the env of each row that was completed."""

    @abstractmethod
    def act(self, envs: np.ndarray, episodes: Sequence[LiveEpisode], perf: Perf) -> Actions:
        """Choose the actions of the agents that wait in these envs, ascending."""

    @abstractmethod
    def end_episode(self, episode: LiveEpisode) -> int:
        """Update the figures of an episode that is over; return its steps in this fragment."""

    @abstractmethod
    def abandon(self, env: int) -> Steps:
        """Truncate the running episode of an env after its complete rows; return how much is dropped after them."""

    @abstractmethod
    def discard(self, env: int) -> Steps:
        """Discard the running episode of an env; return how much it was."""

    @abstractmethod
    def last_action(self, env: int) -> Any:
        """Return the action that an env was sent last."""

    @abstractmethod
    def update(self, episode: LiveEpisode) -> None:
        """Update the figures of a running episode."""


class FragmentRecorder(EpisodeRecorder):
    """Keeps the rows of a fragment, policy by policy."""

    @abstractmethod
    def take(
        self,
        num_rows: int | None,
        next_num_rows: int,
        whole_episodes: bool = False,
        overdraft: np.ndarray | None = None,
    ) -> "Fragment":
        """Return the complete rows and begin the next fragment.

        It begins with the running episodes, if only whole ones are returned, or with the last `overdraft` steps of each
        env, which were not asked for.
        """

    @abstractmethod
    def take_filled(self, num_fragments: int) -> "Fragment":
        """Return the oldest full fragments, `[T, columns]`: column k of every fragment before column k + 1 of any."""

    @abstractmethod
    def discard_older(self, version: int) -> Steps:
        """Discard full fragments with rows of parameters before this version; return how much that is."""

    @property
    @abstractmethod
    def env_steps(self) -> np.ndarray:
        """The steps of each env that `take` has not returned yet."""

    @property
    @abstractmethod
    def pending(self) -> Steps:
        """What `take` has not returned yet."""


@dataclass
class Fragment:
    """The rows of a fragment by policy, the recurrent states before the first, and the number of steps."""

    batches: dict[PolicyID, SampleBatch]
    first_carries: dict[PolicyID, Any]
    steps: Steps
    forgotten: list[PolicyID] = field(default_factory=list)
    """Removed policies that no episode uses any more."""


def stacked(trees: Sequence[Tree]) -> Tree:
    """Stack trees along a new first axis; None if there are none."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees) if trees else None


def stack_logged(logged: Sequence[LoggedAction]) -> Logged:
    """Stack actions that simulators chose."""
    log_probs = [np.nan if action.log_prob is None else action.log_prob for action in logged]
    return Logged(stacked([action.action for action in logged]), np.array(log_probs, np.float32))


def some_rows(tree: Tree, rows: np.ndarray) -> Tree:
    """Return some rows of a tree of arrays, by a mask or by their indexes."""
    return tree[rows] if type(tree) is np.ndarray else jax.tree.map(lambda leaf: leaf[rows], tree)
