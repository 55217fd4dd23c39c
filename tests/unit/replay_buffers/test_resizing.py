"""Rings of another size: the newest rows stay, in order, and can be sampled."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.replay_buffers import PrioritizedBuffer, ReplayBuffer, UniformBuffer
from rookery.replay_buffers.resizing import resized, ring_size, with_rings_of

NUM_ENVS, LENGTH = 2, 2
ID = jax.ShapeDtypeStruct((), jnp.int32)


def buffer_of(buffer_class: type[ReplayBuffer], rows: int) -> ReplayBuffer:
    return buffer_class(capacity=rows * NUM_ENVS, num_envs=NUM_ENVS, sequence_length=LENGTH)


def written(buffer: ReplayBuffer, numbers: tuple[int, int]) -> object:
    """Return a state to which the envs have written this number of rows: 1, 2, ... and 101, 102, ..."""
    num_rows = max(numbers)
    rows = np.arange(1, num_rows + 1, dtype=np.int32)[:, None] + np.array([0, 100], np.int32)
    state = buffer.init(ID)
    for row, is_live in zip(rows, np.arange(num_rows)[:, None] < np.array(numbers), strict=True):
        state = jax.jit(buffer.add)(state, row[None], is_live[None])
    return state


def windows(buffer: ReplayBuffer, state: object) -> set[tuple[int, ...]]:
    sample = jax.jit(buffer.sample, static_argnums=2)(state, jax.random.key(3), 1024)
    return set(map(tuple, np.asarray(sample.sequence).T.tolist()))


def consecutive(first: int, last: int) -> set[tuple[int, int]]:
    return {(number, number + 1) for number in range(first, last)}


@pytest.mark.parametrize("buffer_class", [UniformBuffer, PrioritizedBuffer])
@pytest.mark.parametrize(
    ("numbers", "rows", "first"),
    [((3, 5), 9, (1, 101)), ((8, 5), 9, (4, 101)), ((7, 12), 11, (3, 108)), ((3, 5), 4, (1, 102))],
    ids=["larger", "one ring wrapped", "both wrapped", "smaller"],
)
def test_a_resized_buffer_has_the_newest_rows_in_order_and_takes_more(
    buffer_class: type[ReplayBuffer], numbers: tuple[int, int], rows: int, first: tuple[int, int]
) -> None:
    state = resized(written(buffer_of(buffer_class, 5), numbers), rows)
    buffer = buffer_of(buffer_class, rows)
    expected = jax.tree.leaves(buffer.init(ID))
    assert [leaf.shape for leaf in jax.tree.leaves(state)] == [leaf.shape for leaf in expected]
    last = (numbers[0], 100 + numbers[1])
    assert windows(buffer, state) == consecutive(first[0], last[0]) | consecutive(first[1], last[1])
    state = jax.jit(buffer.add)(state, np.array([[last[0] + 1, last[1] + 1]], np.int32))
    kept = [max(start, end + 2 - rows) for start, end in zip(first, last, strict=True)]
    assert windows(buffer, state) == consecutive(kept[0], last[0] + 1) | consecutive(kept[1], last[1] + 1)


def test_priorities_move_with_their_rows() -> None:
    small, large = buffer_of(PrioritizedBuffer, 5), buffer_of(PrioritizedBuffer, 9)
    state = written(small, (7, 4))
    first_of_env_1 = 1 * small.rows  # row 101, which is followed by 102
    errors = jnp.array([1e6], jnp.float32)
    state = small.update_priorities(state, jnp.array([first_of_env_1], jnp.int32), errors, jnp.float32(1.0))
    sample = large.sample(resized(state, large.rows), jax.random.key(0), 64)
    assert np.mean(np.asarray(sample.sequence[0]) == 101) > 0.9


def test_buffers_inside_of_a_tree_with_seeds_take_the_size_of_another() -> None:
    states = [written(buffer_of(PrioritizedBuffer, 5), numbers) for numbers in ((3, 5), (7, 6))]
    tree = {"seeds": jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), "other": jnp.zeros(3)}
    like = jax.eval_shape(lambda tree: jax.vmap(functools.partial(resized, rows=8))(tree["seeds"]), tree)
    fitted = with_rings_of(tree, {"seeds": like, "other": jnp.zeros(3)})
    assert ring_size(fitted["seeds"]) == 8
    alone = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(resized(state, 8) for state in states))
    jax.tree.map(np.testing.assert_array_equal, fitted["seeds"], alone)
