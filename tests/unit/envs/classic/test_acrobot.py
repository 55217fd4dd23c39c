"""Acrobot, by equilibria, by the conservation of energy and by numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs.classic import Acrobot
from rookery.envs.classic.acrobot import AcrobotState
from rookery.envs.env import EnvState

PUSH_BACK, IDLE, PUSH = jnp.int32(0), jnp.int32(1), jnp.int32(2)


def acrobot_at(shoulder: float, elbow: float, shoulder_velocity: float = 0.0, elbow_velocity: float = 0.0) -> EnvState:
    state = AcrobotState(
        shoulder_angle=jnp.float32(shoulder),
        elbow_angle=jnp.float32(elbow),
        shoulder_velocity=jnp.float32(shoulder_velocity),
        elbow_velocity=jnp.float32(elbow_velocity),
    )
    return Acrobot().reset(jax.random.key(0)).replace(env_state=state)


def energy(state: AcrobotState) -> float:
    """The energy of two rods of 1 kg and 1 m, centers of mass halfway, with moments of inertia of 1 about them."""
    upper, lower = float(state.shoulder_angle), float(state.shoulder_angle) + float(state.elbow_angle)
    upper_rate = float(state.shoulder_velocity)
    lower_rate = upper_rate + float(state.elbow_velocity)
    upper_velocity = 0.5 * upper_rate * np.array([math.cos(upper), math.sin(upper)])
    lower_velocity = 2 * upper_velocity + 0.5 * lower_rate * np.array([math.cos(lower), math.sin(lower)])
    kinetic = (upper_velocity @ upper_velocity + lower_velocity @ lower_velocity + upper_rate**2 + lower_rate**2) / 2
    potential = -9.8 * (0.5 * math.cos(upper) + math.cos(upper) + 0.5 * math.cos(lower))
    return kinetic + potential


def test_the_first_observation_is_that_of_the_first_state() -> None:
    start = Acrobot().reset(jax.random.key(5))
    shoulder, elbow, *velocities = (float(field) for field in jax.tree.leaves(start.env_state))
    expected = [math.cos(shoulder), math.sin(shoulder), math.cos(elbow), math.sin(elbow), *velocities]
    np.testing.assert_allclose(start.obs, expected, atol=1e-6)


@pytest.mark.parametrize(("shoulder", "elbow"), [(0, 0), (math.pi, 0), (0, math.pi), (math.pi, math.pi)])
def test_straight_links_at_rest_stay_at_rest(shoulder: float, elbow: float) -> None:
    after = Acrobot().step(acrobot_at(shoulder, elbow), IDLE)
    np.testing.assert_allclose(after.obs, [math.cos(shoulder), 0, math.cos(elbow), 0, 0, 0], atol=1e-5)


def test_energy_is_kept_without_torque() -> None:
    env, state = Acrobot(), acrobot_at(1.0, -0.5, 0.3, 1.0)
    before = energy(state.env_state)
    for _ in range(10):
        state = env.step(state, IDLE)
        assert abs(energy(state.env_state) - before) < 0.05  # of about 11, the error of one large Runge-Kutta step
    assert abs(float(state.env_state.shoulder_angle) - 1.0) > 0.1


def test_the_torque_at_the_elbow_turns_the_links_against_each_other() -> None:
    # Hanging at rest, inertia [[4.5, 1.75], [1.75, 1.25]] @ accelerations = [0, 1]: they are -28/41 and 72/41.
    step = jax.jit(Acrobot().step)
    pushed, pushed_back = step(acrobot_at(0, 0), PUSH).env_state, step(acrobot_at(0, 0), PUSH_BACK).env_state
    np.testing.assert_allclose(pushed.shoulder_velocity, -0.2 * 28 / 41, rtol=0.1)
    np.testing.assert_allclose(pushed.elbow_velocity, 0.2 * 72 / 41, rtol=0.1)
    jax.tree.map(lambda forth, back: np.testing.assert_allclose(forth, -back, rtol=1e-5), pushed, pushed_back)


@pytest.mark.parametrize(("elbow", "reached"), [(1.4, 1.0), (1.7, 0.0)])
def test_the_goal_is_a_free_end_more_than_one_link_over_the_shoulder(elbow: float, reached: float) -> None:
    # The upper link upright, the lower one at nearly a right angle to it.
    after = Acrobot().step(acrobot_at(math.pi, elbow), IDLE)
    assert after.done == reached
    assert after.reward == reached - 1.0


def test_angles_are_wrapped_and_velocities_bounded() -> None:
    after = Acrobot().step(acrobot_at(3.1, 3.1, 4 * math.pi, 9 * math.pi), PUSH).env_state
    assert abs(after.shoulder_angle) <= math.pi + 1e-5
    assert abs(after.elbow_angle) <= math.pi + 1e-5
    assert abs(after.shoulder_velocity) <= np.float32(4 * math.pi)
    assert abs(after.elbow_velocity) <= np.float32(9 * math.pi)
