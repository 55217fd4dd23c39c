"""The buffer of a fragment: time-major arrays, one column for each agent of each env.

A column belongs to one env and holds the rows of one of its agents at a time. When that agent has ended, the rows of
another agent or of the next episode follow, without gaps. A column with fewer steps than others ends in dead rows.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rookery.runners.acting.packing import Packing
from rookery.runners.envs.base_env import End
from rookery.sample_batch import SampleBatch
from rookery.types import PyTreeDict

Tree = Any
ColumnIndex = np.ndarray | slice
ALL_COLUMNS = slice(None)
"""All columns, in order."""

TERMINATED = (End.TERMINATED, End.GONE_TERMINATED)
TRUNCATED = (End.TRUNCATED, End.GONE_TRUNCATED, End.ABANDONED)

ROW_FIELDS = ("rewards", "episode_returns", "ends", "times", "episodes", "versions", "are_logged")


@dataclass(slots=True)
class PolicyOutput:
    """The output of a policy in some columns: the actions, and actions with extras, packed."""

    actions: Tree
    arrays: list[np.ndarray]
    packing: Packing
    """The packing of `(actions, policy_extras)`."""


def leaves_of(tree: Tree) -> list[np.ndarray]:
    """Return the arrays of an observation, which mostly is one array."""
    return [tree] if type(tree) is np.ndarray else jax.tree.leaves(tree)


class Block:
    """Arrays `[rows, columns, ...]`, allocated by the first write."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        self.num_rows = num_rows
        self.num_columns = num_columns
        self.arrays: list[np.ndarray] | None = None

    def write(self, where: Any, arrays: list[np.ndarray]) -> None:
        if self.arrays is None:
            self.arrays = [
                np.zeros((self.num_rows, self.num_columns, *array.shape[1:]), array.dtype) for array in arrays
            ]
        for block, array in zip(self.arrays, arrays, strict=True):
            block[where] = array

    def read(self, where: Any) -> list[np.ndarray]:
        assert self.arrays is not None, "nothing was written yet"
        return [array[where] for array in self.arrays]

    def grow(self, num_rows: int, num_columns: int) -> None:
        """Make room for more rows and columns."""
        old, self.arrays = self.arrays, self.like(num_rows, num_columns).arrays
        for block, array in zip(self.arrays or (), old or (), strict=True):
            block[: self.num_rows, : self.num_columns] = array
        self.num_rows, self.num_columns = num_rows, num_columns

    def like(self, num_rows: int, num_columns: int) -> "Block":
        """Return an empty block for the same kind of values."""
        block = Block(num_rows, num_columns)
        if self.arrays is not None:
            block.arrays = [np.zeros((num_rows, num_columns, *array.shape[2:]), array.dtype) for array in self.arrays]
        return block


