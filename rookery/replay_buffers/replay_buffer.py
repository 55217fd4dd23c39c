"""The base of all replay buffers: a ring of transitions per env, and windows sampled from it."""

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32, UInt32

from rookery.errors import InvalidInputError, ShapeError, check_count
from rookery.packing import RowLayout
from rookery.types import Key, PyTree, PyTreeData, PyTreeNode, as_one_key, pytree_field


class ReplayState(PyTreeData):
    """The contents of a buffer: arrays start with the env axis `[B]`; scalars are the same on all devices.

    Every env writes its ring by itself, so the rings of envs that are absent at times contain fewer rows.
    """

    storage: dict[str, Array]
    """A ring of R rows per env for each dtype, `[B, R, columns]`."""
    layout: RowLayout = pytree_field(static=True)
    head: Array
    """The next row of the ring to write, for each env `[B]`."""
    num_rows: Array
    """The number of rows that the ring of each env contains, `[B]`; at most R."""
    priorities: Any = None


class ReplaySample(PyTreeData):
    """N windows sampled from a buffer."""

    sequence: PyTree
    """Consecutive rows, time-major like a trajectory: leaves `[L, N, ...]`."""
    indexes: Int32[Array, " N"]
    """The windows for `update_priorities`: `env * R + row` of their first row."""
    probabilities: Float[Array, " N"]
    """The probability of each window in the sampling distribution of this device."""


