"""The ring against plain lists, the exact draw of indexes, and memory that does not grow with the capacity."""

import functools
from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError, ShapeError
from rookery.replay_buffers import PrioritizedBuffer, ReplayBuffer, UniformBuffer
from rookery.replay_buffers.replay_buffer import multiply_high, uniform_indexes
from rookery.sample_batch import SampleBatch
from rookery.types import PyTreeDict

BUFFERS = [UniformBuffer, PrioritizedBuffer]
ID = jax.ShapeDtypeStruct((), jnp.int32)


# As wholes: called as they are, each of their operations would be compiled for itself.
@jax.jit
def add(buffer: ReplayBuffer, state: Any, rows: Any, is_live: Any = None) -> Any:
    return buffer.add(state, rows, is_live)


@functools.partial(jax.jit, static_argnums=3)
def sample_from(buffer: ReplayBuffer, state: Any, key: jax.Array, batch_size: int) -> Any:
    return buffer.sample(state, key, batch_size)


@jax.jit
def update_priorities(buffer: ReplayBuffer, state: Any, indexes: jax.Array, errors: jax.Array) -> Any:
    return buffer.update_priorities(state, indexes, errors)


def ids(start: int, num_rows: int, num_envs: int) -> np.ndarray:
    """Name rows `start...` of every env by a number that no other row has: `[T, B]`."""
    return (np.arange(start, start + num_rows)[:, None] * num_envs + np.arange(num_envs)).astype(np.int32)


def contents(buffer: ReplayBuffer, state: Any) -> set[tuple[int, ...]]:
    """Return all windows that a few thousand draws find."""
    sequence = sample_from(buffer, state, jax.random.key(7), 4096).sequence
    return set(map(tuple, np.asarray(sequence).T.tolist()))


def expected_windows(model: list[deque[int]], sequence_length: int) -> set[tuple[int, ...]]:
    """Return the windows of plain lists: consecutive rows of one env."""
    return {
        tuple(rows[start : start + sequence_length])
        for rows in map(list, model)
        for start in range(len(rows) - sequence_length + 1)
    }


