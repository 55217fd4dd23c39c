"""Recurrent cores against Flax, and against episodes run one by one."""

import itertools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError, ShapeError, UnknownNameError
from rookery.networks.recurrent import CELLS, RecurrentCore
from rookery.types import Array

T, B, F, SIZE = 12, 5, 4, 6
KINDS = sorted(CELLS)


@pytest.fixture(scope="module", params=KINDS)
def setting(request: pytest.FixtureRequest) -> tuple:
    core = RecurrentCore(request.param, SIZE)
    params = core.init(jax.random.key(0), F)
    inputs = jax.random.normal(jax.random.key(1), (T, B, F))
    starts = jax.random.bernoulli(jax.random.key(2), 0.3, (T, B)).astype(jnp.float32)
    carry = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(3), leaf.shape), core.initial_carry((B,)))
    return core, params, carry, inputs, starts


def max_difference(first: Any, second: Any) -> float:
    return max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), first, second)))


def test_unroll_equals_step_by_step(setting: tuple) -> None:
    core, params, carry, inputs, starts = setting
    last_carry, outputs = core.unroll(params, carry, inputs, starts)
    for t in range(T):
        carry, output = core.step(params, carry, inputs[t], starts[t])
        assert max_difference(output, outputs[t]) < 1e-5
    assert max_difference(carry, last_carry) < 1e-5


def episodes_alone(core: RecurrentCore, params: Any, carry: Any, inputs: Array, starts: np.ndarray) -> np.ndarray:
    """Run every episode by itself from the initial carry, except for one that was under way before the first step."""
    outputs = np.zeros((T, B, SIZE), np.float32)
    for env in range(B):
        borders = sorted({0, *np.flatnonzero(starts[:, env]).tolist(), T})
        for begin, end in itertools.pairwise(borders):
            first = jax.tree.map(lambda leaf, env=env: leaf[env], carry)
            if starts[begin, env]:
                first = core.initial_carry()
            _, outputs[begin:end, env] = core.unroll(params, first, inputs[begin:end, env], jnp.zeros(end - begin))
    return outputs


@pytest.fixture(scope="module")
def outputs_of_episodes_alone(setting: tuple) -> np.ndarray:
    core, params, carry, inputs, starts = setting
    return episodes_alone(core, params, carry, inputs, np.asarray(starts))


def test_unroll_equals_each_episode_run_alone_from_the_initial_carry(
    setting: tuple, outputs_of_episodes_alone: np.ndarray
) -> None:
    core, params, carry, inputs, starts = setting
    assert max_difference(core.unroll(params, carry, inputs, starts)[1], outputs_of_episodes_alone) < 1e-5


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_mask_shifted_by_one_step_is_noticed(
    setting: tuple, outputs_of_episodes_alone: np.ndarray, shift: int
) -> None:
    core, params, carry, inputs, starts = setting
    shifted = jnp.roll(starts, shift, axis=0)
    assert max_difference(core.unroll(params, carry, inputs, shifted)[1], outputs_of_episodes_alone) > 1e-2


def test_without_episode_starts_it_is_the_recurrent_layer_of_flax(setting: tuple) -> None:
    core, params, carry, inputs, _ = setting
    layer = nn.RNN(CELLS[core.kind](SIZE), time_major=True, return_carry=True)
    expected_carry, expected = layer.apply({"params": {"cell": params}}, inputs, initial_carry=carry)
    last_carry, outputs = core.unroll(params, carry, inputs, jnp.zeros((T, B)))
    assert max_difference(outputs, expected) < 1e-5
    assert max_difference(last_carry, expected_carry) < 1e-5


def test_no_gradient_flows_across_an_episode_start(setting: tuple) -> None:
    core, params, carry, inputs, _ = setting
    starts = jnp.zeros((T, B)).at[5].set(1.0)

    def last_outputs(carry, inputs):
        return jnp.sum(core.unroll(params, carry, inputs, starts)[1][-1])

    carry_gradient, inputs_gradient = jax.grad(last_outputs, argnums=(0, 1))(carry, inputs)
    assert max_difference(carry_gradient, jax.tree.map(jnp.zeros_like, carry)) == 0.0
    assert float(jnp.max(jnp.abs(inputs_gradient[:5]))) == 0.0
    assert float(jnp.min(jnp.max(jnp.abs(inputs_gradient[5:]), axis=-1))) > 0.0


@pytest.mark.parametrize("batch_shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_step_works_with_any_batch_shape(kind: str, batch_shape: tuple) -> None:
    core = RecurrentCore(kind, SIZE)
    params = core.init(jax.random.key(0), F)
    inputs = jax.random.normal(jax.random.key(1), (*batch_shape, F))
    carry, outputs = core.step(params, core.initial_carry(batch_shape), inputs, jnp.ones(batch_shape, bool))
    assert outputs.shape == (*batch_shape, SIZE)
    assert jax.tree.map(jnp.shape, carry) == jax.tree.map(jnp.shape, core.initial_carry(batch_shape))


def test_wrong_shapes_and_names_are_clear_errors() -> None:
    core = RecurrentCore("gru", SIZE)
    params = core.init(jax.random.key(0), F)
    with pytest.raises(ShapeError, match="episode_start has shape"):
        core.step(params, core.initial_carry((B,)), jnp.zeros((B, F)), jnp.zeros((B, 1)))
    with pytest.raises(ShapeError, match="initial_carry"):
        core.step(params, core.initial_carry(), jnp.zeros((B, F)), jnp.zeros(B))
    with pytest.raises(UnknownNameError, match=r"'lsmt'.*'lstm'"):
        RecurrentCore("lsmt", SIZE)
    with pytest.raises(InvalidInputError, match="size=0"):
        RecurrentCore("gru", 0)