class ReplayBuffer(PyTreeNode, ABC):
    """Stores the latest transitions of each env and samples windows of consecutive ones with replacement.

    A window consists of `sequence_length` consecutive rows of one env. It may cross an episode boundary, which the
    learner has to mask. All methods work under `jit`, `vmap` and `scan`.

    XLA updates the state in place if it is donated or carried by a loop, and if each step of the program calls `add`
    before `sample`. In the other order XLA copies the whole buffer. It may also copy if it fuses `sample` with `add`:
    sample in a loop of its own (`rookery.control_flow.scan_any`).
    """

    capacity: int = pytree_field(static=True)
    """Number of transitions stored over all envs, rounded down to a multiple of `num_envs`."""
    num_envs: int = pytree_field(static=True)
    sequence_length: int = pytree_field(static=True, default=1)

    def __post_init__(self) -> None:
        for name in ("capacity", "num_envs", "sequence_length"):
            check_count(name, getattr(self, name))
        if self.rows < self.sequence_length:
            raise InvalidInputError(
                f"capacity={self.capacity} stores {self.rows} rows for each of num_envs={self.num_envs}, fewer than "
                f"sequence_length={self.sequence_length}: use a capacity of at least "
                f"{self.num_envs * self.sequence_length}."
            )
        if self.capacity > 2**30:
            raise InvalidInputError(f"capacity={self.capacity} must be at most 2^30 on each device.")

    @property
    def rows(self) -> int:
        """The number of rows stored per env: R."""
        return self.capacity // self.num_envs

    def init(self, transition: PyTree) -> ReplayState:
        """Make an empty buffer for transitions like this one, which has no time and env axes.

        Its leaves may be arrays or `jax.ShapeDtypeStruct`; the buffer keeps their dtypes.
        """
        layout = _layout_of(transition)
        return ReplayState(
            storage={
                dtype: jnp.zeros((self.num_envs, self.rows, width), dtype) for dtype, width in layout.widths.items()
            },
            layout=layout,
            head=jnp.zeros(self.num_envs, jnp.int32),
            num_rows=jnp.zeros(self.num_envs, jnp.int32),
        )

    def emptied(self, state: ReplayState, is_due: Bool[Array, ""]) -> ReplayState:
        """Return the state without rows if `is_due`; the storage stays as it is, so that nothing is copied."""
        head, num_rows = (jnp.where(is_due, 0, number) for number in (state.head, state.num_rows))
        return state.replace(head=head, num_rows=num_rows)

    def add(self, state: ReplayState, transitions: PyTree, is_live: ArrayLike | None = None) -> ReplayState:
        """Append transitions `[T, B, ...]`, which continue those added before; they replace the oldest of their env.

        `is_live` tells which of them to store, `[T, B]` or `[B]`; by default all. The others change nothing.
        """
        leaves = _checked_leaves(state.layout, transitions, self.num_envs)
        places, counts = self._places(state, leaves[0].shape[0], is_live)
        envs = jnp.arange(self.num_envs, dtype=jnp.int32)[:, None]
        new = state.layout.pack(leaves)

        def write(ring: Array, rows: Array) -> Array:
            rows = jnp.swapaxes(rows, 0, 1)  # [B, T, columns]
            return ring.at[envs, places].set(rows, mode="drop", unique_indices=True)

        return state.replace(
            storage={dtype: write(ring, new[dtype]) for dtype, ring in state.storage.items()},
            head=(state.head + counts) % self.rows,
            num_rows=jnp.minimum(state.num_rows + counts, self.rows),
        )

    def _places(
        self, state: ReplayState, num_rows: int, is_live: ArrayLike | None
    ) -> tuple[Int[Array, "B T"], Int[Array, " B"]]:
        """Return the rows of the ring that new rows are written to, and their number for each env.

        A row that is not stored has a place of its own beyond the ring, where nothing is written.
        """
        steps = jnp.broadcast_to(jnp.arange(num_rows, dtype=jnp.int32), (self.num_envs, num_rows))
        if is_live is None:
            counts = jnp.full(self.num_envs, num_rows, jnp.int32)
            numbers, is_stored = steps, steps >= num_rows - self.rows
        else:
            is_stored = _checked_mask(is_live, num_rows, self.num_envs).T  # [B, T]
            counts = jnp.sum(is_stored, axis=1, dtype=jnp.int32)
            numbers = jnp.cumsum(is_stored, axis=1, dtype=jnp.int32) - 1
            is_stored = is_stored & (numbers >= counts[:, None] - self.rows)
        places = (state.head[:, None] + numbers) % self.rows
        return jnp.where(is_stored, places, self.rows + steps), counts

    def num_windows(self, state: ReplayState) -> Int[Array, ""]:
        """Return the number of complete windows."""
        return jnp.sum(self.windows_per_env(state), dtype=jnp.int32)

    def windows_per_env(self, state: ReplayState) -> Int[Array, " B"]:
        """Return the number of complete windows of each env."""
        return jnp.maximum(state.num_rows - (self.sequence_length - 1), 0)

    def can_sample(self, state: ReplayState) -> Bool[Array, ""]:
        """Tell whether there is at least one complete window."""
        return self.num_windows(state) > 0

    @abstractmethod
    def sample(self, state: ReplayState, key: Key, batch_size: int) -> ReplaySample:
        """Sample `batch_size` windows; undefined unless `can_sample`."""

    @abstractmethod
    def update_priorities(
        self,
        state: ReplayState,
        indexes: Int[Array, " N"],
        priorities: Float[Array, " N"],
        exponent: float | Float[Array, ""] = 0.6,
    ) -> ReplayState:
        """From now on, sample the windows at `indexes` in proportion to `priorities ** exponent`."""

    def windows(self, state: ReplayState, indexes: Int[Array, " N"]) -> PyTree:
        """Read the windows at these indexes: leaves `[L, N, ...]`."""
        steps = jnp.arange(self.sequence_length, dtype=jnp.int32)[:, None]
        envs = jnp.broadcast_to(indexes // self.rows, (self.sequence_length, *indexes.shape))
        places = (indexes % self.rows)[None, :] + jnp.broadcast_to(steps, envs.shape)  # [L, N]
        places = jnp.where(places >= self.rows, places - self.rows, places)
        return state.layout.unpack(
            {dtype: ring.at[envs, places].get(mode="promise_in_bounds") for dtype, ring in state.storage.items()}
        )


def uniform_indexes(key: Key, batch_size: int, num_indexes: Int[Array, ""]) -> Int32[Array, " N"]:
    """Sample uniformly from `0..num_indexes - 1`; 0 if `num_indexes` is 0.

    Random bits are scaled down by a multiplication that uses all 32 of them: the probabilities of two indexes differ by
    at most 2^-32. With the 24 bits of a float32 they would differ by 2^-24, 6 % of 1 / 1,000,000 for a million indexes.
    """
    bits = jax.random.bits(as_one_key(key), (batch_size,), jnp.uint32)
    return multiply_high(bits, num_indexes.astype(jnp.uint32)).astype(jnp.int32)


def multiply_high(left: UInt32[Array, "*N"], right: UInt32[Array, ""]) -> UInt32[Array, "*N"]:
    """Return the upper 32 of the 64 bits of the product, computed in halves: JAX has no 64-bit integers by default."""
    left_high, left_low = left >> 16, left & 0xFFFF
    right_high, right_low = right >> 16, right & 0xFFFF
    low_and_middle = left_high * right_low + (left_low * right_low >> 16)
    middle = left_low * right_high + (low_and_middle & 0xFFFF)
    return left_high * right_high + (low_and_middle >> 16) + (middle >> 16)


def _layout_of(transition: PyTree) -> RowLayout:
    layout = RowLayout.of(jax.eval_shape(lambda transition: transition, transition))
    if not layout.columns:
        raise InvalidInputError(f"the transition {transition!r} has no arrays: there is nothing to store.")
    for column in layout.columns:
        if jnp.issubdtype(column.dtype, jax.dtypes.prng_key):
            raise InvalidInputError(f"transition{column.path} is a random key: store its jax.random.key_data instead.")
    return layout


def _checked_leaves(layout: RowLayout, transitions: PyTree, num_envs: int) -> list[Array]:
    """Return the leaves of transitions `[T, B, ...]`; raise if one of them does not match the layout."""
    paths_and_leaves, structure = jax.tree.flatten_with_path(transitions)
    if structure != layout.structure:
        given = {jax.tree_util.keystr(path) for path, _ in paths_and_leaves}
        expected = {column.path for column in layout.columns}
        missing, unknown = ", ".join(sorted(expected - given)), ", ".join(sorted(given - expected))
        raise ShapeError(
            f"the transitions are not a tree like that given to init: missing are {missing or 'none'}, unknown are "
            f"{unknown or 'none'}; got {structure}, expected {layout.structure}."
        )
    leaves = [jnp.asarray(leaf) for _, leaf in paths_and_leaves]
    num_rows = leaves[0].shape[:1]
    for leaf, column in zip(leaves, layout.columns, strict=True):
        expected_shape = (*(num_rows or "T"), num_envs, *column.shape)
        if leaf.shape != expected_shape or leaf.dtype != column.dtype:
            raise ShapeError(
                f"transitions{column.path} is {leaf.dtype}[{', '.join(map(str, leaf.shape))}]; expected "
                f"{column.dtype}[{', '.join(map(str, expected_shape))}]: time as in the first leaf, envs, "
                "then the shape given to init."
            )
    return leaves


def _checked_mask(is_live: ArrayLike, num_rows: int, num_envs: int) -> Bool[Array, "T B"]:
    """Return which rows to store; raise if `is_live` is neither for rows `[T, B]` nor for envs `[B]`."""
    mask = jnp.asarray(is_live)
    if mask.shape not in ((num_rows, num_envs), (num_envs,)) or mask.dtype != bool:
        raise ShapeError(
            f"is_live is {mask.dtype}[{', '.join(map(str, mask.shape))}]; expected bool[{num_rows}, {num_envs}], "
            f"for rows and envs, or bool[{num_envs}] for envs."
        )
    return jnp.broadcast_to(mask, (num_rows, num_envs))
