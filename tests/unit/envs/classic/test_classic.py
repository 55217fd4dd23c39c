"""What every classic-control environment keeps to, and how they are made by name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import classic
from rookery.envs.env import Env
from rookery.errors import InvalidInputError, ShapeError, UnknownNameError
from rookery.spaces import Discrete
from rookery.types import PyTreeDict

every_env = pytest.mark.parametrize("name", classic.names())


def assert_same(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def some_action(env: Env) -> jax.Array:
    return env.action_space.sample(jax.random.key(7))


def test_names_and_classes_belong_together() -> None:
    made = {name: type(classic.make(name)) for name in classic.names()}
    assert made == {
        "acrobot": classic.Acrobot,
        "cartpole": classic.CartPole,
        "mountain_car": classic.MountainCar,
        "mountain_car_continuous": classic.MountainCarContinuous,
        "pendulum": classic.Pendulum,
    }


def test_a_misspelt_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(UnknownNameError, match=r"'classic/cart_pole'.*'classic/cartpole'"):
        classic.make("cart_pole")


def test_arguments_reach_the_class_and_unknown_ones_are_named_beside_those_it_takes() -> None:
    env = classic.make("pendulum", gravity=9.81)
    assert isinstance(env, classic.Pendulum)
    assert env.gravity == 9.81
    with pytest.raises(InvalidInputError, match="classic/pendulum: unknown argument 'g'; it takes gravity"):
        classic.make("pendulum", g=9.81)
    with pytest.raises(InvalidInputError, match="classic/acrobot: unknown argument 'g'; it takes no arguments"):
        classic.make("acrobot", g=9.81)


@every_env
def test_the_time_limit_is_left_to_a_wrapper(name: str) -> None:
    env, shorter = classic.make(name), classic.make(name, episode_length=3)
    assert shorter.max_episode_steps == env.max_episode_steps
    state = env.reset(jax.random.key(0))
    for _ in range(4):
        state = shorter.step(state, some_action(env))
    assert state.done == 0.0
    assert "truncation" not in state.info


@every_env
def test_reset_and_step_give_the_same_tree_of_strong_float32(name: str) -> None:
    env = classic.make(name)
    first = jax.eval_shape(env.reset, jax.random.key(0))
    after = jax.eval_shape(env.step, first, some_action(env))
    for state in (first, after):
        assert state.obs.shape == env.obs_space.shape
        assert state.reward.shape == state.done.shape == ()
        assert all(leaf.dtype == np.float32 and not leaf.weak_type for leaf in jax.tree.leaves(state))
    assert jax.tree.structure(first) == jax.tree.structure(after)


@every_env
def test_a_legacy_key_starts_the_same_episode_as_the_typed_one(name: str) -> None:
    env = classic.make(name)
    assert_same(env.reset(jax.random.PRNGKey(3)), env.reset(jax.random.key(3)))


@every_env
def test_different_keys_start_different_episodes(name: str) -> None:
    starts = jax.vmap(classic.make(name).reset)(jax.random.split(jax.random.key(0), 100)).obs
    assert len(np.unique(starts, axis=0)) == 100


@every_env
def test_a_step_depends_on_the_simulator_state_alone_and_keeps_what_wrappers_stored(name: str) -> None:
    env = classic.make(name)
    state = env.reset(jax.random.key(0))
    stored = PyTreeDict(steps=jnp.int32(12))
    altered = state.replace(
        obs=state.obs + 5, reward=jnp.float32(3), done=jnp.float32(1), info=stored, _internal=stored
    )
    expected, actual = env.step(state, some_action(env)), env.step(altered, some_action(env))
    assert_same(actual.replace(info=PyTreeDict(), _internal=PyTreeDict()), expected)
    assert_same((actual.info, actual._internal), (stored, stored))


@every_env
def test_mapped_steps_equal_single_ones(name: str) -> None:
    env = classic.make(name)
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 5))
    actions = jax.vmap(env.action_space.sample)(jax.random.split(jax.random.key(1), 5))
    mapped = jax.jit(jax.vmap(env.step))(states, actions)
    for i in range(5):
        single = env.step(jax.tree.map(lambda leaf, i=i: leaf[i], states), actions[i])
        jax.tree.map(
            lambda one, many, i=i: np.testing.assert_allclose(many[i], one, rtol=1e-5, atol=1e-6), single, mapped
        )


@every_env
def test_an_action_of_another_shape_or_kind_is_refused_while_tracing(name: str) -> None:
    env = classic.make(name)
    state = env.reset(jax.random.key(0))
    action = some_action(env)
    wrong_kind = action.astype(jnp.float32) if isinstance(env.action_space, Discrete) else action > 0
    with pytest.raises(ShapeError, match="action has shape"):
        jax.jit(env.step)(state, action[None])
    with pytest.raises(ShapeError, match="action has dtype"):
        jax.jit(env.step)(state, wrong_kind)


@every_env
def test_actions_of_any_width_of_their_kind_do_the_same(name: str) -> None:
    env = classic.make(name)
    state = env.reset(jax.random.key(0))
    is_discrete = isinstance(env.action_space, Discrete)
    action, widths = (jnp.int32(1), (np.uint8, np.int64)) if is_discrete else (jnp.ones((1,)), (np.float16, np.int32))
    for width in widths:
        assert_same(env.step(state, np.asarray(action).astype(width)), env.step(state, action))
