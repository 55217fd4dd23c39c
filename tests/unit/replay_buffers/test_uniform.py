"""The frequencies of uniformly drawn windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rookery.replay_buffers import UniformBuffer

NUM_DRAWS = 100_000


@pytest.mark.parametrize("sequence_length", [1, 4])
@pytest.mark.parametrize(("capacity", "num_envs"), [(53, 1), (53, 3)])
@pytest.mark.parametrize("num_written", [5, 60, 401])
def test_every_window_is_equally_likely(capacity: int, num_envs: int, num_written: int, sequence_length: int) -> None:
    buffer = UniformBuffer(capacity=capacity, num_envs=num_envs, sequence_length=sequence_length)
    rows = np.arange(num_written * num_envs, dtype=np.int32).reshape(num_written, num_envs)
    state = buffer.init(jax.ShapeDtypeStruct((), jnp.int32))
    for part in np.array_split(rows, 3):
        state = buffer.add(state, part)
    sample = jax.jit(buffer.sample, static_argnums=2)(state, jax.random.key(num_written), NUM_DRAWS)
    num_kept = min(num_written, capacity // num_envs)
    first_starts = rows[num_written - num_kept : num_written - sequence_length + 1].ravel()
    starts = np.asarray(sample.sequence[0])
    counts = np.bincount(starts, minlength=rows.size)
    assert counts[first_starts].sum() == NUM_DRAWS
    assert scipy.stats.chisquare(counts[first_starts]).pvalue > 1e-4
    np.testing.assert_array_equal(sample.sequence, starts + np.arange(sequence_length)[:, None] * num_envs)
    np.testing.assert_allclose(sample.probabilities, 1.0 / len(first_starts), rtol=1e-6)


@pytest.mark.parametrize("lengths", [[0, 7, 1], [30, 2, 9, 0], [0, 0, 5], [1, 1, 1, 40, 1]])
def test_every_window_is_equally_likely_where_some_envs_have_more_rows(lengths: list[int]) -> None:
    num_envs, num_rows = len(lengths), max(lengths)
    buffer = UniformBuffer(capacity=20 * num_envs, num_envs=num_envs, sequence_length=2)
    rows = np.arange(num_rows * num_envs, dtype=np.int32).reshape(num_rows, num_envs)
    state = buffer.add(buffer.init(jnp.zeros((), jnp.int32)), rows, np.arange(num_rows)[:, None] < np.array(lengths))
    sample = jax.jit(buffer.sample, static_argnums=2)(state, jax.random.key(0), NUM_DRAWS)
    starts = np.concatenate([rows[max(length - 20, 0) : max(length - 1, 0), env] for env, length in enumerate(lengths)])
    counts = np.bincount(sample.sequence[0], minlength=rows.size)
    assert counts[starts].sum() == NUM_DRAWS
    assert scipy.stats.chisquare(counts[starts]).pvalue > 1e-4
    np.testing.assert_array_equal(sample.sequence[1], sample.sequence[0] + num_envs)
    np.testing.assert_allclose(sample.probabilities, 1.0 / len(starts), rtol=1e-6)


def test_successive_draws_do_not_know_of_each_other() -> None:
    buffer = UniformBuffer(capacity=12, num_envs=1)
    state = buffer.add(buffer.init(jnp.zeros((), jnp.int32)), jnp.arange(12, dtype=jnp.int32)[:, None])
    indexes = np.asarray(buffer.sample(state, jax.random.key(0), NUM_DRAWS).indexes)
    pairs = np.bincount(indexes[::2] * 12 + indexes[1::2], minlength=144)
    assert scipy.stats.chisquare(pairs).pvalue > 1e-4


def test_priorities_make_no_difference() -> None:
    buffer = UniformBuffer(capacity=12, num_envs=1)
    state = buffer.add(buffer.init(jnp.zeros(())), jnp.zeros((5, 1)))
    assert buffer.update_priorities(state, jnp.arange(5), jnp.ones(5), exponent=0.5) is state
