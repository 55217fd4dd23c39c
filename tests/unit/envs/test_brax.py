import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("brax")

import brax.envs

from rookery.envs.brax import BraxAdapter, make, names
from rookery.errors import InvalidInputError, ShapeError, UnknownNameError
from rookery.spaces import Box, Dict
from rookery.types import PyTreeDict


@pytest.fixture(scope="module")
def pendulum() -> BraxAdapter:
    return make("inverted_pendulum")


@pytest.fixture
def library_promotion() -> Iterator[None]:
    """For tests that call brax itself, which is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def types_of(tree: Any) -> list[tuple]:
    leaves, structure = jax.tree.flatten(tree)
    return [structure, *((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in leaves)]


@pytest.mark.usefixtures("library_promotion")
def test_a_trajectory_equals_that_of_the_library(pendulum: BraxAdapter) -> None:
    actions = jax.random.uniform(jax.random.key(1), (40, 1), minval=-1.0, maxval=1.0)

    def roll(reset: Callable, step: Callable, key: jax.Array) -> Any:
        def advance(state: Any, action: jax.Array) -> tuple[Any, tuple]:
            state = step(state, action)
            return state, (state.obs, jnp.asarray(state.reward), state.done)

        return jax.lax.scan(advance, reset(key), actions)[1]

    ours = jax.jit(lambda key: roll(pendulum.reset, pendulum.step, key))(jax.random.key(0))
    theirs = jax.jit(lambda key: roll(pendulum.brax_env.reset, pendulum.brax_env.step, key))(jax.random.key(0))
    for mine, reference in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-5)
    assert ours[2].max() == 1.0, "the pole must fall in this test"


def test_many_copies_run_under_jit_vmap_and_scan_and_stay_in_their_spaces(pendulum: BraxAdapter) -> None:
    @jax.jit
    def run(keys: jax.Array) -> Any:
        actions = jax.vmap(jax.vmap(pendulum.action_space.sample))(jax.random.split(jax.random.key(1), (5, 3)))

        def advance(states: Any, action: jax.Array) -> tuple[Any, Any]:
            states = jax.vmap(pendulum.step)(states, action)
            return states, states

        return jax.lax.scan(advance, jax.vmap(pendulum.reset)(keys), actions)[1]

    states = run(jax.random.split(jax.random.key(0), 3))
    assert states.obs.shape == (5, 3, 4)
    assert all(pendulum.obs_space.contains(obs) for obs in np.asarray(states.obs).reshape(-1, 4))
    assert len(np.unique(np.asarray(states.obs[0]), axis=0)) == 3
    assert states.reward.dtype == states.done.dtype == jnp.float32


@pytest.mark.parametrize("name", ["inverted_pendulum", "fast", "reacher"])
def test_reset_and_step_give_the_same_tree_and_dtypes(name: str) -> None:
    env = make(name)
    reset = jax.eval_shape(env.reset, jax.random.key(0))
    step = jax.eval_shape(env.step, reset, jnp.zeros(env.action_space.shape))
    assert types_of(reset) == types_of(step)


def test_a_step_keeps_what_wrappers_keep_in_the_state() -> None:
    env = make("fast")
    first = env.reset(jax.random.key(0))
    noted = first.replace(info=first.info.replace(steps=jnp.asarray(7)), _internal=PyTreeDict(counter=jnp.asarray(8)))
    stepped = env.step(noted, jnp.zeros(1))
    assert types_of(stepped) == types_of(noted)
    assert stepped.info.steps == 7
    assert stepped._internal.counter == 8


def test_typed_and_legacy_keys_start_the_same_episode(pendulum: BraxAdapter) -> None:
    reset = jax.jit(pendulum.reset)
    np.testing.assert_array_equal(reset(jax.random.key(7)).obs, reset(jax.random.PRNGKey(7)).obs)


def test_hopper_reports_the_metrics_of_the_library_in_float32() -> None:
    env = make("hopper")
    state = jax.jit(lambda key: env.step(env.reset(key), jnp.zeros(3)))(jax.random.key(0))
    assert set(state.info.metrics) == {"reward_ctrl", "reward_forward", "reward_healthy", "x_position", "x_velocity"}
    assert all(metric.dtype == jnp.float32 for metric in state.info.metrics.values())
    assert env.obs_space == Box(-np.inf, np.inf, (11,))
    assert env.action_space == Box(-1.0, 1.0, (3,))
    np.testing.assert_allclose(
        state.reward, sum(state.info.metrics[part] for part in ("reward_ctrl", "reward_forward", "reward_healthy"))
    )


def test_dict_observations_have_a_dict_space() -> None:
    env = make("fast", obs_mode="dict_pixels_state")
    assert env.obs_space == Dict(
        {
            "state": Box(-np.inf, np.inf, (2,)),
            "pixels/view_0": Box(-np.inf, np.inf, (4, 4, 3)),
            "pixels/view_1": Box(-np.inf, np.inf, (4, 4, 3)),
        }
    )
    state = env.step(env.reset(jax.random.key(0)), jnp.ones(1))
    assert env.obs_space.contains(state.obs)
    assert state.obs.state[1] > 0.0


def test_the_time_limit_is_that_of_the_library_or_the_one_asked_for(pendulum: BraxAdapter) -> None:
    assert pendulum.max_episode_steps == 1000
    assert make("fast", episode_length=50).max_episode_steps == 50
    assert BraxAdapter(brax.envs.get_environment("fast")).max_episode_steps == 1000


def test_arguments_go_to_the_library() -> None:
    assert make("inverted_pendulum", backend="spring", n_frames=3).brax_env.backend == "spring"


def test_an_unknown_argument_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidInputError, match=r"hopper takes no argument 'bakend': it takes backend, .*n_frames"):
        make("hopper", bakend="spring")


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'brax/hoper'\. Did you mean 'brax/hopper'"):
        make("hoper")


def test_names_are_those_of_the_library() -> None:
    assert {"ant", "hopper", "humanoid", "inverted_pendulum"} <= set(names())
    assert "fast" in names()


def test_an_env_that_the_installed_jax_cannot_step_is_refused_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_step(self: Any, state: Any, action: Any) -> Any:
        raise TypeError("clip() got an unexpected keyword argument 'a_min'")

    monkeypatch.setattr(brax.envs.fast.Fast, "step", broken_step)
    with pytest.raises(InvalidInputError, match=r"brax/fast cannot be stepped: .*'a_min'"):
        make("fast")


def test_an_action_of_another_shape_is_refused(pendulum: BraxAdapter) -> None:
    state = jax.eval_shape(pendulum.reset, jax.random.key(0))
    with pytest.raises(ShapeError, match="action"):
        jax.eval_shape(pendulum.step, state, jnp.zeros(2))


def test_importing_the_adapter_prints_nothing_and_rendering_needs_no_display() -> None:
    program = """
import jax, numpy
from rookery.envs.brax import make
env = make("inverted_pendulum")
frame = env.render(jax.jit(env.reset)(jax.random.key(0)))
assert frame.shape[2] == 3 and frame.dtype == numpy.uint8 and frame.std() > 0
"""
    environment = {**os.environ, "MUJOCO_GL": "egl", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    if "OpenGL" in run.stderr:
        pytest.skip("no OpenGL here")
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
