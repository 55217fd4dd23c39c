"""Both mountain cars, by numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs.classic import MountainCar, MountainCarContinuous
from rookery.envs.classic.mountain_car import MountainCarState
from rookery.envs.env import Env, EnvState

VALLEY = -math.pi / 6
LEFT, COAST, RIGHT = jnp.int32(0), jnp.int32(1), jnp.int32(2)


def car_at(position: float, velocity: float) -> EnvState:
    state = MountainCarState(position=jnp.float32(position), velocity=jnp.float32(velocity))
    return MountainCar().reset(jax.random.key(0)).replace(env_state=state)


@pytest.mark.parametrize("env", [MountainCar(), MountainCarContinuous()])
def test_the_first_observation_is_the_first_state(env: Env) -> None:
    start = env.reset(jax.random.key(5))
    np.testing.assert_array_equal(start.obs, jnp.stack(jax.tree.leaves(start.env_state)))


@pytest.mark.parametrize(("action", "acceleration"), [(LEFT, -0.001), (COAST, 0.0), (RIGHT, 0.001)])
def test_at_the_bottom_of_the_valley_only_the_engine_acts(action: jax.Array, acceleration: float) -> None:
    after = MountainCar().step(car_at(VALLEY, 0), action)
    np.testing.assert_allclose(after.obs, [VALLEY + acceleration, acceleration], atol=1e-7)
    assert (after.reward, after.done) == (-1.0, 0.0)


def test_where_the_slope_is_steepest_gravity_pulls_with_0_0025() -> None:
    after = MountainCar().step(car_at(0, 0.01), COAST)
    np.testing.assert_allclose(after.obs, [0.0075, 0.0075], rtol=1e-6)


def test_the_wall_on_the_left_stops_the_car_and_the_one_on_the_right_does_not() -> None:
    left = MountainCar().step(car_at(-1.19, -0.06), LEFT).env_state
    assert (left.position, left.velocity) == (np.float32(-1.2), 0.0)
    right = MountainCar().step(car_at(0.59, 0.06), RIGHT).env_state
    assert right.position == np.float32(0.6)
    assert right.velocity > 0.06


def test_the_velocity_is_bounded_by_0_07() -> None:
    assert MountainCar().step(car_at(-0.9, 0.07), RIGHT).env_state.velocity == np.float32(0.07)
    assert MountainCar().step(car_at(0.0, -0.07), LEFT).env_state.velocity == np.float32(-0.07)


@pytest.mark.parametrize(("position", "velocity", "done"), [(0.48, 0.05, 1.0), (0.46, 0.03, 0.0), (0.58, -0.03, 0.0)])
def test_the_goal_is_half_and_not_to_roll_back(position: float, velocity: float, done: float) -> None:
    assert MountainCar().step(car_at(position, velocity), COAST).done == done


def test_a_goal_velocity_must_be_reached_too() -> None:
    assert MountainCar(goal_velocity=0.06).step(car_at(0.48, 0.05), COAST).done == 0.0
    assert MountainCarContinuous(goal_velocity=0.06).step(car_at(0.48, 0.05), jnp.zeros((1,))).done == 0.0


@pytest.mark.parametrize(
    ("action", "acceleration", "cost"),
    [(0.5, 0.00075, 0.025), (1.0, 0.0015, 0.1), (3.0, 0.0015, 0.9), (-3.0, -0.0015, 0.9)],
)
def test_a_continuous_action_is_clipped_in_its_effect_and_not_in_its_cost(
    action: float, acceleration: float, cost: float
) -> None:
    after = MountainCarContinuous().step(car_at(VALLEY, 0), jnp.array([action]))
    np.testing.assert_allclose(after.env_state.velocity, acceleration, atol=1e-8)
    np.testing.assert_allclose(after.reward, -cost, rtol=1e-6)


def test_the_continuous_goal_is_at_0_45_and_worth_100() -> None:
    after = MountainCarContinuous().step(car_at(0.43, 0.05), jnp.array([1.0]))
    assert after.done == 1.0
    np.testing.assert_allclose(after.reward, 99.9, rtol=1e-6)
    assert MountainCarContinuous().step(car_at(0.41, 0.03), jnp.array([1.0])).done == 0.0
