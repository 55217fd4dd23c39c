"""Acrobot: swing the free end of a two-link chain above a line by torque on the joint between them (Sutton, 1996).

Dynamics, rewards and terminations are those of Gymnasium's `Acrobot-v1`: the equations of motion of Sutton and
Barto's book (first edition, section 11.3), one Runge-Kutta step of fourth order per action.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs.classic.trigonometry import sin_cos, wrap_angle
from rookery.envs.env import Env, EnvState
from rookery.spaces import Box, Discrete
from rookery.types import Action, Array, Key, PyTreeData, as_key

GRAVITY = 9.8
LINK_MASS = 1.0
LINK_LENGTH = 1.0
LINK_CENTER = 0.5
"""The distance of a link's center of mass from its joint."""
LINK_INERTIA = 1.0
TIME_STEP = 0.2

MAX_SHOULDER_VELOCITY = 4 * math.pi
MAX_ELBOW_VELOCITY = 9 * math.pi
GOAL_HEIGHT = 1.0
RESET_LIMIT = 0.1

# The coefficients of the equations of motion, for two equal links.
COUPLING = LINK_MASS * LINK_LENGTH * LINK_CENTER
ELBOW_INERTIA = LINK_INERTIA + LINK_MASS * LINK_CENTER**2
SHOULDER_INERTIA = 2 * ELBOW_INERTIA + LINK_MASS * LINK_LENGTH**2
ELBOW_WEIGHT = GRAVITY * LINK_MASS * LINK_CENTER
SHOULDER_WEIGHT = GRAVITY * LINK_MASS * (LINK_CENTER + LINK_LENGTH)


class AcrobotState(PyTreeData):
    """The upper link's angle from hanging down, the lower link's from the upper's direction, and their velocities.

    Angles are in radians between -pi and pi, velocities in radians per second.
    """

    shoulder_angle: Array
    elbow_angle: Array
    shoulder_velocity: Array
    elbow_velocity: Array


class Acrobot(Env):
    """Apply a torque of -1, 0 or 1 at the elbow (actions 0, 1, 2); every step before the goal is reached costs 1."""

    obs_space = Box(
        low=-np.array([1, 1, 1, 1, MAX_SHOULDER_VELOCITY, MAX_ELBOW_VELOCITY]),
        high=np.array([1, 1, 1, 1, MAX_SHOULDER_VELOCITY, MAX_ELBOW_VELOCITY]),
    )
    action_space = Discrete(3)
    max_episode_steps = 500

    def reset(self, key: Key) -> EnvState:
        start = jax.random.uniform(as_key(key), (4,), jnp.float32, -RESET_LIMIT, RESET_LIMIT)
        state = AcrobotState(
            shoulder_angle=start[0], elbow_angle=start[1], shoulder_velocity=start[2], elbow_velocity=start[3]
        )
        obs, _ = _observe(state)
        return EnvState(env_state=state, obs=obs, reward=jnp.float32(0), done=jnp.float32(0))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        torque = jnp.asarray(action, jnp.float32) - 1
        state = _advance(env_state.env_state, torque)
        obs, height = _observe(state)
        done = (height > GOAL_HEIGHT).astype(jnp.float32)
        return env_state.replace(env_state=state, obs=obs, reward=done - 1, done=done)

    def render(self, env_state: EnvState) -> np.ndarray:
        from rookery.envs.classic import drawing

        shoulder_angle, elbow_angle, _, _ = drawing.fields_of_one(env_state.env_state)
        canvas = drawing.Canvas(origin=(drawing.WIDTH / 2, drawing.HEIGHT / 2), pixels_per_unit=92)
        canvas.dashed((-2.7, GOAL_HEIGHT), (2.7, GOAL_HEIGHT), 2.5, drawing.GREEN, num_dashes=28)

        lower_angle = shoulder_angle + elbow_angle
        elbow = (LINK_LENGTH * math.sin(shoulder_angle), -LINK_LENGTH * math.cos(shoulder_angle))
        tip = (elbow[0] + LINK_LENGTH * math.sin(lower_angle), elbow[1] - LINK_LENGTH * math.cos(lower_angle))
        canvas.segment((0, 0), elbow, 18, drawing.BLUE)
        canvas.segment(elbow, tip, 18, drawing.ORANGE)
        for joint in ((0, 0), elbow):
            canvas.circle(joint, 5, drawing.INK)
        return canvas.pixels()


