"""What all replay buffers share: the ring that experience is written to, and the windows that are read from it."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, UInt32

from rookery.errors import InvalidInputError, ShapeError, check_count
from rookery.spaces import Shape
from rookery.types import Key, PyTreeData, PyTreeNode, as_one_key, pytree_field


class _Columns(NamedTuple):
    """Where a leaf lies in the rows of its dtype."""

    name: str
    dtype: str
    start: int
    stop: int
    shape: Shape


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """How the leaves of a transition lie side by side in one row per dtype.

    One gather then fetches all leaves of a dtype, and a row is in one place in memory: a large buffer is read at half
    the cost.
    """

    structure: Any
    columns: tuple[_Columns, ...]

    @classmethod
    def of(cls, transition: Any) -> "RowLayout":
        """Lay out transitions like this one; only its shapes and dtypes matter."""
        shapes = jax.eval_shape(lambda transition: transition, transition)
        paths_and_leaves, structure = jax.tree.flatten_with_path(shapes)
        if not paths_and_leaves:
            raise InvalidInputError(f"the transition {transition!r} holds no arrays: there is nothing to keep.")
        columns: list[_Columns] = []
        num_columns: dict[str, int] = {}
        for path, leaf in paths_and_leaves:
            name, dtype = jax.tree_util.keystr(path), leaf.dtype.name
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                raise InvalidInputError(f"transition{name} is a random key: keep its jax.random.key_data instead.")
            start = num_columns.get(dtype, 0)
            num_columns[dtype] = start + int(np.prod(leaf.shape, dtype=int))
            columns.append(_Columns(name, dtype, start, num_columns[dtype], leaf.shape))
        return cls(structure, tuple(columns))

    @property
    def num_columns(self) -> dict[str, int]:
        """How wide the row of each dtype is."""
        return {columns.dtype: columns.stop for columns in self.columns}

    def leaves_of(self, transitions: Any, num_envs: int) -> list[Array]:
        """Return the leaves of transitions `[T, B, ...]`; raise if one of them does not fit."""
        paths_and_leaves, structure = jax.tree.flatten_with_path(transitions)
        if structure != self.structure:
            given = {jax.tree_util.keystr(path) for path, _ in paths_and_leaves}
            expected = {columns.name for columns in self.columns}
            missing, unknown = ", ".join(sorted(expected - given)), ", ".join(sorted(given - expected))
            raise ShapeError(
                f"the transitions are not a tree like that given to init: missing are {missing or 'none'}, unknown are "
                f"{unknown or 'none'}; got {structure}, expected {self.structure}."
            )
        leaves = [jnp.asarray(leaf) for _, leaf in paths_and_leaves]
        num_rows = leaves[0].shape[:1]
        for leaf, columns in zip(leaves, self.columns, strict=True):
            expected_shape = (*(num_rows or "T"), num_envs, *columns.shape)
            if leaf.shape != expected_shape or leaf.dtype != columns.dtype:
                raise ShapeError(
                    f"transitions{columns.name} is {leaf.dtype}[{', '.join(map(str, leaf.shape))}]; expected "
                    f"{columns.dtype}[{', '.join(map(str, expected_shape))}]: time as in the first leaf, envs, "
                    "then the shape given to init."
                )
        return leaves

    def pack(self, leaves: list[Array]) -> dict[str, Array]:
        """Lay leaves `[T, B, ...]` side by side: `[T, B, columns]` for each dtype."""
        parts: dict[str, list[Array]] = {}
        for leaf, columns in zip(leaves, self.columns, strict=True):
            parts.setdefault(columns.dtype, []).append(leaf.reshape(*leaf.shape[:2], columns.stop - columns.start))
        return {dtype: jnp.concatenate(leaves, axis=-1) for dtype, leaves in parts.items()}

    def unpack(self, rows: dict[str, Array]) -> Any:
        """Take rows `[L, N, columns]` apart into the tree that they were made of, with leaves `[L, N, ...]`."""
        leaves = [
            rows[columns.dtype][..., columns.start : columns.stop].reshape(
                *rows[columns.dtype].shape[:-1], *columns.shape
            )
            for columns in self.columns
        ]
        return jax.tree.unflatten(self.structure, leaves)


class ReplayState(PyTreeData):
    """What a buffer holds: arrays lead with the axis of the envs `[B]`, scalars are the same on all devices."""

    storage: dict[str, Array]
    """A ring of R rows per env for each dtype, `[B, R, columns]`."""
    layout: RowLayout = pytree_field(static=True)
    head: Array
    """The row of the ring that is written next."""
    num_rows: Array
    """How many rows of each env have been written, up to R."""
    priorities: Any = None


class ReplaySample(PyTreeData):
    """Windows drawn from a buffer, N of them."""

    sequence: Any
    """Consecutive rows, time-major like a trajectory: leaves `[L, N, ...]`."""
    indexes: Int32[Array, " N"]
    """Which windows these are, for `update_priorities`: `env * R + row` of their first row."""
    probabilities: Float[Array, " N"]
    """How likely each was to be drawn, on this device."""


class ReplayBuffer(PyTreeNode, ABC):
    """Keeps the latest transitions of each env and draws windows of consecutive ones, with replacement.

    A window holds `sequence_length` rows of one env that were written one after the other. It may cross the border of
    an episode, which is for the learner to mask. All methods work under `jit`, `vmap` and `scan`.

    The state is written in place where it is donated or carried by a loop, provided that one step of a compiled program
    adds first and draws afterwards: for the rows that were drawn before an `add`, XLA would keep a copy of the whole.
    """

    capacity: int = pytree_field(static=True)
    """Transitions kept, those of all envs together; what does not divide by `num_envs` is left unused."""
    num_envs: int = pytree_field(static=True)
    sequence_length: int = pytree_field(static=True, default=1)

    def __post_init__(self) -> None:
        for name in ("capacity", "num_envs", "sequence_length"):
            check_count(name, getattr(self, name))
        if self.rows < self.sequence_length:
            raise InvalidInputError(
                f"capacity={self.capacity} keeps {self.rows} rows of each of num_envs={self.num_envs}, fewer than "
                f"sequence_length={self.sequence_length}: use a capacity of at least "
                f"{self.num_envs * self.sequence_length}."
            )
        if self.capacity > 2**30:
            raise InvalidInputError(f"capacity={self.capacity} must be at most 2^30 on each device.")

    @property
    def rows(self) -> int:
        """How many rows of each env are kept: R."""
        return self.capacity // self.num_envs

    def init(self, transition: Any) -> ReplayState:
        """Make an empty buffer for transitions like this one, which has no time and env axes.

        It may consist of arrays or of `jax.ShapeDtypeStruct`; the dtypes are kept.
        """
        layout = RowLayout.of(transition)
        return ReplayState(
            storage={
                dtype: jnp.zeros((self.num_envs, self.rows, num_columns), dtype)
                for dtype, num_columns in layout.num_columns.items()
            },
            layout=layout,
            head=jnp.zeros((), jnp.int32),
            num_rows=jnp.zeros((), jnp.int32),
        )

    def add(self, state: ReplayState, transitions: Any) -> ReplayState:
        """Append transitions `[T, B, ...]`, which continue those added before; the oldest make room."""
        leaves = state.layout.leaves_of(transitions, self.num_envs)
        num_added = leaves[0].shape[0]
        num_kept = min(num_added, self.rows)
        new = state.layout.pack([leaf[num_added - num_kept :] for leaf in leaves])
        first = (state.head + (num_added - num_kept) % self.rows) % self.rows

        def write(ring: Array, rows: Array) -> Array:
            rows = jnp.swapaxes(rows, 0, 1)  # [B, T, columns]
            if num_kept == 1:
                return jax.lax.dynamic_update_slice_in_dim(ring, rows, first, axis=1)
            places = (first + jnp.arange(num_kept, dtype=jnp.int32)) % self.rows
            return ring.at[:, places].set(rows, mode="promise_in_bounds", unique_indices=True)

        return state.replace(
            storage={dtype: write(ring, new[dtype]) for dtype, ring in state.storage.items()},
            head=(first + num_kept) % self.rows,
            num_rows=jnp.minimum(state.num_rows + num_kept, self.rows),
        )

    def num_windows(self, state: ReplayState) -> Int[Array, ""]:
        """Return how many windows can be drawn."""
        return self.num_envs * jnp.maximum(state.num_rows - (self.sequence_length - 1), 0)

    def can_sample(self, state: ReplayState) -> Bool[Array, ""]:
        """Tell whether at least one whole window has been written."""
        return self.num_windows(state) > 0

    @abstractmethod
    def sample(self, state: ReplayState, key: Key, batch_size: int) -> ReplaySample:
        """Draw `batch_size` windows; meaningless unless `can_sample`."""

    @abstractmethod
    def update_priorities(
        self,
        state: ReplayState,
        indexes: Int[Array, " N"],
        priorities: Float[Array, " N"],
        exponent: float | Float[Array, ""] = 0.6,
    ) -> ReplayState:
        """Draw the windows at these indexes of a sample from now on in proportion to `priorities ** exponent`."""

    def windows(self, state: ReplayState, indexes: Int[Array, " N"]) -> Any:
        """Read the windows at these indexes: leaves `[L, N, ...]`."""
        steps = jnp.arange(self.sequence_length, dtype=jnp.int32)[:, None]
        envs = jnp.broadcast_to(indexes // self.rows, (self.sequence_length, *indexes.shape))
        places = (indexes % self.rows)[None, :] + jnp.broadcast_to(steps, envs.shape)  # [L, N]
        places = jnp.where(places >= self.rows, places - self.rows, places)
        return state.layout.unpack(
            {dtype: ring.at[envs, places].get(mode="promise_in_bounds") for dtype, ring in state.storage.items()}
        )


def uniform_indexes(key: Key, batch_size: int, num_indexes: Int[Array, ""]) -> Int32[Array, " N"]:
    """Draw from `0..num_indexes - 1`, each equally likely; 0 if there are none.

    Random bits are scaled down by a multiplication. All 32 of them count: the chances of two indexes differ by at most
    2^-32, where those made of the 24 bits of a float32 would differ by 2^-24, a sixteenth for a million indexes.
    """
    bits = jax.random.bits(as_one_key(key), (batch_size,), jnp.uint32)
    return multiply_high(bits, num_indexes.astype(jnp.uint32)).astype(jnp.int32)


def multiply_high(left: UInt32[Array, "*N"], right: UInt32[Array, ""]) -> UInt32[Array, "*N"]:
    """Return the upper 32 of the 64 bits of the product, which JAX has no integers for: multiply in halves."""
    left_high, left_low = left >> 16, left & 0xFFFF
    right_high, right_low = right >> 16, right & 0xFFFF
    low_and_middle = left_high * right_low + (left_low * right_low >> 16)
    middle = left_low * right_high + (low_and_middle & 0xFFFF)
    return left_high * right_high + (low_and_middle >> 16) + (middle >> 16)
