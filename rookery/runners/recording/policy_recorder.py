"""The recorder of one policy."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from rookery.runners.acting.actor import Actor, Logged
from rookery.runners.acting.connectors import Rows
from rookery.runners.acting.pipelines import Pipeline
from rookery.runners.recording.fragment_pool import FragmentPool, FullColumn
from rookery.runners.recording.fragments import ALL_COLUMNS, FragmentBuffer, PolicyOutput
from rookery.sample_batch import SampleBatch

Tree = Any


class PolicyRecorder:
    """Acts for one policy and records its rows: an actor, connectors and a fragment buffer."""

    def __init__(
        self, actor: Actor, pipeline: Pipeline | None, num_rows: int, num_columns: int, is_pooled: bool = False
    ) -> None:
        self.actor = actor
        self.pipeline = pipeline
        self.buffer = FragmentPool(num_rows, num_columns) if is_pooled else FragmentBuffer(num_rows, num_columns)
        self.is_open = np.zeros(num_columns, bool)
        """The columns whose agent has acted and waits for the result."""
        self.first_carry: Any = ()
        """The recurrent states before the first row of each column."""
        self.reserve(num_columns)

    @property
    def num_columns(self) -> int:
        return len(self.is_open)

    def reserve(self, num_columns: int) -> None:
        """Make room for `num_columns` columns."""
        self.actor.reserve(num_columns)
        self.first_carry = self.actor.with_columns(self.first_carry, num_columns)
        if self.pipeline is not None:
            self.pipeline.reserve(num_columns)
        if num_columns > self.num_columns:
            self.buffer.add_columns(num_columns)
            self.is_open = np.append(self.is_open, np.zeros(num_columns - len(self.is_open), bool))

    def to_policy(self, obs: Tree, columns: np.ndarray, starts: np.ndarray, rewards: np.ndarray) -> Tree:
        """Return the observations of these columns as the connectors transform them."""
        if self.pipeline is None or not self.pipeline.obs:
            return obs
        return self.pipeline.to_policy(obs, Rows(columns, starts, self.buffer.last_actions(columns), rewards))

    def act(
        self,
        columns: Any,
        num_rows: int,
        starts: np.ndarray | None,
        times: Any,
        episodes: Any,
        logged: Logged | None = None,
    ) -> PolicyOutput:
        """Act in these columns and record it; `logged` actions were chosen by the env."""
        buffer = self.buffer
        if not buffer.has_room(columns):
            buffer.add_rows(2 * buffer.num_rows)
        acts = self.actor.act(
            buffer.seen(columns), num_rows, None if columns is ALL_COLUMNS else columns, starts, logged
        )
        buffer.act(columns, acts, times, episodes, self.actor.version, logged is not None)
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

    # With a pool.

    def next_fragment(self, column: int) -> FullColumn:
        """Return the full fragment of an agent, which goes on in another."""
        pool = self.pool
        first_carry = jax.tree.map(lambda leaf: np.asarray(leaf)[column], self.first_carry)
        if self.actor.is_recurrent:
            last_row = np.array([pool.cursor[column] - 1])
            next_carry = pool.extras_at(last_row, np.array([column])).next_carry
            self.first_carry = jax.tree.map(partial(_with_entry, column), self.first_carry, next_carry)
        place, num_rows = pool.next_fragment(column, bool(self.is_open[column]))
        return FullColumn(place, num_rows, int(pool.versions[:num_rows, place].min()), first_carry)

    def take_columns(self, columns: Sequence[FullColumn | None]) -> tuple[SampleBatch, Any]:
        """Return the rows `[T, columns]` of full fragments, and the recurrent states before them; None is empty."""
        pool = self.pool
        places = np.array([0 if column is None else column.place for column in columns])
        num_rows = np.array([0 if column is None else column.num_rows for column in columns])
        batch = pool.batch_of(pool.num_rows, places, num_rows)
        blank = self.actor.agent.initial_carry()
        carries = [blank if column is None else column.first_carry for column in columns]
        self.release(columns)
        return batch, jax.tree.map(lambda *leaves: np.stack(leaves), *carries)

    def release(self, columns: Iterable[FullColumn | None]) -> None:
        """Let the places of these fragments be written again."""
        for column in columns:
            if column is not None:
                self.pool.release(column.place)

    @property
    def pool(self) -> FragmentPool:
        assert isinstance(self.buffer, FragmentPool), "fragments follow each other in a pool"
        return self.buffer

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


def _with_entry(column: int, leaf: Any, entry: np.ndarray) -> np.ndarray:
    """Return an array with another entry in one column."""
    changed = np.array(leaf)
    changed[column] = entry[0]
    return changed
