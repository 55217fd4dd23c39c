import urllib.error
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("gymnax")

import gymnax
from gymnax.environments import spaces as gymnax_spaces
from gymnax.environments.classic_control.cartpole import CartPole
from gymnax.environments.environment import Environment
from gymnax.utils import load_mnist

from rookery.envs.gymnax import WRONGLY_BOUNDED, GymnaxAdapter, make, names
from rookery.errors import InvalidInputError, ShapeError, UnknownNameError
from rookery.spaces import Box, Dict, Discrete, Space, Tuple
from rookery.types import PyTreeDict

NEEDS_DOWNLOAD = "MNISTBandit-bsuite"
OFFLINE_NAMES = [name for name in names() if name != NEEDS_DOWNLOAD]


@pytest.fixture
def library_promotion() -> Iterator[None]:
    """For tests that call gymnax itself, which is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def types_of(tree: Any) -> list[tuple]:
    leaves, structure = jax.tree.flatten(tree)
    return [structure, *((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in leaves)]


def dtypes_of(space: Space) -> Any:
    return jax.tree.map(lambda leaf: leaf.dtype, jax.eval_shape(space.sample, jax.random.key(0)))


@pytest.mark.parametrize("name", OFFLINE_NAMES)
def test_every_env_keeps_its_tree_its_dtypes_and_its_spaces(name: str) -> None:
    env = make(name)
    step = jax.jit(env.step)
    state = first = jax.jit(env.reset)(jax.random.key(0))
    for action_key in jax.random.split(jax.random.key(1), 3):
        assert env.obs_space.contains(state.obs)
        assert jax.tree.map(lambda leaf: leaf.dtype, state.obs) == dtypes_of(env.obs_space)
        state = step(state, env.action_space.sample(action_key))
    assert types_of(state) == types_of(first)
    assert not any(getattr(leaf, "weak_type", False) for leaf in jax.tree.leaves(state))
    assert state.reward.dtype == state.done.dtype == state.info.truncation.dtype == jnp.float32
    assert state.reward.shape == state.done.shape == ()


@pytest.mark.parametrize("name", ["MemoryChain-bsuite", "MetaMaze-misc", "GaussianBandit-misc", "UmbrellaChain-bsuite"])
@pytest.mark.usefixtures("library_promotion")
def test_observations_of_a_wrongly_bounded_env_do_leave_the_bounds_of_the_library(name: str) -> None:
    env = make(name)
    assert type(env.gymnax_env).__name__ in WRONGLY_BOUNDED

    @jax.jit
    def run(key: jax.Array) -> Any:
        action_keys = jax.random.split(key, 200)

        def advance(state: Any, action_key: jax.Array) -> tuple[Any, Any]:
            state = env.step(state, env.action_space.sample(action_key))
            return state, state.obs

        first = env.reset(key)
        return jnp.concatenate([first.obs[None], jax.lax.scan(advance, first, action_keys)[1]])

    observations = jax.vmap(run)(jax.random.split(jax.random.key(0), 8))
    declared = env.gymnax_env.observation_space(env.params)
    assert not declared.contains(observations)
    assert all(env.obs_space.contains(obs) for obs in np.asarray(observations).reshape(-1, *env.obs_space.shape))


@pytest.mark.parametrize("name", ["CartPole-v1", "FourRooms-misc", "UmbrellaChain-bsuite", "Pendulum-v1"])
@pytest.mark.usefixtures("library_promotion")
def test_a_trajectory_equals_that_of_the_library_with_the_same_keys(name: str) -> None:
    env = make(name)
    library_env, params = gymnax.make(name)
    num_steps = 30
    actions = jax.vmap(env.action_space.sample)(jax.random.split(jax.random.key(1), num_steps))

    @jax.jit
    def ours(key: jax.Array) -> Any:
        def advance(state: Any, action: jax.Array) -> tuple[Any, tuple]:
            state = env.step(state, action)
            return state, (state.obs, state.reward, state.done)

        return jax.lax.scan(advance, env.reset(key), actions)[1]

    reset_key, steps_key = jax.random.split(jax.random.key(0))
    obs, state = library_env.reset_env(reset_key, params)
    library_step = jax.jit(lambda key, state, action: library_env.step_env(key, state, action, params))
    np.testing.assert_array_equal(obs, env.reset(jax.random.key(0)).obs)
    for index, (obs, reward, done) in enumerate(zip(*ours(jax.random.key(0)), strict=True)):
        step_key = jax.random.fold_in(steps_key, index)
        expected_obs, state, expected_reward, terminated, _ = library_step(step_key, state, actions[index])
        np.testing.assert_allclose(obs, expected_obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(reward, expected_reward, rtol=1e-5)
        assert done == float(terminated | library_env.is_truncated(state, params))


def test_many_copies_run_under_jit_vmap_and_scan() -> None:
    env = make("FourRooms-misc")

    @jax.jit
    def run(keys: jax.Array) -> Any:
        def advance(states: Any, _: None) -> tuple[Any, Any]:
            states = jax.vmap(env.step)(states, jnp.ones(64, jnp.int32))
            return states, states.obs

        return jax.lax.scan(advance, jax.vmap(env.reset)(keys), None, length=6)[1]

    observations = np.asarray(run(jax.random.split(jax.random.key(0), 64)))
    assert observations.shape == (6, 64, 4)
    assert len(np.unique(observations[-1], axis=0)) > 5, "each copy must slip by its own random numbers"


def test_no_step_reuses_the_random_numbers_of_another() -> None:
    env = make("GaussianBandit-misc")
    step = jax.jit(env.step)
    state, rewards = jax.jit(env.reset)(jax.random.key(0)), []
    for _ in range(20):
        state = step(state, jnp.asarray(1))
        rewards.append(float(state.reward))
    assert len(set(rewards)) == 20


@pytest.mark.parametrize(("name", "limit"), [("Pendulum-v1", 200), ("Pendulum-v1", 5), ("BernoulliBandit-misc", 7)])
def test_the_time_limit_of_the_library_truncates(name: str, limit: int) -> None:
    env = make(name, episode_length=None if limit == 200 else limit)
    assert env.max_episode_steps == limit

    def advance(state: Any, action: jax.Array) -> tuple[Any, tuple]:
        state = env.step(state, action)
        return state, (state.done, state.info.truncation)

    actions = jax.vmap(env.action_space.sample)(jax.random.split(jax.random.key(1), limit))
    done, truncation = jax.jit(lambda key: jax.lax.scan(advance, env.reset(key), actions)[1])(jax.random.key(0))
    expected = [0.0] * (limit - 1) + [1.0]
    np.testing.assert_array_equal(done, expected)
    np.testing.assert_array_equal(truncation, expected)


def test_a_fall_terminates_and_is_no_truncation_even_on_the_last_step() -> None:
    longer = make("CartPole-v1")
    state, num_steps = longer.reset(jax.random.key(0)), 0
    step = jax.jit(longer.step)
    while not state.done:
        state, num_steps = step(state, jnp.asarray(1)), num_steps + 1
    assert state.info.truncation == 0.0
    assert 5 < num_steps < 20

    just_enough = make("CartPole-v1", episode_length=num_steps)
    state = just_enough.reset(jax.random.key(0))
    step = jax.jit(just_enough.step)
    for _ in range(num_steps):
        assert state.done == 0.0
        state = step(state, jnp.asarray(1))
    assert state.done == 1.0
    assert state.info.truncation == 0.0


def test_a_step_keeps_what_wrappers_keep_in_the_state() -> None:
    env = make("CartPole-v1")
    first = env.reset(jax.random.key(0))
    noted = first.replace(info=first.info.replace(steps=jnp.asarray(7)), _internal=PyTreeDict(counter=jnp.asarray(8)))
    stepped = env.step(noted, jnp.asarray(0))
    assert types_of(stepped) == types_of(noted)
    assert stepped.info.steps == 7
    assert stepped._internal.counter == 8


def test_typed_and_legacy_keys_start_the_same_episode() -> None:
    env = make("CartPole-v1")
    typed, legacy = env.reset(jax.random.key(3)), env.reset(jax.random.PRNGKey(3))
    np.testing.assert_array_equal(typed.obs, legacy.obs)
    assert jax.tree.structure(typed) == jax.tree.structure(legacy)


def test_actions_of_another_integer_width_are_taken_as_the_same() -> None:
    env = make("BernoulliBandit-misc")
    first = env.reset(jax.random.key(0))
    assert types_of(env.step(first, np.int8(1))) == types_of(env.step(first, jnp.asarray(1)))


def test_spaces_are_converted_with_the_dtypes_that_the_env_gives() -> None:
    assert make("CartPole-v1").obs_space == Box(
        np.array([-4.8, -np.inf, -0.41887903, -np.inf]), np.array([4.8, np.inf, 0.41887903, np.inf])
    )
    assert make("Catch-bsuite").obs_space == Box(0, 1, (10, 5), np.float32)
    assert make("FourRooms-misc").obs_space == Box(1, 11, (4,), np.int32)
    assert make("FrozenLake-misc").obs_space == Discrete(16)
    assert make("Pendulum-v1").action_space == Box(-2.0, 2.0, (1,))


class TwoEyes(CartPole):
    """CartPole that observes a dict with a tuple in it."""

    def observation_space(self, params: Any) -> gymnax_spaces.Dict:
        return gymnax_spaces.Dict(
            {
                "cart": gymnax_spaces.Box(-5.0, 5.0, (2,)),
                "pole": gymnax_spaces.Tuple([gymnax_spaces.Box(-1.0, 1.0, ()), gymnax_spaces.Box(-9.0, 9.0, ())]),
            }
        )

    def get_obs(self, state: Any, params: Any = None, key: Any = None) -> dict:
        return {"cart": jnp.stack([state.x, state.x_dot]), "pole": (state.theta, state.theta_dot)}


def test_trees_of_spaces_are_converted_for_an_env_wrapped_by_hand() -> None:
    env = GymnaxAdapter(TwoEyes())
    assert env.obs_space == Dict(
        {"cart": Box(-5.0, 5.0, (2,)), "pole": Tuple([Box(-1.0, 1.0, ()), Box(-9.0, 9.0, ())])}
    )
    state = env.step(env.reset(jax.random.key(0)), jnp.asarray(0))
    assert env.obs_space.contains(state.obs)
    assert state.obs.cart.shape == (2,)


def test_params_given_by_hand_are_used() -> None:
    library_env: Environment = CartPole()
    env = GymnaxAdapter(library_env, library_env.default_params.replace(max_steps_in_episode=2))
    assert env.max_episode_steps == 2
    state = env.step(env.step(env.reset(jax.random.key(0)), jnp.asarray(0)), jnp.asarray(1))
    assert state.info.truncation == 1.0


def test_arguments_reach_the_constructor_and_the_params() -> None:
    env = make("DeepSea-bsuite", size=5, unscaled_move_cost=0.5)
    assert env.obs_space.shape == (5, 5)
    assert env.max_episode_steps == 5
    assert env.params.unscaled_move_cost == 0.5


@pytest.mark.parametrize("argument", ["gravty", "max_steps_in_episode"])
def test_an_unknown_argument_is_refused_with_those_that_exist(argument: str) -> None:
    with pytest.raises(InvalidInputError, match=f"takes no argument '{argument}': it takes episode_length, .*gravity"):
        make("CartPole-v1", **{argument: 3})


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'gymnax/CartPole'\. Did you mean 'gymnax/CartPole-v1'"):
        make("CartPole")


def test_an_action_of_another_kind_is_refused() -> None:
    env = make("CartPole-v1")
    with pytest.raises(ShapeError, match="action has dtype float32"):
        env.step(env.reset(jax.random.key(0)), jnp.zeros(()))


def test_an_env_without_its_data_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_internet() -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(load_mnist, "load_mnist", no_internet)
    with pytest.raises(InvalidInputError, match=r"gymnax/MNISTBandit-bsuite could not load its data .*internet"):
        make(NEEDS_DOWNLOAD)


def test_the_bandit_of_images_runs_once_it_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.arange(256, dtype=np.uint8).astype(np.int8).reshape(4, 8, 8)  # as the library reads them: signed
    monkeypatch.setattr(load_mnist, "load_mnist", lambda: ((images, np.arange(4, dtype=np.uint8)), None))
    env = make(NEEDS_DOWNLOAD)
    for seed in range(8):
        state = env.reset(jax.random.key(seed))
        assert env.obs_space.contains(state.obs)
    assert env.step(state, jnp.asarray(0)).done == 1.0
