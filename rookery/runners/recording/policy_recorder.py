"""The recorder of one policy."""

from typing import Any

import jax
import numpy as np

from rookery.runners.acting.actor import Actor
from rookery.runners.acting.connectors import Rows
from rookery.runners.acting.pipelines import Pipeline
from rookery.runners.recording.fragments import ALL_COLUMNS, FragmentBuffer, PolicyOutput
from rookery.sample_batch import SampleBatch

Tree = Any


class PolicyRecorder:
    """Acts for one policy and records its rows: an actor, connectors and a fragment buffer."""

    def __init__(self, actor: Actor, pipeline: Pipeline | None, num_rows: int, num_columns: int) -> None:
        self.actor = actor
        self.pipeline = pipeline
        self.buffer = FragmentBuffer(num_rows, num_columns)
        self.is_open = np.zeros(num_columns, bool)
        """The columns whose agent has acted and waits for the result."""
        self.first_carry: Any = ()
        """The recurrent states before the first row of each column."""
        self.reserve(num_columns)

    def reserve(self, num_columns: int) -> None:
        """Make room for `num_columns` columns."""
        self.actor.reserve(num_columns)
        self.first_carry = self.actor.with_columns(self.first_carry, num_columns)
        if self.pipeline is not None:
            self.pipeline.reserve(num_columns)
        if num_columns > self.buffer.num_columns:
            self.buffer.add_columns(num_columns)
            self.is_open = np.append(self.is_open, np.zeros(num_columns - len(self.is_open), bool))

    def to_policy(self, obs: Tree, columns: np.ndarray, starts: np.ndarray, rewards: np.ndarray) -> Tree:
        """Return the observations of these columns as the connectors transform them."""
        if self.pipeline is None or not self.pipeline.obs:
            return obs
        return self.pipeline.to_policy(obs, Rows(columns, starts, self.buffer.last_actions(columns), rewards))

    def act(
        self, columns: Any, num_rows: int, starts: np.ndarray | None, times: Any, episodes: Any, logged: Tree = None
    ) -> PolicyOutput:
        """Act in these columns and record it; `logged` actions were chosen by the env."""
        buffer = self.buffer
        if not buffer.has_room(columns):
            buffer.add_rows(2 * buffer.num_rows)
        acts = self.actor.act(
            buffer.seen(columns), num_rows, None if columns is ALL_COLUMNS else columns, starts, logged
        )
        buffer.act(columns, acts, times, episodes)
        self.is_open[columns] = True
        return acts

    def to_env(self, actions: Tree) -> Tree:
        """Return the actions as the connectors transform them, read-only."""
        if self.pipeline is not None and self.pipeline.actions:
            actions = self.pipeline.to_env(actions)
            for leaf in jax.tree.leaves(actions):
                leaf.flags.writeable = False
        return actions

    def take(
        self, num_rows: int | None, next_num_rows: int, num_kept: np.ndarray | None
    ) -> tuple[SampleBatch | None, Any, int]:
        """Return the rows, the recurrent states before the first of them, and the number of complete rows."""
        open_columns = np.flatnonzero(self.is_open)
        next_carry = self._carry_before(open_columns, num_kept) if self.actor.is_recurrent else ()
        batch, num_complete = self.buffer.take(num_rows, open_columns, next_num_rows, num_kept)
        first_carry, self.first_carry = self.first_carry, next_carry
        return batch, first_carry, num_complete

    def _carry_before(self, open_columns: np.ndarray, num_kept: np.ndarray | None) -> Any:
        """Return the recurrent states before the first row of the next fragment, which may have its action already."""
        buffer = self.buffer
        columns = open_columns if num_kept is None else np.union1d(open_columns, np.flatnonzero(num_kept))
        if not len(columns):
            return self.actor.carry
        last_rows = buffer.cursor[columns] - 1 - (0 if num_kept is None else num_kept[columns])
        carries = buffer.extras_at(np.maximum(last_rows, 0), columns).next_carry

        def before(carry: Any, first: Any, last: np.ndarray) -> Any:
            is_first = (last_rows < 0).reshape(-1, *(1,) * (last.ndim - 1))
            carry = np.array(carry)
            carry[columns] = np.where(is_first, np.asarray(first)[columns], last)
            return carry

        return jax.tree.map(before, self.actor.carry, self.first_carry, carries)
