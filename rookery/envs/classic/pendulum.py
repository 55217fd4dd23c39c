"""Pendulum: swing a pendulum up and hold it upright with a torque too weak to lift it at once.

Dynamics and rewards are those of Gymnasium's `Pendulum-v1`: a uniform rod hinged at one end, one semi-implicit
Euler step per action. Episodes end only by the time limit.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs.classic.trigonometry import sin_cos, wrap_angle
from rookery.envs.env import Env, EnvState
from rookery.spaces import Box
from rookery.types import Action, Array, Key, PyTreeData, as_key

GRAVITY = 10.0
MASS = 1.0
LENGTH = 1.0
TIME_STEP = 0.05
MAX_TORQUE = 2.0
MAX_VELOCITY = 8.0

RESET_ANGLE_LIMIT = math.pi
RESET_VELOCITY_LIMIT = 1.0

ANGLE_COST = 1.0
VELOCITY_COST = 0.1
TORQUE_COST = 0.001


class PendulumState(PyTreeData):
    """The angle from upright in radians, positive to the left, and its velocity per second.

    Each step subtracts whole turns from the angle, so that float32 keeps its precision.
    """

    angle: Array
    velocity: Array


class Pendulum(Env):
    """Apply a torque of up to 2; the cost grows with the angle from upright, the velocity and the torque."""

    obs_space = Box(low=np.array([-1, -1, -MAX_VELOCITY]), high=np.array([1, 1, MAX_VELOCITY]))
    action_space = Box(low=-MAX_TORQUE, high=MAX_TORQUE, shape=(1,))
    max_episode_steps = 200

    def __init__(self, gravity: float = GRAVITY) -> None:
        self.gravity = float(gravity)

    def reset(self, key: Key) -> EnvState:
        start = jax.random.uniform(as_key(key), (2,), jnp.float32, -1, 1)
        state = PendulumState(angle=RESET_ANGLE_LIMIT * start[0], velocity=RESET_VELOCITY_LIMIT * start[1])
        return EnvState(env_state=state, obs=_observe(state), reward=jnp.float32(0), done=jnp.float32(0))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        torque = jnp.clip(jnp.asarray(action, jnp.float32)[0], -MAX_TORQUE, MAX_TORQUE)
        angle, velocity = wrap_angle(env_state.env_state.angle), env_state.env_state.velocity
        cost = ANGLE_COST * angle**2 + VELOCITY_COST * velocity**2 + TORQUE_COST * torque**2

        sin, _ = sin_cos(angle)
        acceleration = 3 * self.gravity / (2 * LENGTH) * sin + 3 / (MASS * LENGTH**2) * torque
        velocity = jnp.clip(velocity + TIME_STEP * acceleration, -MAX_VELOCITY, MAX_VELOCITY)
        state = PendulumState(angle=angle + TIME_STEP * velocity, velocity=velocity)
        return env_state.replace(env_state=state, obs=_observe(state), reward=-cost, done=jnp.float32(0))

    def render(self, env_state: EnvState) -> np.ndarray:
        from rookery.envs.classic import drawing

        angle, _ = drawing.fields_of_one(env_state.env_state)
        canvas = drawing.Canvas(origin=(drawing.WIDTH / 2, drawing.HEIGHT / 2), pixels_per_unit=140)
        canvas.ring((0, 0), 140, 2, drawing.FAINT)
        canvas.dashed((0, 0), (0, LENGTH), 2, drawing.GREEN, num_dashes=10)
        canvas.circle((0, LENGTH), 5, drawing.GREEN)
        tip = (-LENGTH * math.sin(angle), LENGTH * math.cos(angle))
        canvas.segment((0, 0), tip, 22, drawing.BLUE)
        canvas.circle(tip, 15, drawing.ORANGE)
        canvas.circle((0, 0), 6, drawing.INK)
        return canvas.pixels()


def _observe(state: PendulumState) -> Array:
    sin, cos = sin_cos(state.angle)
    return jnp.stack([cos, sin, state.velocity])
