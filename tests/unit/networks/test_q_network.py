"""Q-networks: shapes, the dueling identity, distributions against float64, masks and first actions."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import RookeryError, ShapeError
from rookery.networks.q_network import HEADS, QNetwork, QNetworkConfig, outputs_of
from rookery.spaces import Box, Dict, Discrete
from rookery.types import PyTreeDict

OBS = Box(-1.0, 1.0, (3,))


def small(**changes: Any) -> QNetworkConfig:
    return QNetworkConfig(**{"hidden_sizes": (8, 6), "activation": "tanh", "core_size": 5, "num_atoms": 7, **changes})


def draw(space: Any, batch_shape: tuple = (), seed: int = 5) -> Any:
    return space.sample(jax.random.key(seed), batch_shape)


@pytest.mark.parametrize("core", [None, "lstm"])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_one_step_has_a_value_for_each_action(head: str, dueling: bool, core: str | None) -> None:
    network = QNetwork(OBS, Discrete(4), small(head=head, dueling=dueling, core=core))
    params = network.init(jax.random.key(0))
    for batch_shape in [(), (2, 3)]:
        carry = network.initial_carry(batch_shape)
        values, next_carry = network(params, draw(OBS, batch_shape), carry, jnp.ones(batch_shape))
        assert values.shape == (*batch_shape, 4)
        assert jax.tree.map(jnp.shape, next_carry) == jax.tree.map(jnp.shape, carry)
        features, _ = network.trunk(params.trunk, draw(OBS, batch_shape), carry, jnp.ones(batch_shape))
        assert network.head(params, features).shape == (*batch_shape, 4, 1 if head == "expected" else 7)


def test_the_values_of_distributions_are_their_means() -> None:
    outputs = np.random.default_rng(0).normal(size=(5, 4, 7))
    categorical = QNetwork(OBS, Discrete(4), small(head="categorical", min_value=-2.0, max_value=4.0))
    np.testing.assert_array_equal(categorical.atoms, [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0])
    expected = np.zeros((5, 4))
    for index in np.ndindex(5, 4):
        weights = np.exp(outputs[index])
        expected[index] = sum((atom - 2) * weight for atom, weight in enumerate(weights)) / weights.sum()
    np.testing.assert_allclose(categorical.values(jnp.float32(outputs)), expected, atol=1e-5)
    quantile = QNetwork(OBS, Discrete(4), small(head="quantile"))
    np.testing.assert_allclose(quantile.values(jnp.float32(outputs)), outputs.mean(axis=-1), atol=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_dueling_outputs_are_the_value_stream_plus_advantages_of_mean_zero(head: str) -> None:
    network = QNetwork(OBS, Discrete(4), small(head=head, dueling=True))
    params = network.init(jax.random.key(0))
    num_outputs = 1 if head == "expected" else 7
    features = np.random.default_rng(1).normal(size=(9, 8))

    def stream(name: str) -> np.ndarray:
        layers = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params.head[name])
        hidden = np.tanh(features @ layers["hidden_0"]["kernel"] + layers["hidden_0"]["bias"])
        return hidden @ layers["output"]["kernel"] + layers["output"]["bias"]

    value, advantages = stream("value"), stream("advantages").reshape(9, 4, num_outputs)
    assert value.shape == (9, num_outputs)
    outputs = np.asarray(network.head(params, jnp.float32(features)))
    np.testing.assert_allclose(outputs.mean(axis=1), value, atol=1e-5)
    centered = advantages - advantages.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs - value[:, None], centered, atol=1e-5)
    assert np.abs(centered).max() > 0.1


def test_the_streams_of_a_dueling_network_share_all_but_the_last_layer() -> None:
    params = QNetwork(OBS, Discrete(4), small(dueling=True)).init(jax.random.key(0))
    assert params.trunk.layers.hidden.hidden_0.kernel.shape == (3, 8)
    assert set(params.trunk.layers.hidden) == {"hidden_0"}
    for stream, num_outputs in (("value", 1), ("advantages", 4)):
        assert params.head[stream].hidden_0.kernel.shape == (8, 6)
        assert params.head[stream].output.kernel.shape == (6, num_outputs)


def test_the_best_action_is_the_highest_that_is_allowed() -> None:
    network = QNetwork(OBS, Discrete(3), small())
    values = jnp.array([[1.0, 3.0, 2.0], [1.0, jnp.nan, 2.0], [-7.0, -5.0, -6.0], [0.0, 2.0, 1.0]])
    mask = jnp.array([[1, 1, 1], [1, 0, 1], [1, 0, 0], [0, 0, 0]], jnp.int8)
    np.testing.assert_array_equal(network.best(values, PyTreeDict(action_mask=mask)), [1, 2, 0, 1])
    np.testing.assert_array_equal(network.best(values[:1], None), [1])
    # Less apart than a softmax would show.
    assert network.best(jnp.array([0.0, 1e-12, 0.0]), PyTreeDict(action_mask=jnp.ones(3))) == 1


def test_a_mask_that_does_not_fit_is_an_error_at_init() -> None:
    obs_space = Dict(seen=OBS, action_mask=Box(0, 1, (5,), np.int8))
    with pytest.raises(ShapeError, match=r"action mask has shape \[5\]; expected \[4\]"):
        QNetwork(obs_space, Discrete(4), small()).init(jax.random.key(0))


def test_indexes_count_from_the_first_action() -> None:
    network = QNetwork(OBS, Discrete(3, start=-4, dtype=np.int8), small())
    actions = network.action(jnp.arange(3, dtype=jnp.int32))
    np.testing.assert_array_equal(actions, [-4, -3, -2])
    assert actions.dtype == network.action_space.sample_dtype
    np.testing.assert_array_equal(network.index(actions), [0, 1, 2])


def test_outputs_of_one_action_carry_its_gradient_alone() -> None:
    outputs = jnp.asarray(np.random.default_rng(2).normal(size=(2, 3, 4, 5)), jnp.float32).at[0, 0, 1].set(jnp.inf)
    indexes = jnp.array([[0, 3, 1], [2, 2, 0]])
    chosen = outputs_of(outputs, indexes)
    gradient = np.asarray(jax.grad(lambda outputs: jnp.sum(2.0 * outputs_of(outputs, indexes)))(outputs))
    for row, column in np.ndindex(2, 3):
        np.testing.assert_array_equal(chosen[row, column], outputs[row, column, indexes[row, column]])
        expected = np.where(np.arange(4) == np.asarray(indexes)[row, column], 2.0, 0.0)
        np.testing.assert_array_equal(gradient[row, column], np.repeat(expected[:, None], 5, axis=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "categorical", "num_atoms": 1}, "num_atoms=1 must be at least 2"),
        ({"head": "quantile", "num_atoms": 0}, "num_atoms=0 must be an integer of at least 1"),
        ({"min_value": 3.0, "max_value": 3.0}, "min_value=3 must be below max_value=3"),
        ({"head": "categorial"}, "unknown head 'categorial'. Did you mean 'categorical'?"),
    ],
)
def test_a_shape_that_makes_no_sense_is_an_error(changes: dict, message: str) -> None:
    with pytest.raises(RookeryError, match=re.escape(message)):
        small(**changes)
