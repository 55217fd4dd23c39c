"""Critics: values against float64, how they see actions, and members of an ensemble that differ."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.networks.critic import ActorCriticsConfig, ActorCriticsNetwork, Critic
from rookery.networks.distributions import GaussianConfig
from rookery.networks.policy import TrunkConfig
from rookery.spaces import Box, Discrete, MultiDiscrete

OBS = Box(-3.0, 3.0, (3,))
UNEVEN = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32), (2,))
"""Bounds that are neither equal nor around 0."""


def normal(*shape: int, seed: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def small(**changes: Any) -> TrunkConfig:
    return TrunkConfig(**{"hidden_sizes": (8,), "core_size": 5, **changes})


def features_of(critic: Critic, params: Any, obs: Any) -> Any:
    batch_shape = obs.shape[:-1]
    return critic.trunk(params.trunk, obs, critic.trunk.initial_carry(batch_shape), jnp.ones(batch_shape))[0]


def test_the_value_is_that_of_the_layers_in_float64_on_observation_and_scaled_action() -> None:
    critic = Critic(OBS, UNEVEN, small())
    params = critic.init(jax.random.key(0))
    obs, actions = normal(4, 5, 3, seed=1), UNEVEN.sample(jax.random.key(2), (4, 5))
    values = critic(params, features_of(critic, params, obs), actions)
    layers = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params.head)
    scaled = np.asarray(actions, np.float64) / [2.0, 5.0] - [0.0, 1.0]
    inputs = np.concatenate([np.asarray(obs, np.float64), scaled], axis=-1)
    hidden = np.tanh(inputs @ layers["hidden_0"]["kernel"] + layers["hidden_0"]["bias"])
    expected = hidden @ layers["output"]["kernel"] + layers["output"]["bias"]
    np.testing.assert_allclose(values, expected[..., 0], atol=1e-5)


def test_the_bounds_of_an_action_are_seen_as_minus_one_and_one() -> None:
    critic = Critic(OBS, UNEVEN, small(hidden_sizes=()))
    params = critic.init(jax.random.key(0))
    kernel = jnp.array([0.0, 0.0, 0.0, 1.0, 100.0])[:, None]
    params = params.replace(head=params.head.replace(output=params.head.output.replace(kernel=kernel)))
    actions = jnp.array([[-2.0, 0.0], [2.0, 10.0], [0.0, 5.0], [-1.0, 7.5]])
    values = critic(params, normal(4, 3, seed=0), actions)
    np.testing.assert_allclose(values, [-101.0, 101.0, 0.0, -0.5 + 50.0], atol=1e-4)
    slopes = jax.grad(lambda actions: jnp.sum(critic(params, normal(4, 3, seed=0), actions)))(actions)
    np.testing.assert_allclose(slopes, np.broadcast_to([1 / 2, 100 / 5], (4, 2)), rtol=1e-5)


@pytest.mark.parametrize(
    ("space", "actions", "seen"),
    [
        (Box(-np.inf, np.inf, (1,)), [[7.0], [-30.0]], [7.0, -30.0]),
        (Box(4.0, 4.0, (1,)), [[4.0], [4.0]], [0.0, 0.0]),
        (Box(-3e38, 3e38, (1,)), [[3e38], [-1.5e38]], [1.0, -0.5]),
    ],
    ids=["unbounded", "constant", "huge"],
)
def test_actions_that_cannot_be_scaled_are_seen_as_finite_numbers(space: Box, actions: list, seen: list) -> None:
    critic = Critic(OBS, space, small(hidden_sizes=()))
    params = critic.init(jax.random.key(0))
    output = params.head.output.replace(kernel=jnp.array([0.0, 0.0, 0.0, 1.0])[:, None])
    values = critic(params.replace(head=params.head.replace(output=output)), jnp.zeros((2, 3)), jnp.array(actions))
    np.testing.assert_allclose(values, seen, rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (2, 3)])
@pytest.mark.parametrize("batch_shape", [(), (4, 5)])
def test_actions_of_any_shape_have_one_value_each(batch_shape: tuple, shape: tuple) -> None:
    space = Box(-1.0, 1.0, shape)
    critic = Critic(OBS, space, small())
    params = critic.init(jax.random.key(0))
    features = features_of(critic, params, normal(*batch_shape, 3, seed=0))
    values = [critic(params, features, space.sample(jax.random.key(seed), batch_shape)) for seed in (0, 1)]
    assert values[0].shape == batch_shape
    assert np.all(values[0] != values[1])


def test_the_value_of_a_discrete_action_is_its_entry_among_all() -> None:
    critic = Critic(OBS, Discrete(4, start=-2), small())
    params = critic.init(jax.random.key(0))
    features = normal(6, 3, seed=1)
    every = np.asarray(critic.of_all_actions(params, features))
    assert every.shape == (6, 4)
    actions = jnp.array([-2, -1, 0, 1, 1, -2], jnp.int32)
    np.testing.assert_array_equal(critic(params, features, actions), every[np.arange(6), np.asarray(actions) + 2])


def test_a_core_remembers_observations_and_the_action_comes_in_after_it() -> None:
    critic = Critic(OBS, UNEVEN, small(core="gru"))
    params = critic.init(jax.random.key(0))
    assert set(params.trunk) == {"layers", "core"}
    assert params.head.hidden_0.kernel.shape == (5 + 2, 8)
    first, second = normal(3, seed=1), normal(3, seed=2)
    _, carry = critic.trunk(params.trunk, first, critic.trunk.initial_carry(), jnp.ones(()))
    remembered, _ = critic.trunk(params.trunk, second, carry, jnp.zeros(()))
    fresh, _ = critic.trunk(params.trunk, second, carry, jnp.ones(()))
    values = [critic(params, features, jnp.array([0.5, 3.0])) for features in (remembered, fresh)]
    assert values[0].shape == ()
    assert values[0] != values[1]


def test_the_members_of_an_ensemble_start_at_different_places() -> None:
    config = ActorCriticsConfig(hidden_sizes=(8,), num_critics=3, gaussian=GaussianConfig(bounds="squash"))
    network = ActorCriticsNetwork(OBS, UNEVEN, config)
    params = network.init(jax.random.key(0))
    assert {leaf.shape[0] for leaf in jax.tree.leaves(params.critics)} == {3}
    features, actions = normal(6, 3, seed=1), UNEVEN.sample(jax.random.key(2), (6,))
    values = np.asarray(jax.vmap(lambda member: network.critic(member, features, actions))(params.critics))
    assert len(np.unique(values[:, 0])) == 3
    for name in ("hidden_0", "output"):
        kernels = params.critics.head[name].kernel
        assert all(np.all(kernels[one] != kernels[other]) for one, other in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("num_critics", [0, -1])
def test_an_ensemble_of_none_is_an_error(num_critics: int) -> None:
    with pytest.raises(InvalidInputError, match=f"num_critics={num_critics} must be an integer of at least 1"):
        ActorCriticsConfig(num_critics=num_critics)


def test_other_action_spaces_are_an_error_that_names_them() -> None:
    with pytest.raises(InvalidInputError, match=re.escape("MultiDiscrete([2, 3]): expected Box or Discrete")):
        Critic(OBS, MultiDiscrete([2, 3]))  # type: ignore[arg-type]
