"""CartPole, by numbers worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs.classic import CartPole
from rookery.envs.classic.cartpole import CartPoleState
from rookery.envs.env import EnvState

LEFT, RIGHT = jnp.int32(0), jnp.int32(1)


def cartpole_at(position: float, velocity: float, angle: float, angular_velocity: float) -> EnvState:
    state = CartPoleState(
        position=jnp.float32(position),
        velocity=jnp.float32(velocity),
        angle=jnp.float32(angle),
        angular_velocity=jnp.float32(angular_velocity),
    )
    return CartPole().reset(jax.random.key(0)).replace(env_state=state)


def test_the_first_observation_is_the_first_state() -> None:
    start = CartPole().reset(jax.random.key(5))
    np.testing.assert_array_equal(start.obs, jnp.stack(jax.tree.leaves(start.env_state)))


@pytest.mark.parametrize(("action", "direction"), [(LEFT, -1), (RIGHT, 1)])
def test_a_push_from_rest_accelerates_the_cart_by_400_41ths_and_the_pole_by_600_41ths(
    action: jax.Array, direction: int
) -> None:
    # 10 N on 1.1 kg, a pole of 0.1 kg and half length 0.5 m upright on it: the equations give these fractions.
    after = CartPole().step(cartpole_at(0, 0, 0, 0), action)
    np.testing.assert_allclose(after.obs, [0, direction * 0.02 * 400 / 41, 0, -direction * 0.02 * 600 / 41], rtol=1e-6)


def test_positions_move_by_the_velocities_before_the_push() -> None:
    after = CartPole().step(cartpole_at(1.0, 0.5, 0.1, -2.0), RIGHT)
    np.testing.assert_allclose(after.env_state.position, 1.01, rtol=1e-6)
    np.testing.assert_allclose(after.env_state.angle, 0.06, rtol=1e-6)


@pytest.mark.parametrize(
    ("state", "fails"),
    [
        ((2.4001, 0, 0, 0), 1.0),
        ((2.3999, 0, 0, 0), 0.0),
        ((0, 0, math.radians(12.01), 0), 1.0),
        ((0, 0, math.radians(11.99), 0), 0.0),
        ((2.39, 1.0, 0, 0), 1.0),
        ((2.39, 0.4, 0, 0), 0.0),
        ((-2.39, -1.0, 0, 0), 1.0),
        ((0, 0, 0.2, 1.0), 1.0),
        ((0, 0, 0.2, 0.4), 0.0),
        ((0, 0, -0.2, -1.0), 1.0),
    ],
)
def test_it_fails_beyond_2_4_meters_or_12_degrees_on_either_side(state: tuple, fails: float) -> None:
    after = CartPole().step(cartpole_at(*state), RIGHT)
    assert after.done == fails
    assert after.reward == 1.0


def test_the_book_s_reward_is_minus_one_at_the_failure_and_zero_before() -> None:
    env = CartPole(sutton_barto_reward=True)
    assert env.step(cartpole_at(0, 0, 0, 0), LEFT).reward == 0.0
    assert env.step(cartpole_at(0, 0, 0.2, 1.0), LEFT).reward == -1.0