def _observe(state: AcrobotState) -> tuple[Array, Array]:
    """Return the observation and the height of the free end above the shoulder."""
    shoulder_sin, shoulder_cos = sin_cos(state.shoulder_angle)
    elbow_sin, elbow_cos = sin_cos(state.elbow_angle)
    obs = jnp.stack([shoulder_cos, shoulder_sin, elbow_cos, elbow_sin, state.shoulder_velocity, state.elbow_velocity])
    cos_of_sum = shoulder_cos * elbow_cos - shoulder_sin * elbow_sin
    return obs, -LINK_LENGTH * (shoulder_cos + cos_of_sum)


def _advance(state: AcrobotState, torque: Array) -> AcrobotState:
    """Integrate by one Runge-Kutta step of fourth order, then wrap the angles and clip the velocities."""

    def moved(rates: AcrobotState, duration: float) -> AcrobotState:
        return jax.tree.map(lambda value, rate: value + duration * rate, state, rates)

    first = _rates(state, torque)
    second = _rates(moved(first, TIME_STEP / 2), torque)
    third = _rates(moved(second, TIME_STEP / 2), torque)
    fourth = _rates(moved(third, TIME_STEP), torque)
    sums = jax.tree.map(lambda a, b, c, d: a + 2 * b + 2 * c + d, first, second, third, fourth)
    state = moved(sums, TIME_STEP / 6)
    return AcrobotState(
        shoulder_angle=wrap_angle(state.shoulder_angle),
        elbow_angle=wrap_angle(state.elbow_angle),
        shoulder_velocity=jnp.clip(state.shoulder_velocity, -MAX_SHOULDER_VELOCITY, MAX_SHOULDER_VELOCITY),
        elbow_velocity=jnp.clip(state.elbow_velocity, -MAX_ELBOW_VELOCITY, MAX_ELBOW_VELOCITY),
    )


def _rates(state: AcrobotState, torque: Array) -> AcrobotState:
    """Return the time derivative of each entry of the state.

    Solves `inertia @ accelerations = torques` of the two joints, where the inertia matrix is symmetric and the torques
    come from the motor, gravity and the motion itself.
    """
    shoulder_sin, shoulder_cos = sin_cos(state.shoulder_angle)
    elbow_sin, elbow_cos = sin_cos(state.elbow_angle)
    sin_of_sum = shoulder_sin * elbow_cos + shoulder_cos * elbow_sin
    velocity_1, velocity_2 = state.shoulder_velocity, state.elbow_velocity

    inertia_11 = SHOULDER_INERTIA + 2 * COUPLING * elbow_cos
    inertia_12 = ELBOW_INERTIA + COUPLING * elbow_cos
    inertia_22 = ELBOW_INERTIA
    elbow_gravity = ELBOW_WEIGHT * sin_of_sum
    shoulder_gravity = SHOULDER_WEIGHT * shoulder_sin + elbow_gravity
    torque_1 = COUPLING * elbow_sin * velocity_2 * (velocity_2 + 2 * velocity_1) - shoulder_gravity
    torque_2 = torque - COUPLING * elbow_sin * velocity_1**2 - elbow_gravity

    # Two divisions instead of one division and two multiplications: XLA recomputes results of multiplications at each
    # use, which over four stages makes the step several times slower.
    determinant = inertia_11 * inertia_22 - inertia_12**2
    return AcrobotState(
        shoulder_angle=velocity_1,
        elbow_angle=velocity_2,
        shoulder_velocity=(inertia_22 * torque_1 - inertia_12 * torque_2) / determinant,
        elbow_velocity=(inertia_11 * torque_2 - inertia_12 * torque_1) / determinant,
    )
