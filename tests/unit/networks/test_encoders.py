"""Encoders against Gymnasium's flattening."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import flatten

from rookery.errors import InvalidInputError
from rookery.networks.encoders import ObservationEncoder
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, to_gymnasium
from rookery.types import Array, PyTreeDict

VECTOR_SPACES = {
    "box": Box(-2.0, 2.0, (3,)),
    "scalar_box": Box(-2.0, 2.0, ()),
    "matrix_box": Box(-2.0, 2.0, (2, 3)),
    "small_image": Box(-2.0, 2.0, (2, 5, 1)),
    "float64_box": Box(-2.0, 2.0, (3,), np.float64),
    "integer_box": Box(-5, 5, (3,), np.int32),
    "discrete": Discrete(4),
    "discrete_with_start": Discrete(4, start=-2),
    "multi_discrete": MultiDiscrete([2, 5, 3]),
    "multi_discrete_with_start": MultiDiscrete([2, 5, 3], start=[1, -2, 7]),
    "matrix_multi_discrete": MultiDiscrete([[2, 3], [1, 4]]),
    "multi_binary": MultiBinary(4),
    "matrix_multi_binary": MultiBinary((2, 2)),
    "dict": Dict(a=Discrete(3), b=Box(-1.0, 1.0, (2,))),
    "tuple": Tuple([Discrete(3), Box(-1.0, 1.0, (2,))]),
    "nested": Dict(a=Tuple([Discrete(2), Dict(y=MultiBinary(2))]), z=Box(-1.0, 1.0, ())),
}


def draw(space: Space, batch_shape: tuple = ()) -> Any:
    return space.sample(jax.random.key(5), batch_shape)


def encode(space: Space, obs: Any) -> Array:
    encoder = ObservationEncoder(space)
    return encoder.apply(encoder.init(jax.random.key(0), obs), obs)


@pytest.mark.parametrize("name", VECTOR_SPACES)
def test_features_are_those_of_gymnasiums_flatten(name: str) -> None:
    space = VECTOR_SPACES[name]
    obs = draw(space)
    gym_space = to_gymnasium(space)
    expected = flatten(gym_space, jax.tree.map(np.asarray, _as_plain(obs)))
    features = encode(space, obs)
    assert features.dtype == jnp.float32
    np.testing.assert_allclose(features, expected, rtol=1e-6)
    assert features.shape == (gymnasium.spaces.flatdim(gym_space),)


def _as_plain(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {name: _as_plain(value) for name, value in obs.items()}
    return tuple(map(_as_plain, obs)) if isinstance(obs, tuple) else obs


@pytest.mark.parametrize("name", VECTOR_SPACES)
@pytest.mark.parametrize("batch_shape", [(7,), (2, 3)])
def test_leading_axes_are_encoded_row_by_row(name: str, batch_shape: tuple) -> None:
    space = VECTOR_SPACES[name]
    obs = draw(space, batch_shape)
    features = encode(space, obs)
    rows = [encode(space, jax.tree.map(lambda leaf, i=index: leaf[i], obs)) for index in np.ndindex(batch_shape)]
    np.testing.assert_array_equal(features, np.stack(rows).reshape(features.shape))
    assert features.shape[:-1] == batch_shape


def test_a_discrete_observation_has_an_empty_shape_and_becomes_one_hot() -> None:
    np.testing.assert_array_equal(encode(Discrete(3, start=1), jnp.asarray([1, 3])), [[1, 0, 0], [0, 0, 1]])


def test_images_of_a_dict_are_convolved_and_concatenated_with_the_rest() -> None:
    space = Dict(image=Box(0, 255, (10, 10, 2), np.uint8), speed=Box(-1.0, 1.0, (3,)))
    encoder = ObservationEncoder(space)
    obs = draw(space, (4,))
    variables = encoder.init(jax.random.key(0), obs)
    features = encoder.apply(variables, obs)
    assert features.shape == (4, 128 + 3)
    np.testing.assert_array_equal(features[:, 128:], obs.speed)
    brighter = obs.replace(image=255 - obs.image)
    changed = encoder.apply(variables, brighter)
    assert np.any(changed[:, :128] != features[:, :128])
    np.testing.assert_array_equal(changed[:, 128:], features[:, 128:])


def test_bytes_are_scaled_by_the_declared_dtype_whatever_dtype_arrives() -> None:
    space = Box(0, 255, (3,), np.uint8)
    np.testing.assert_allclose(encode(space, jnp.asarray([0, 51, 255], jnp.int32)), [0.0, 0.2, 1.0], rtol=1e-6)
    flags = MultiBinary(3)
    np.testing.assert_array_equal(encode(flags, jnp.asarray([0, 1, 1], jnp.uint8)), [0.0, 1.0, 1.0])


def test_the_action_mask_is_left_out_of_the_features() -> None:
    space = Dict(action_mask=Box(0, 1, (2,), np.int8), position=Box(-1.0, 1.0, (3,)))
    obs = PyTreeDict(action_mask=jnp.asarray([0, 1], jnp.int8), position=jnp.asarray([0.1, 0.2, 0.3]))
    np.testing.assert_array_equal(encode(space, obs), obs.position)


def test_plain_dicts_and_the_order_of_declaration_make_no_difference() -> None:
    first = Dict({"a": Discrete(2), "b": Box(-1.0, 1.0, (2,))})
    second = Dict({"b": Box(-1.0, 1.0, (2,)), "a": Discrete(2)})
    obs = {"b": jnp.asarray([0.5, -0.5]), "a": jnp.asarray(1)}
    np.testing.assert_array_equal(encode(first, obs), [0.0, 1.0, 0.5, -0.5])
    np.testing.assert_array_equal(encode(second, PyTreeDict(obs)), encode(first, obs))


def test_an_observation_of_which_nothing_is_left_is_an_error() -> None:
    space = Dict(action_mask=Box(0, 1, (2,), np.int8))
    with pytest.raises(InvalidInputError, match="no entry"):
        encode(space, draw(space))
