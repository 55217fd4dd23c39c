"""Mountain car: drive an underpowered car out of a valley by swinging back and forth (Moore, 1990).

Dynamics, rewards and terminations are those of Gymnasium's `MountainCar-v0` and `MountainCarContinuous-v0`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs.classic.trigonometry import sin_cos
from rookery.envs.env import Env, EnvState
from rookery.spaces import Box, Discrete
from rookery.types import Action, Array, Key, PyTreeData, as_key

GRAVITY = 0.0025
MIN_POSITION = -1.2
MAX_POSITION = 0.6
MAX_VELOCITY = 0.07
MIN_START, MAX_START = -0.6, -0.4

DISCRETE_POWER = 0.001
CONTINUOUS_POWER = 0.0015
MAX_ACTION = 1.0
GOAL_REWARD = 100.0
ACTION_COST = 0.1

RENDERED_HEIGHT = 0.45


class MountainCarState(PyTreeData):
    """Position of the car in the valley, whose lowest point is at -pi / 6, and its change per step."""

    position: Array
    velocity: Array


class _Valley(Env):
    """The base of both environments. The goal is to reach `goal_position` with at least `goal_velocity`."""

    goal_position: float
    obs_space = Box(low=np.array([MIN_POSITION, -MAX_VELOCITY]), high=np.array([MAX_POSITION, MAX_VELOCITY]))

    def __init__(self, goal_velocity: float = 0.0) -> None:
        self.goal_velocity = float(goal_velocity)

    def reset(self, key: Key) -> EnvState:
        position = jax.random.uniform(as_key(key), (), jnp.float32, MIN_START, MAX_START)
        state = MountainCarState(position=position, velocity=jnp.float32(0))
        return EnvState(env_state=state, obs=_observe(state), reward=jnp.float32(0), done=jnp.float32(0))

    def render(self, env_state: EnvState) -> np.ndarray:
        from rookery.envs.classic import drawing

        position, _ = drawing.fields_of_one(env_state.env_state)
        canvas = drawing.Canvas(origin=(396, 225), pixels_per_unit=291)

        ground = [(x, _height(x)) for x in np.linspace(-1.37, 0.71, 209).tolist()]
        canvas.polygon([(-1.37, -1), *ground, (0.71, -1)], drawing.GROUND)
        canvas.curve(ground, 3, drawing.STEEL)

        wall = MIN_POSITION - 0.1
        canvas.segment((wall, _height(wall)), (wall, _height(wall) + 0.2), 4, drawing.RED)

        flag, flag_top = self.goal_position, _height(self.goal_position) + 0.24
        canvas.segment((flag, _height(flag)), (flag, flag_top), 3, drawing.INK)
        canvas.polygon([(flag, flag_top), (flag + 0.12, flag_top - 0.045), (flag, flag_top - 0.09)], drawing.GREEN)

        slope = math.atan(3 * RENDERED_HEIGHT * math.cos(3 * position))

        def on_car(forward: float, above: float) -> tuple[float, float]:
            x = position + forward * math.cos(slope) - above * math.sin(slope)
            return x, _height(position) + forward * math.sin(slope) + above * math.cos(slope)

        canvas.segment(on_car(-0.03, 0.085), on_car(0.03, 0.085), 20, drawing.ORANGE)
        canvas.segment(on_car(-0.075, 0.06), on_car(0.075, 0.06), 17, drawing.BLUE)
        for wheel in (-0.06, 0.06):
            canvas.circle(on_car(wheel, 0.033), 9.5, drawing.INK)
            canvas.circle(on_car(wheel, 0.033), 4, drawing.STEEL)
        return canvas.pixels()

    def _at_goal(self, state: MountainCarState) -> Array:
        """Return 1 if the goal is reached, else 0."""
        reached = (state.position >= self.goal_position) & (state.velocity >= self.goal_velocity)
        return reached.astype(jnp.float32)


class MountainCar(_Valley):
    """Accelerate to the left (0), not at all (1) or to the right (2); the reward is -1 per step."""

    goal_position = 0.5
    action_space = Discrete(3)
    max_episode_steps = 200

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        direction = jnp.asarray(action, jnp.float32) - 1
        state = _advance(env_state.env_state, DISCRETE_POWER * direction)
        return env_state.replace(
            env_state=state, obs=_observe(state), reward=jnp.float32(-1), done=self._at_goal(state)
        )


class MountainCarContinuous(_Valley):
    """Accelerate by an amount in [-1, 1]; the reward is 100 at the goal minus a tenth of the squared action.

    An action out of bounds is clipped for the dynamics, but not for its cost.
    """

    goal_position = 0.45
    action_space = Box(low=-MAX_ACTION, high=MAX_ACTION, shape=(1,))
    max_episode_steps = 999

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        wanted = jnp.asarray(action, jnp.float32)[0]
        state = _advance(env_state.env_state, CONTINUOUS_POWER * jnp.clip(wanted, -MAX_ACTION, MAX_ACTION))
        done = self._at_goal(state)
        reward = GOAL_REWARD * done - ACTION_COST * wanted**2
        return env_state.replace(env_state=state, obs=_observe(state), reward=reward, done=done)


def _advance(state: MountainCarState, acceleration: Array) -> MountainCarState:
    """Integrate one step; the left wall stops the car, the right bound only limits its position."""
    _, cos = sin_cos(3 * state.position)
    velocity = jnp.clip(state.velocity + acceleration - GRAVITY * cos, -MAX_VELOCITY, MAX_VELOCITY)
    position = jnp.clip(state.position + velocity, MIN_POSITION, MAX_POSITION)
    velocity = jnp.where(position <= MIN_POSITION, jnp.maximum(velocity, 0), velocity)
    return MountainCarState(position=position, velocity=velocity)


def _observe(state: MountainCarState) -> Array:
    return jnp.stack([state.position, state.velocity])


def _height(position: float) -> float:
    """Return the height of the ground in the image; the dynamics use only its slope."""
    return RENDERED_HEIGHT * math.sin(3 * position)
