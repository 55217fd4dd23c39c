"""Policy and value networks: what they share, what they remember, and how they begin."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.networks.actor_critic import ActorCriticConfig, ActorCriticNetwork
from rookery.networks.policy import PolicyNetwork
from rookery.spaces import Box, Dict, Discrete

OBS_SPACE = Box(-1.0, 1.0, (3,))
NUM_STEPS, NUM_ENVS = 5, 2


def make_network(**changes: Any) -> ActorCriticNetwork:
    config = ActorCriticConfig(**{"hidden_sizes": (6,), "core_size": 4, "output_init_scale": 1.0, **changes})
    return ActorCriticNetwork(OBS_SPACE, Discrete(3), config)


def make_trajectory() -> tuple[Any, Any]:
    """Return observations, and starts of episodes that differ between the envs."""
    generator = np.random.default_rng(0)
    starts = np.zeros((NUM_STEPS, NUM_ENVS))
    starts[2, 0] = starts[3, 1] = 1.0
    return jnp.asarray(generator.normal(size=(NUM_STEPS, NUM_ENVS, 3)), jnp.float32), jnp.asarray(starts, jnp.float32)


@pytest.mark.parametrize(("core", "shared"), [(None, False), (None, True), ("gru", False), ("lstm", True)])
def test_unrolling_equals_going_step_by_step(core: str | None, shared: bool) -> None:
    network = make_network(core=core, shared=shared)
    params = network.init(jax.random.key(0))
    obs, starts = make_trajectory()
    first_carry = jax.tree.map(lambda leaf: leaf + 0.5, network.initial_carry((NUM_ENVS,)))
    distribution, values, last_carry = network.unroll(params, obs, first_carry, starts)
    assert values.shape == (NUM_STEPS, NUM_ENVS)
    carry = first_carry
    for step in range(NUM_STEPS):
        one, value, carry = network(params, obs[step], carry, starts[step])
        actions = jnp.array([1, 2])
        np.testing.assert_allclose(value, values[step], atol=1e-6)
        np.testing.assert_allclose(
            one.log_prob(actions), distribution.log_prob(jnp.tile(actions, (NUM_STEPS, 1)))[step], atol=1e-6
        )
    jax.tree.map(lambda leaf, last: np.testing.assert_allclose(leaf, last, atol=1e-6), carry, last_carry)


@pytest.mark.parametrize("core", [None, "gru"])
def test_a_shared_trunk_is_trained_by_both_heads_and_separate_ones_by_their_own(core: str | None) -> None:
    obs, starts = make_trajectory()
    for shared in (False, True):
        network = make_network(core=core, shared=shared)
        params = network.init(jax.random.key(0))

        def value(params: Any, network: ActorCriticNetwork = network) -> Any:
            return jnp.sum(network.unroll(params, obs, network.initial_carry((NUM_ENVS,)), starts)[1])

        gradients = jax.grad(value)(params)
        moves_the_policy = any(np.any(leaf != 0.0) for leaf in jax.tree.leaves(gradients.policy.trunk))
        assert moves_the_policy == shared
        assert ("trunk" in params.value) != shared
        assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(gradients.policy.head))


def test_policy_and_value_begin_with_different_weights() -> None:
    params = make_network(core="lstm").init(jax.random.key(0))
    pairs = list(zip(jax.tree.leaves(params.policy.trunk), jax.tree.leaves(params.value.trunk), strict=True))
    assert pairs
    for policy_leaf, value_leaf in pairs:
        is_bias = np.all(policy_leaf == 0.0)
        assert is_bias or not np.any(policy_leaf == value_leaf)


def test_the_policy_alone_is_the_policy_of_the_pair() -> None:
    network = make_network()
    params = network.init(jax.random.key(0))
    policy = PolicyNetwork(OBS_SPACE, Discrete(3), network.config)
    obs, actions = make_trajectory()[0], jnp.ones((NUM_STEPS, NUM_ENVS), jnp.int32)
    expected = policy(params.policy, obs)[0].log_prob(actions)
    np.testing.assert_array_equal(network(params, obs)[0].log_prob(actions), expected)


def test_the_first_policy_is_nearly_uniform_and_the_first_values_are_not_all_alike() -> None:
    network = make_network(output_init_scale=0.01)
    distribution, values, _ = network(network.init(jax.random.key(0)), make_trajectory()[0])
    np.testing.assert_allclose(distribution.entropy(), np.log(3), atol=1e-3)
    assert np.std(values) > 0.01


def test_a_mask_forbids_actions_and_leaves_the_value_alone() -> None:
    space = Dict(position=OBS_SPACE, action_mask=Box(0, 1, (3,), np.int8))
    network = ActorCriticNetwork(space, Discrete(3), ActorCriticConfig(hidden_sizes=(4,)))
    params = network.init(jax.random.key(0))

    def look(mask: list[int]) -> tuple[Any, Any]:
        obs = {"position": jnp.ones((1, 3)), "action_mask": jnp.array([mask], jnp.int8)}
        distribution, values, _ = network(params, obs)
        return np.exp(distribution.log_prob(jnp.array([1]))), values

    probability, value = look([1, 0, 1])
    assert probability == 0.0
    probability, same_value = look([1, 1, 1])
    assert probability > 0.1
    np.testing.assert_array_equal(value, same_value)
