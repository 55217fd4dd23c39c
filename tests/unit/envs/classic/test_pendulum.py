"""Pendulum, by numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs.classic import Pendulum
from rookery.envs.classic.pendulum import PendulumState
from rookery.envs.env import EnvState


def pendulum_at(angle: float, velocity: float) -> EnvState:
    state = PendulumState(angle=jnp.float32(angle), velocity=jnp.float32(velocity))
    return Pendulum().reset(jax.random.key(0)).replace(env_state=state)


def test_the_first_observation_is_that_of_the_first_state() -> None:
    start = Pendulum().reset(jax.random.key(5))
    angle, velocity = float(start.env_state.angle), float(start.env_state.velocity)
    np.testing.assert_allclose(start.obs, [math.cos(angle), math.sin(angle), velocity], atol=1e-6)


def test_a_horizontal_rod_falls_by_its_weight_and_the_torque() -> None:
    # (3 g / 2 l) sin(angle) + (3 / m l^2) torque = 15 + 3 per second squared, over 0.05 s.
    after = Pendulum().step(pendulum_at(math.pi / 2, 0), jnp.array([1.0]))
    np.testing.assert_allclose(after.env_state.velocity, 0.9, rtol=1e-6)
    np.testing.assert_allclose(after.env_state.angle, math.pi / 2 + 0.045, rtol=1e-6)
    np.testing.assert_allclose(after.obs, [-math.sin(0.045), math.cos(0.045), 0.9], rtol=1e-5)
    np.testing.assert_allclose(after.reward, -(math.pi**2 / 4 + 0.001), rtol=1e-6)
    assert after.done == 0.0


def test_a_torque_beyond_the_limit_acts_and_costs_as_the_limit() -> None:
    weak, strong = (Pendulum().step(pendulum_at(1.0, 0), jnp.array([torque])) for torque in (-2.0, -50.0))
    assert weak.env_state.velocity == strong.env_state.velocity
    assert weak.reward == strong.reward


@pytest.mark.parametrize("direction", [-1, 1])
def test_the_velocity_is_bounded_by_8(direction: int) -> None:
    after = Pendulum().step(pendulum_at(direction * math.pi / 2, direction * 7.9), jnp.array([2.0 * direction]))
    assert after.env_state.velocity == direction * 8.0


def test_whole_turns_in_the_angle_change_nothing() -> None:
    once = Pendulum().step(pendulum_at(-1.0, 0.5), jnp.array([0.3]))
    thrice = Pendulum().step(pendulum_at(-1.0 + 6 * math.pi, 0.5), jnp.array([0.3]))
    np.testing.assert_allclose(thrice.obs, once.obs, atol=1e-5)
    np.testing.assert_allclose(thrice.reward, once.reward, atol=1e-5)


def test_the_angle_does_not_grow_with_the_number_of_turns() -> None:
    def spin(state: EnvState, _: None) -> tuple[EnvState, jax.Array]:
        state = Pendulum().step(state, jnp.array([2.0]))
        return state, jnp.abs(state.env_state.angle)

    _, angles = jax.lax.scan(spin, pendulum_at(0, 8), None, length=1000)
    assert angles.max() <= math.pi + 0.05 * 8


def test_without_gravity_only_the_torque_acts() -> None:
    after = Pendulum(gravity=0).step(pendulum_at(1.0, 0), jnp.array([1.0]))
    np.testing.assert_allclose(after.env_state.velocity, 0.15, rtol=1e-6)