@pytest.mark.parametrize("buffer_class", BUFFERS)
@pytest.mark.parametrize(("capacity", "num_envs", "sequence_length"), [(23, 3, 1), (26, 2, 4), (8, 2, 4)])
def test_windows_are_those_of_plain_lists_after_adds_of_any_length(
    buffer_class: type[ReplayBuffer], capacity: int, num_envs: int, sequence_length: int
) -> None:
    buffer = buffer_class(capacity=capacity, num_envs=num_envs, sequence_length=sequence_length)
    model = [deque(maxlen=capacity // num_envs) for _ in range(num_envs)]
    state, written = buffer.init(ID), 0
    rng = np.random.default_rng(capacity)
    assert not buffer.can_sample(state)
    for length in [1, 1, 1, *rng.choice([1, 3, 14], 20)]:
        rows = ids(written, int(length), num_envs)
        written += len(rows)
        for env in range(num_envs):
            model[env].extend(rows[:, env].tolist())
        state = add(buffer, state, rows)
        expected = expected_windows(model, sequence_length)
        assert int(buffer.num_windows(state)) == len(expected)
        assert bool(buffer.can_sample(state)) == (len(expected) > 0)
        if expected:
            assert contents(buffer, state) == expected


@pytest.mark.parametrize("buffer_class", BUFFERS)
@pytest.mark.parametrize(
    ("capacity", "num_envs", "sequence_length"), [(23, 3, 1), (26, 2, 4), (8, 2, 4), (9, 1, 2), (45, 9, 3)]
)
def test_rows_that_are_not_live_leave_no_trace(
    buffer_class: type[ReplayBuffer], capacity: int, num_envs: int, sequence_length: int
) -> None:
    buffer = buffer_class(capacity=capacity, num_envs=num_envs, sequence_length=sequence_length)
    model: list[deque[int]] = [deque(maxlen=capacity // num_envs) for _ in range(num_envs)]
    state, written = buffer.init(ID), 0
    rng = np.random.default_rng(capacity)
    for turn, length in enumerate([1, 1, 3, *rng.choice([1, 3, 14], 20)]):
        rows = ids(written, int(length), num_envs)
        written += len(rows)
        # In turn: of some envs all rows, of some envs no row, of all envs some rows.
        is_live = rng.random((num_envs,) if turn % 2 else rows.shape) < rng.choice([0.0, 0.3, 0.9])
        is_stored = np.broadcast_to(is_live, rows.shape)
        for env in range(num_envs):
            model[env].extend(rows[is_stored[:, env], env].tolist())
        state = add(buffer, state, rows, is_live)
        expected = expected_windows(model, sequence_length)
        assert state.num_rows.tolist() == [len(kept) for kept in model]
        assert int(buffer.num_windows(state)) == len(expected)
        if expected:
            assert contents(buffer, state) == expected


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_a_mask_of_live_rows_changes_nothing(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(capacity=26, num_envs=2, sequence_length=3)
    one = other = another = buffer.init(ID)
    for turn in range(9):
        rows = ids(5 * turn, 5, 2)
        one, other = add(buffer, one, rows), add(buffer, other, rows, np.ones((5, 2), bool))
        another = add(buffer, another, rows, np.ones(2, bool))
    jax.tree.map(np.testing.assert_array_equal, one, other)
    jax.tree.map(np.testing.assert_array_equal, one, another)


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_lanes_that_idle_keep_their_rows(buffer_class: type[ReplayBuffer]) -> None:
    # Ten lanes: one plays an episode of 100 steps, nine play 5 steps.
    lengths = np.array([100] + [5] * 9)
    buffer = buffer_class(capacity=1000, num_envs=10)
    rows = jnp.asarray(ids(0, 100, 10))
    is_live = jnp.asarray(np.arange(100)[:, None] < lengths)

    def step(state: Any, lane_rows: Any) -> tuple[Any, None]:
        return buffer.add(state, *jax.tree.map(lambda leaf: leaf[None], lane_rows)), None

    state, _ = jax.jit(lambda state: jax.lax.scan(step, state, (rows, is_live)))(buffer.init(ID))
    assert state.num_rows.tolist() == lengths.tolist()
    assert contents(buffer, state) == {(number,) for number in np.asarray(rows)[np.asarray(is_live)].tolist()}


# The indexes that were drawn when one write position served all envs.
DRAWN = {
    UniformBuffer: [[28, 28, 26, 14, 27, 13], [27, 2, 27, 27, 16, 2], [32, 35, 27, 22, 4, 14]],
    PrioritizedBuffer: [[1, 2, 13, 15, 26, 27], [1, 3, 14, 16, 27, 29], [3, 12, 14, 25, 28, 33]],
}


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_where_all_rows_are_live_draws_are_those_of_one_position_for_all_envs(
    buffer_class: type[ReplayBuffer],
) -> None:
    buffer = buffer_class(capacity=40, num_envs=3, sequence_length=2)
    state, written, drawn = buffer.init(ID), 0, []
    for turn, length in enumerate([4, 1, 20]):
        state = add(buffer, state, ids(written, length, 3))
        written += length
        sample = sample_from(buffer, state, jax.random.key(turn), 6)
        state = update_priorities(buffer, state, sample.indexes, sample.sequence[0].astype(jnp.float32))
        drawn.append(sample.indexes.tolist())
    assert drawn == DRAWN[buffer_class]


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_indexes_say_which_env_and_row_a_window_starts_at(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(capacity=21, num_envs=2, sequence_length=3)
    state = add(buffer, buffer.init(ID), ids(0, 14, 2))
    sample = sample_from(buffer, state, jax.random.key(0), 100)
    times, envs = np.asarray(sample.sequence[0]) // 2, np.asarray(sample.sequence[0]) % 2
    np.testing.assert_array_equal(sample.indexes, envs * buffer.rows + times % buffer.rows)
    again = buffer.windows(state, sample.indexes)
    np.testing.assert_array_equal(again, sample.sequence)


TRANSITIONS = {
    "dict": {"pixels": jnp.zeros((4, 5), jnp.uint8), "done": jnp.zeros((), bool), "count": jnp.zeros(2, jnp.int32)},
    "sample_batch": SampleBatch(
        obs=PyTreeDict(position=jnp.zeros(3), mask=jnp.zeros(2, bool)),
        actions=jnp.zeros((), jnp.int32),
        rewards=jnp.zeros(()),
        extras=PyTreeDict(policy_extras=PyTreeDict(carry=(jnp.zeros((2, 2), jnp.bfloat16), jnp.zeros(1)))),
    ),
    "array": jnp.zeros((), jnp.float16),
    "shapes": [jax.ShapeDtypeStruct((3, 0), jnp.int8), (jax.ShapeDtypeStruct((2,), jnp.bfloat16),), None],
}


def random_rows(transition: Any, num_rows: int, num_envs: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(
            rng.integers(0, 2 if leaf.dtype == bool else 100, (num_rows, num_envs, *leaf.shape))
        ).astype(leaf.dtype),
        transition,
    )


@pytest.mark.parametrize("buffer_class", BUFFERS)
@pytest.mark.parametrize("name", TRANSITIONS)
def test_any_tree_comes_back_with_its_structure_dtypes_and_values(name: str, buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(capacity=10, num_envs=2, sequence_length=2)
    rows = random_rows(TRANSITIONS[name], 5, 2, seed=0)
    state = add(buffer, buffer.init(TRANSITIONS[name]), rows)
    sample = sample_from(buffer, state, jax.random.key(1), 9)
    envs, starts = np.asarray(sample.indexes) // 5, np.asarray(sample.indexes) % 5
    assert jax.tree.structure(sample.sequence) == jax.tree.structure(rows)
    for taken, leaf in zip(jax.tree.leaves(sample.sequence), jax.tree.leaves(rows), strict=True):
        assert taken.dtype == leaf.dtype
        expected = np.stack([np.asarray(leaf)[starts, envs], np.asarray(leaf)[starts + 1, envs]])
        np.testing.assert_array_equal(np.asarray(taken), expected)


def test_nan_and_infinity_are_kept_as_they_are() -> None:
    buffer = UniformBuffer(capacity=1, num_envs=1)
    row = jnp.asarray([[[jnp.nan, jnp.inf, -0.0]]])
    state = add(buffer, buffer.init(row[0, 0]), row)
    np.testing.assert_array_equal(sample_from(buffer, state, jax.random.key(0), 1).sequence, row)


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_a_batch_may_be_larger_than_what_is_stored(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(capacity=100, num_envs=1)
    state = add(buffer, buffer.init(ID), ids(0, 3, 1))
    sample = sample_from(buffer, state, jax.random.key(0), 1000)
    assert set(np.asarray(sample.sequence).ravel().tolist()) == {0, 1, 2}


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_adding_no_rows_changes_nothing(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(capacity=10, num_envs=2, sequence_length=2)
    state = add(buffer, buffer.init(ID), ids(0, 7, 2))
    same = add(buffer, state, ids(7, 0, 2))
    jax.tree.map(np.testing.assert_array_equal, same, state)


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_an_emptied_buffer_is_a_new_one_but_for_its_storage(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(capacity=10, num_envs=2, sequence_length=2)
    new = buffer.init(ID)
    state = add(buffer, new, ids(0, 7, 2))
    state = update_priorities(buffer, state, jnp.arange(2), jnp.array([3.0, jnp.nan]))
    emptied = buffer.emptied(state, jnp.bool_(True))
    jax.tree.map(np.testing.assert_array_equal, emptied.replace(storage=new.storage), new)
    jax.tree.map(np.testing.assert_array_equal, buffer.emptied(state, jnp.bool_(False)), state)


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_in_a_state_arrays_lead_with_the_envs_and_the_rest_are_scalars(buffer_class: type[ReplayBuffer]) -> None:
    state = buffer_class(capacity=50, num_envs=7).init(TRANSITIONS["sample_batch"])
    assert {leaf.shape[:1] for leaf in jax.tree.leaves(state.replace(priorities=None))} == {(7,)}
    assert {leaf.shape[:1] for leaf in jax.tree.leaves(state.priorities)} <= {(), (7,)}


def fill_and_draw(buffer: ReplayBuffer, key: jax.Array, offset: jax.Array) -> tuple[Any, Any]:
    """Add and draw by turns in one compiled loop, with a priority for whatever is drawn."""

    def turn(state: Any, step: jax.Array) -> tuple[Any, Any]:
        rows = offset + step * 6 + jnp.arange(6, dtype=jnp.int32).reshape(3, 2)
        state = buffer.add(state, rows)
        sample = buffer.sample(state, jax.random.fold_in(key, step), 8)
        state = buffer.update_priorities(state, sample.indexes, sample.sequence[0].astype(jnp.float32))
        return state, sample

    return jax.lax.scan(turn, buffer.init(ID), jnp.arange(10, dtype=jnp.int32))


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_three_seeds_at_once_are_three_single_ones(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(capacity=15, num_envs=2, sequence_length=2)
    run = functools.partial(fill_and_draw, buffer)
    keys, offsets = jax.random.split(jax.random.key(0), 3), jnp.asarray([0, 1000, 2000], jnp.int32)
    together = jax.jit(jax.vmap(run))(keys, offsets)
    for seed in range(3):
        alone = jax.jit(run)(keys[seed], offsets[seed])
        for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(one[seed], other, rtol=1e-6)


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_a_compiled_loop_does_what_single_calls_do(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(capacity=15, num_envs=2, sequence_length=2)
    key, state = jax.random.key(0), buffer.init(ID)
    looped, samples = jax.jit(functools.partial(fill_and_draw, buffer))(key, jnp.asarray(0, jnp.int32))
    for step in range(10):
        state = add(buffer, state, ids(step * 3, 3, 2))
        sample = sample_from(buffer, state, jax.random.fold_in(key, step), 8)
        state = update_priorities(buffer, state, sample.indexes, sample.sequence[0].astype(jnp.float32))
        np.testing.assert_array_equal(sample.sequence, samples.sequence[step])
    for one, other in zip(jax.tree.leaves(looped), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def memory(buffer: ReplayBuffer, form: str, num_added: int, is_masked: bool) -> tuple[Any, int]:
    """Compile adding and drawing with a donated state; return the compiler's account and the size of the state."""
    row = {"obs": jax.ShapeDtypeStruct((3,), jnp.float32), "action": jax.ShapeDtypeStruct((), jnp.int32)}

    def turn(step: Any, carry: Any) -> Any:
        state, key, total = carry
        rows = jax.tree.map(lambda leaf: jnp.ones((num_added, 1, *leaf.shape), leaf.dtype), row)
        state = buffer.add(state, rows, jnp.isfinite(total)[None] if is_masked else None)
        sample_key, key = jax.random.split(key)
        sample = buffer.sample(state, sample_key, 16)
        errors = jnp.sum(sample.sequence["obs"], axis=(0, 2))
        state = buffer.update_priorities(state, sample.indexes, errors)
        return state, key, total + jnp.sum(errors * sample.probabilities)

    def several(carry: Any) -> Any:
        return jax.lax.fori_loop(0, 3, turn, carry)

    def start(key: jax.Array) -> Any:
        return buffer.init(row), key, jnp.zeros(())

    program = {"once": functools.partial(turn, 0), "loop": several, "seeds": jax.vmap(several)}[form]
    keys = jax.random.split(jax.random.key(0), 2)
    carry = jax.eval_shape(jax.vmap(start), keys) if form == "seeds" else jax.eval_shape(start, keys[0])
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(carry[0]))
    return jax.jit(program, donate_argnums=0).lower(carry).compile().memory_analysis(), state_bytes


@pytest.mark.usefixtures("fast_programs")
@pytest.mark.parametrize("buffer_class", BUFFERS)
@pytest.mark.parametrize(
    ("form", "num_added", "sequence_length", "is_masked"),
    [("once", 1, 1, False), ("loop", 5, 2, False), ("seeds", 1, 1, False), ("once", 5, 2, True), ("loop", 1, 1, True)],
)
def test_a_donated_buffer_is_written_in_place_at_any_capacity(
    buffer_class: type[ReplayBuffer], form: str, num_added: int, sequence_length: int, is_masked: bool
) -> None:
    def memory_at(capacity: int) -> tuple[Any, int]:
        buffer = buffer_class(capacity=capacity, num_envs=1, sequence_length=sequence_length)
        return memory(buffer, form, num_added, is_masked)

    small, large = memory_at(10_000), memory_at(1_000_000)
    # A tree of a million has a few more levels to climb, each for the 16 windows of the sample.
    assert large[0].temp_size_in_bytes <= small[0].temp_size_in_bytes + 20_000
    assert large[0].alias_size_in_bytes >= large[1]


@pytest.mark.parametrize("num_indexes", [1, 2, 3, 1000, 65_537, 2**31 - 1])
def test_the_upper_half_of_a_product_is_exact(num_indexes: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 2**32, 10_000, dtype=np.uint64)
    numbers[:4] = [0, 1, 2**31, 2**32 - 1]
    high = multiply_high(jnp.asarray(numbers.astype(np.uint32)), jnp.asarray(num_indexes, jnp.uint32))
    np.testing.assert_array_equal(high, numbers * np.uint64(num_indexes) >> np.uint64(32))


def test_indexes_reach_all_of_many_millions() -> None:
    num_indexes = 2**30
    indexes = np.asarray(uniform_indexes(jax.random.key(0), 100_000, jnp.asarray(num_indexes, jnp.int32)))
    assert (np.bincount(indexes % 64, minlength=64) > 0).all()
    assert 0 <= indexes.min() < num_indexes // 1000 < num_indexes - num_indexes // 1000 < indexes.max() < num_indexes


def test_legacy_keys_are_accepted() -> None:
    buffer = UniformBuffer(capacity=10, num_envs=1)
    state = add(buffer, buffer.init(ID), ids(0, 10, 1))
    samples = [sample_from(buffer, state, key, 5).indexes for key in (jax.random.PRNGKey(3), jax.random.key(3))]
    np.testing.assert_array_equal(*samples)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 10, "num_envs": 4, "sequence_length": 3}, "stores 2 rows .* use a capacity of at least 12"),
        ({"capacity": 3, "num_envs": 4}, "stores 0 rows .* use a capacity of at least 4"),
        ({"capacity": 0, "num_envs": 1}, "capacity=0 must be an integer of at least 1"),
        ({"capacity": 10, "num_envs": 1, "sequence_length": 0}, "sequence_length=0 must be"),
        ({"capacity": 2**30 + 1, "num_envs": 1}, r"at most 2\^30"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        UniformBuffer(**settings)


@pytest.mark.parametrize(
    ("transitions", "message"),
    [
        ({"obs": np.zeros((5, 2, 3), np.float32)}, r"missing are \['done'\], unknown are none"),
        (
            {"obs": np.zeros((5, 2, 3), np.float32), "dones": np.zeros((5, 2), bool)},
            r"missing are \['done'\], unknown are \['dones'\]",
        ),
        (
            {"obs": np.zeros((5, 3, 3), np.float32), "done": np.zeros((5, 2), bool)},
            r"transitions\['obs'\] is float32\[5, 3, 3\]; expected float32\[5, 2, 3\]",
        ),
        (
            {"obs": np.zeros((5, 2, 3), np.float32), "done": np.zeros((5, 2, 1), bool)},
            r"transitions\['done'\] is bool\[5, 2, 1\]; expected bool\[5, 2\]",
        ),
        (
            {"obs": np.zeros((5, 2, 3), np.float32), "done": np.zeros((4, 2), bool)},
            r"transitions\['obs'\] is float32\[5, 2, 3\]; expected float32\[4, 2, 3\]",
        ),
        (
            {"obs": np.zeros((5, 2, 3), np.float32), "done": np.zeros((5, 2), np.float32)},
            r"transitions\['done'\] is float32\[5, 2\]; expected bool\[5, 2\]",
        ),
    ],
)
def test_transitions_that_do_not_fit_are_refused_by_the_name_of_the_leaf(transitions: Any, message: str) -> None:
    buffer = UniformBuffer(capacity=10, num_envs=2)
    state = buffer.init({"obs": jnp.zeros(3), "done": jnp.zeros((), bool)})
    with pytest.raises(ShapeError, match=message):
        buffer.add(state, transitions)


@pytest.mark.parametrize(
    ("is_live", "message"),
    [
        (np.ones((5, 3), bool), r"is_live is bool\[5, 3\]; expected bool\[5, 2\], for rows and envs, or bool\[2\]"),
        (np.ones(5, bool), r"is_live is bool\[5\]; expected bool\[5, 2\]"),
        (np.ones((5, 2), np.float32), r"is_live is float32\[5, 2\]; expected bool\[5, 2\]"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(is_live: np.ndarray, message: str) -> None:
    buffer = UniformBuffer(capacity=10, num_envs=2)
    with pytest.raises(ShapeError, match=message):
        buffer.add(buffer.init(ID), ids(0, 5, 2), is_live)


def test_a_transition_of_scalars_where_rows_were_expected_is_refused() -> None:
    buffer = UniformBuffer(capacity=10, num_envs=2)
    with pytest.raises(ShapeError, match=r"transitions is int32\[\]; expected int32\[T, 2\]"):
        buffer.add(buffer.init(ID), jnp.zeros((), jnp.int32))


@pytest.mark.parametrize(
    ("transition", "message"),
    [({}, "has no arrays"), ({"key": jax.random.key(0)}, r"transition\['key'\] is a random key")],
)
def test_transitions_that_cannot_be_kept_are_refused(transition: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        UniformBuffer(capacity=10, num_envs=2).init(transition)


@pytest.mark.parametrize("buffer_class", BUFFERS)
def test_an_empty_batch_is_refused(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(capacity=10, num_envs=1)
    with pytest.raises(InvalidInputError, match="batch_size=0"):
        buffer.sample(buffer.init(ID), jax.random.key(0), 0)
