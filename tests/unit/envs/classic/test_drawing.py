"""The pictures show the state: what moves is drawn where the state says it is."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import classic
from rookery.envs.classic import drawing
from rookery.envs.env import Env
from rookery.errors import ShapeError


def picture(env: Env, **fields: float) -> np.ndarray:
    """Draw the env after its reset, with these fields of the simulator state changed."""
    state = env.reset(jax.random.key(0))
    simulator: Any = state.env_state
    changed = simulator.replace(**{name: jnp.float32(value) for name, value in fields.items()})
    return env.render(state.replace(env_state=changed))


def center_of(color: drawing.Color, image: np.ndarray) -> np.ndarray:
    """Return the mean pixel (right, up) of what is drawn in exactly this color, from the bottom left corner."""
    rows, columns = np.nonzero((image == np.array(color, np.uint8)).all(axis=-1))
    assert len(rows) > 0
    return np.array([columns.mean(), image.shape[0] - 1 - rows.mean()])


@pytest.mark.parametrize("name", classic.names())
def test_a_picture_is_400_by_600_rgb_and_leaves_the_state_as_it_was(name: str) -> None:
    env = classic.make(name)
    state = env.reset(jax.random.key(0))
    image = env.render(state)
    assert image.shape == (400, 600, 3)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, env.render(state))


@pytest.mark.parametrize("name", classic.names())
def test_many_envs_at_once_are_refused_with_the_way_to_pick_one(name: str) -> None:
    env = classic.make(name)
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 3))
    with pytest.raises(ShapeError, match=r"leading axes \[3\].*leaf\[0\]"):
        env.render(states)


def test_the_cart_is_drawn_at_its_position_on_the_track() -> None:
    env = classic.CartPole()
    shift = center_of(drawing.BLUE, picture(env, position=1.0)) - center_of(drawing.BLUE, picture(env, position=-1.0))
    track = picture(env, position=0.0)[275] == np.array(drawing.RED, np.uint8)
    limits = np.nonzero(track.all(axis=-1))[0]
    np.testing.assert_allclose(shift, [(limits.max() - limits.min()) * 2 / 4.8, 0], atol=2)


@pytest.mark.parametrize("side", [-1, 1])
def test_the_pole_leans_to_the_side_of_its_angle(side: int) -> None:
    image = picture(classic.CartPole(), position=0.0, angle=0.2 * side)
    assert side * (center_of(drawing.ORANGE, image)[0] - center_of(drawing.BLUE, image)[0]) > 5


@pytest.mark.parametrize(
    ("angle", "direction"), [(0, (0, 1)), (math.pi / 2, (-1, 0)), (math.pi, (0, -1)), (-math.pi / 2, (1, 0))]
)
def test_the_pendulum_points_up_at_angle_zero_and_turns_counterclockwise(angle: float, direction: tuple) -> None:
    image = picture(classic.Pendulum(), angle=angle)
    offset = center_of(drawing.ORANGE, image) - center_of(drawing.INK, image)
    np.testing.assert_allclose(offset, 140 * np.array(direction), atol=3)


@pytest.mark.parametrize(("shoulder", "elbow"), [(2.5, 0.3), (2.5, 1.8), (-2.8, 1.4), (0.0, 0.0), (-2.0, -0.5)])
def test_the_acrobot_crosses_the_drawn_line_when_it_reaches_the_goal(shoulder: float, elbow: float) -> None:
    image = picture(classic.Acrobot(), shoulder_angle=shoulder, elbow_angle=elbow)
    height = -math.cos(shoulder) - math.cos(shoulder + elbow)
    goal = center_of(drawing.GREEN, image)[1]
    middle_of_lower_link = center_of(drawing.ORANGE, image)[1]
    expected_middle = 92 * (-math.cos(shoulder) - math.cos(shoulder + elbow) / 2 - 1)
    np.testing.assert_allclose(middle_of_lower_link - goal, expected_middle, atol=4)
    lower_link_rows = np.nonzero((image == np.array(drawing.ORANGE, np.uint8)).all(axis=-1))[0]
    assert (image.shape[0] - 1 - lower_link_rows.min() > goal + 9) == (height > 1.0)


@pytest.mark.parametrize("name", ["mountain_car", "mountain_car_continuous"])
def test_the_car_climbs_towards_the_flag(name: str) -> None:
    env = classic.make(name)
    positions = np.array([-1.2, -math.pi / 6, 0.0, 0.4])
    cars = np.stack([center_of(drawing.BLUE, picture(env, position=position)) for position in positions])
    flag = center_of(drawing.GREEN, picture(env))
    assert (np.diff(cars[:, 0]) > 0).all()
    assert cars[:, 1].argmin() == 1
    assert flag[0] > cars[-1, 0]
    assert flag[1] > cars[-1, 1]