class FragmentBuffer:
    """The transitions of one policy in one fragment."""

    _num_uncounted: int
    """Rows that all columns have completed and that the cursor does not count yet: counting takes long."""

    def __init__(self, num_rows: int, num_columns: int) -> None:
        self.num_columns = num_columns
        self._obs_treedef: Any = None
        self._is_one_array = False
        self._packing: Packing | None = None
        self._begin(num_rows, *(Block(rows, num_columns) for rows in (num_rows + 1, num_rows, num_rows)))

    def _begin(self, num_rows: int, obs: Block, next_obs: Block, acts: Block) -> None:
        num_columns = self.num_columns
        self.num_rows = num_rows
        self.obs, self.next_obs, self.acts = obs, next_obs, acts
        self.rewards = np.zeros((num_rows, num_columns), np.float32)
        self.episode_returns = np.zeros((num_rows, num_columns), np.float32)
        self.ends = np.zeros((num_rows, num_columns), np.uint8)
        self.times = np.zeros((num_rows, num_columns), np.int32)
        self.episodes = np.zeros((num_rows, num_columns), np.int32)
        self.versions = np.zeros((num_rows, num_columns), np.int32)
        self.are_logged = np.zeros((num_rows, num_columns), np.bool_)
        self.cursor = np.zeros(num_columns, np.int64)
        self._most = 0
        """An upper bound on the rows of a column."""
        self.episode_begin = np.zeros(num_columns, np.int64)
        """The first row of each column in the running episode."""
        self.row: int | None = 0
        """The cursor of all columns while it is the same; otherwise None."""

    @property
    def cursor(self) -> np.ndarray:
        """The present row of each column."""
        if self._num_uncounted:
            self._cursor += self._num_uncounted
            self._num_uncounted = 0
        return self._cursor

    @cursor.setter
    def cursor(self, cursor: np.ndarray) -> None:
        self._cursor, self._num_uncounted = cursor, 0

    def _now(self, columns: ColumnIndex) -> tuple[Any, Any]:
        """Return the index of the present row of each of these columns."""
        if self.row is not None:
            return self.row, columns
        if isinstance(columns, slice):
            return self.cursor, np.arange(self.num_columns)
        return self.cursor[columns], self._places_of(columns)

    def _places_of(self, columns: Any) -> Any:
        """Return where the rows of these columns are."""
        return columns

    def observe(self, columns: ColumnIndex, obs: Tree) -> None:
        """Write the observations that are acted on next."""
        self.obs.write(self._now(columns), leaves_of(obs))
        if self._obs_treedef is None:
            self._obs_treedef = jax.tree.structure(obs)
            self._is_one_array = jax.tree_util.treedef_is_leaf(self._obs_treedef)
            self.next_obs = self.obs.like(self.num_rows, self.num_columns)

    def follow(self, columns: ColumnIndex, obs: Tree | None) -> None:
        """Write the observations after the actions, in the rows that are still open; None repeats those before."""
        now = self._now(columns)
        self.next_obs.write(now, self.obs.read(now) if obs is None else leaves_of(obs))

    def seen(self, columns: ColumnIndex) -> Tree:
        """Return the last observations of these columns."""
        leaves = self.obs.read(self._now(columns))
        return leaves[0] if self._is_one_array else self._obs_treedef.unflatten(leaves)

    def act(
        self,
        columns: ColumnIndex,
        acts: "PolicyOutput",
        times: np.ndarray,
        episodes: np.ndarray,
        version: int = 0,
        are_logged: bool = False,
    ) -> None:
        """Write the actions, with the step and the number of their episodes.

        `version` is that of the parameters that acted; `are_logged` if simulators acted themselves.
        """
        now = self._now(columns)
        self._packing = acts.packing
        self.acts.write(now, acts.arrays)
        self.times[now] = times
        self.episodes[now] = episodes
        self.versions[now] = version
        self.are_logged[now] = are_logged

    def last_actions(self, columns: Any) -> Tree | None:
        """Return the last actions of these columns, whose rows must be open; None if nobody ever acted."""
        if self._packing is None:
            return None
        rows = np.minimum(self.cursor[columns], self.num_rows - 1)
        return self._packing.unpack([np.array(array) for array in self.acts.read((rows, self._places_of(columns)))])[0]

    def has_room(self, columns: ColumnIndex) -> bool:
        """Return whether these columns have a row left."""
        if self.row is not None:
            return self.row < self.num_rows
        return self._most < self.num_rows or int(self.cursor[columns].max(initial=0)) < self.num_rows

    def extras_at(self, rows: np.ndarray, columns: np.ndarray) -> PyTreeDict:
        """Return the policy extras of some rows."""
        assert self._packing is not None, "nobody has acted yet"
        return self._packing.unpack(self.acts.read((rows, self._places_of(columns))))[1]

    def complete(
        self, columns: ColumnIndex, rewards: np.ndarray, ends: np.ndarray, episode_returns: np.ndarray
    ) -> None:
        """Write the results of the actions, which completes the rows."""
        now = self._now(columns)
        self._most += 1
        self.rewards[now] = rewards
        self.ends[now] = ends
        self.episode_returns[now] = episode_returns
        if isinstance(columns, slice):
            self._num_uncounted += 1
            if self.row is not None:
                self.row += 1
        else:
            self.cursor[columns] += 1
            self.row = None

    @property
    def num_in_episode(self) -> np.ndarray:
        """The number of rows of each column in the running episode."""
        return self.cursor - self.episode_begin

    def end_episode(self, columns: Any) -> None:
        """Note that the next rows of these columns belong to another episode."""
        self.episode_begin[columns] = self.cursor[columns]

    def truncate(self, column: int) -> None:
        """Note that the running episode is not gone on with after its last complete row."""
        row, place = int(self.cursor[column]) - 1, self._places_of(column)
        if row >= self.episode_begin[column] and self.ends[row, place] == End.RUNNING:
            self.ends[row, place] = End.ABANDONED

    def discard(self, column: int) -> int:
        """Discard the rows of the running episode; return their number."""
        begin = int(self.episode_begin[column])
        num_discarded = int(self.cursor[column]) - begin
        if num_discarded:
            self.cursor[column] = begin
            self.row = None
        return num_discarded

    def add_columns(self, num_columns: int) -> None:
        """Make room for more agents."""
        self._grow(self.num_rows, num_columns)

    def add_rows(self, num_rows: int) -> None:
        """Make room for longer episodes."""
        self._grow(num_rows, self.num_columns)

    def _grow(self, num_rows: int, num_columns: int) -> None:
        self.obs.grow(num_rows + 1, num_columns)
        self.next_obs.grow(num_rows, num_columns)
        self.acts.grow(num_rows, num_columns)
        for name in ROW_FIELDS:
            old = getattr(self, name)
            larger = np.zeros((num_rows, num_columns), old.dtype)
            larger[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, larger)
        if num_columns > self.num_columns:
            more = np.zeros(num_columns - self.num_columns, np.int64)
            self.cursor = np.concatenate([self.cursor, more])
            self.episode_begin = np.concatenate([self.episode_begin, more])
            self.row = 0 if self.row == 0 else None
        self.num_rows, self.num_columns = num_rows, num_columns

    def take(
        self, num_rows: int | None, open_columns: np.ndarray, next_num_rows: int, num_kept: np.ndarray | None = None
    ) -> tuple[SampleBatch | None, int]:
        """Return the complete rows and begin the next fragment; also return the number of live rows.

        The batch is `[num_rows, columns]`, or as long as the longest column if that is longer or `num_rows` is None. It
        is None if nobody ever acted. The next fragment begins with the last `num_kept` rows of each column, the present
        observations, and the actions of the columns whose row is open.
        """
        if num_rows is not None and num_rows > self.num_rows:
            self.add_rows(num_rows)
        num_kept = np.zeros_like(self.cursor) if num_kept is None else num_kept.copy()
        given = self.cursor - num_kept
        episode_begin = np.maximum(self.episode_begin - given, 0)
        next_num_rows = max(next_num_rows, int(num_kept.max(initial=0)) + 1)
        old = {name: getattr(self, name) for name in ROW_FIELDS}
        old_obs, old_next_obs, old_acts = self.obs, self.next_obs, self.acts
        batch = None
        if old_acts.arrays is not None:
            batch = self.batch_of(max(int(given.max(initial=0)), num_rows or 0), ALL_COLUMNS, given)
        obs = old_obs.like(next_num_rows + 1, self.num_columns)
        next_obs, acts = (block.like(next_num_rows, self.num_columns) for block in (old_next_obs, old_acts))
        self._begin(next_num_rows, obs, next_obs, acts)
        depths = np.arange(int(num_kept.max(initial=0)) + 1)[:, None]
        if old_obs.arrays is not None:
            rows, columns = np.nonzero(depths <= num_kept)
            obs.write((rows, columns), old_obs.read((given[columns] + rows, columns)))
        num_acted = num_kept.copy()
        num_acted[open_columns] += 1
        rows, columns = np.nonzero(depths < num_acted)
        if len(rows):
            for block, old_block in ((next_obs, old_next_obs), (acts, old_acts)):
                block.write((rows, columns), old_block.read((given[columns] + rows, columns)))
            for name, array in old.items():
                getattr(self, name)[rows, columns] = array[given[columns] + rows, columns]
        self.cursor, self.episode_begin = num_kept, episode_begin
        self._most = int(num_kept.max(initial=0))
        self.row = 0 if not num_kept.any() else None
        return batch, int(given.sum())

    def batch_of(self, length: int, places: ColumnIndex, num_rows: np.ndarray) -> SampleBatch:
        """Return a trajectory `[length, columns]` of the first `num_rows` rows at some places."""
        is_live = np.arange(length)[:, None] < num_rows[None, :]  # [T, columns]
        ends = self.ends[:length, places]
        terminated, truncated = np.isin(ends, TERMINATED) & is_live, np.isin(ends, TRUNCATED) & is_live
        assert self._packing is not None
        assert self.obs.arrays is not None
        assert self.acts.arrays is not None
        assert self.next_obs.arrays is not None
        # An episode that continues, but not in the next row of its column, is cut there as by a time limit.
        is_last = np.zeros_like(is_live)
        is_last[:-1] = is_live[:-1] & ~is_live[1:]
        truncated |= is_last & ~terminated

        def given(array: np.ndarray) -> np.ndarray:
            """Return the rows of an array, with zeros in dead rows."""
            rows = array[:length, places]
            if is_live.all():
                return rows
            return np.where(is_live.reshape(*is_live.shape, *(1,) * (rows.ndim - 2)), rows, rows.dtype.type(0))

        next_obs = self._obs_treedef.unflatten([given(array) for array in self.next_obs.arrays])
        actions, policy_extras = self._packing.unpack([given(array) for array in self.acts.arrays])
        times = given(self.times)
        env_extras = PyTreeDict(
            termination=terminated.astype(np.float32),
            truncation=truncated.astype(np.float32),
            autoreset=(~is_live).astype(np.float32),
            ori_obs=next_obs,
            steps=times + is_live,
            t=times,
            episode=given(self.episodes),
            episode_return=given(self.episode_returns),
            end=given(self.ends),
            version=given(self.versions),
            logged=given(self.are_logged),
        )
        return SampleBatch(
            obs=self._obs_treedef.unflatten([given(array) for array in self.obs.arrays]),
            actions=actions,
            rewards=given(self.rewards),
            next_obs=next_obs,
            dones=(terminated | truncated).astype(np.float32),
            extras=PyTreeDict(policy_extras=policy_extras, env_extras=env_extras),
        )
