"""CartPole: balance a pole on a cart by pushing the cart left or right (Barto, Sutton and Anderson, 1983).

Dynamics, rewards and terminations are those of Gymnasium's `CartPole-v1`: the equations of motion without
friction of Florian, "Correct equations for the dynamics of the cart-pole system" (2007), one Euler step per action.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs.classic.trigonometry import sin_cos
from rookery.envs.env import Env, EnvState
from rookery.spaces import Box, Discrete
from rookery.types import Action, Array, Key, PyTreeData, as_key

GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
HALF_POLE_LENGTH = 0.5
PUSH_FORCE = 10.0
TIME_STEP = 0.02

POSITION_LIMIT = 2.4
ANGLE_LIMIT = math.radians(12)
RESET_LIMIT = 0.05

POLE_MASS_RATIO = POLE_MASS / (CART_MASS + POLE_MASS)
PUSH_ACCELERATION = PUSH_FORCE / (CART_MASS + POLE_MASS)


class CartPoleState(PyTreeData):
    """The cart's position on its track, the pole's angle from upright (positive to the right), and their velocities.

    In meters, radians and seconds.
    """

    position: Array
    velocity: Array
    angle: Array
    angular_velocity: Array


class CartPole(Env):
    """Push left (0) or right (1). The reward is 1 per step; the pole falling or the cart leaving the track terminates.

    With `sutton_barto_reward`, the reward is -1 for the terminating step and 0 for the others.
    """

    obs_space = Box(
        low=np.array([-2 * POSITION_LIMIT, -np.inf, -2 * ANGLE_LIMIT, -np.inf]),
        high=np.array([2 * POSITION_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf]),
    )
    action_space = Discrete(2)
    max_episode_steps = 500

    def __init__(self, sutton_barto_reward: bool = False) -> None:
        self.sutton_barto_reward = sutton_barto_reward

    def reset(self, key: Key) -> EnvState:
        start = jax.random.uniform(as_key(key), (4,), jnp.float32, -RESET_LIMIT, RESET_LIMIT)
        state = CartPoleState(position=start[0], velocity=start[1], angle=start[2], angular_velocity=start[3])
        return EnvState(env_state=state, obs=start, reward=jnp.float32(0), done=jnp.float32(0))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        push = jnp.where(action == 1, PUSH_ACCELERATION, -PUSH_ACCELERATION)
        state = _advance(env_state.env_state, push)
        failed = (jnp.abs(state.position) > POSITION_LIMIT) | (jnp.abs(state.angle) > ANGLE_LIMIT)
        done = failed.astype(jnp.float32)
        return env_state.replace(
            env_state=state,
            obs=jnp.stack([state.position, state.velocity, state.angle, state.angular_velocity]),
            reward=-done if self.sutton_barto_reward else jnp.float32(1),
            done=done,
        )

    def render(self, env_state: EnvState) -> np.ndarray:
        from rookery.envs.classic import drawing

        position, _, angle, _ = drawing.fields_of_one(env_state.env_state)
        canvas = drawing.Canvas(origin=(drawing.WIDTH / 2, 275), pixels_per_unit=115)

        canvas.segment((-POSITION_LIMIT, 0), (POSITION_LIMIT, 0), 4, drawing.STEEL)
        for limit in (-POSITION_LIMIT, POSITION_LIMIT):
            canvas.segment((limit, -0.12), (limit, 0.12), 4, drawing.RED)

        axle, pole_length = (position, 0.3), 2 * HALF_POLE_LENGTH
        for limit in (-ANGLE_LIMIT, ANGLE_LIMIT):
            limit_tip = (axle[0] + 1.15 * pole_length * math.sin(limit), axle[1] + 1.15 * pole_length * math.cos(limit))
            canvas.dashed(axle, limit_tip, 1.5, drawing.STEEL, num_dashes=9)
        for wheel in (position - 0.16, position + 0.16):
            canvas.circle((wheel, 0.07), 8, drawing.INK)
        canvas.rounded_box((position - 0.28, 0.09), (position + 0.28, 0.34), 6, drawing.BLUE)
        tip = (axle[0] + pole_length * math.sin(angle), axle[1] + pole_length * math.cos(angle))
        canvas.segment(axle, tip, 10, drawing.ORANGE)
        canvas.circle(axle, 4, drawing.INK)
        return canvas.pixels()


def _advance(state: CartPoleState, push: Array) -> CartPoleState:
    """Integrate one time step; `push` is the force divided by the total mass."""
    sin, cos = sin_cos(state.angle)
    drive = push + POLE_MASS_RATIO * HALF_POLE_LENGTH * state.angular_velocity**2 * sin
    angular_acceleration = (GRAVITY * sin - drive * cos) / (HALF_POLE_LENGTH * (4 / 3 - POLE_MASS_RATIO * cos**2))
    acceleration = drive - POLE_MASS_RATIO * HALF_POLE_LENGTH * angular_acceleration * cos
    return CartPoleState(
        position=state.position + TIME_STEP * state.velocity,
        velocity=state.velocity + TIME_STEP * acceleration,
        angle=state.angle + TIME_STEP * state.angular_velocity,
        angular_velocity=state.angular_velocity + TIME_STEP * angular_acceleration,
    )
