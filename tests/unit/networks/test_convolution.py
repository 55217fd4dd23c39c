"""Convolutional networks against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate

from rookery.errors import ShapeError
from rookery.networks.convolution import CNN, GRID_LAYERS, NATURE_LAYERS, cnn_for, smallest_side


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (2, 3, 84, 84, 4), dtype=np.uint8)


@pytest.fixture(scope="module")
def nature() -> tuple:
    network = cnn_for((84, 84, 4))
    return network, network.init(jax.random.key(0), jnp.zeros((84, 84, 4), jnp.uint8))


def test_pixels_get_the_layers_of_nature_dqn(nature: tuple) -> None:
    shapes = jax.tree.map(jnp.shape, nature[1]["params"])
    assert shapes["convolution_0"]["kernel"] == (8, 8, 4, 32)
    assert shapes["convolution_1"]["kernel"] == (4, 4, 32, 64)
    assert shapes["convolution_2"]["kernel"] == (3, 3, 64, 64)
    assert shapes["dense"]["kernel"] == (7 * 7 * 64, 512)


def test_any_number_of_leading_axes_gives_the_same_features(nature: tuple, pixels: np.ndarray) -> None:
    network, variables = nature
    features = network.apply(variables, pixels)
    assert features.shape == (2, 3, 512)
    np.testing.assert_allclose(network.apply(variables, pixels[1]), features[1], atol=1e-5)
    np.testing.assert_allclose(network.apply(variables, pixels[1, 2]), features[1, 2], atol=1e-5)


def test_bytes_are_scaled_to_the_unit_interval_and_floats_are_not(nature: tuple, pixels: np.ndarray) -> None:
    network, variables = nature
    image = pixels[0, 0]
    unit = jnp.asarray(image / 255.0, jnp.float32)
    np.testing.assert_allclose(network.apply(variables, image), network.apply(variables, unit), atol=1e-5)
    unscaled = network.apply(variables, image.astype(np.float32))
    assert float(jnp.max(jnp.abs(unscaled - network.apply(variables, image)))) > 1.0


@pytest.mark.parametrize("dtype", [np.bool_, np.float32])
def test_small_grids_are_convolved_as_scipy_does(dtype: type) -> None:
    grid = (np.random.default_rng(1).random((10, 10, 4)) < 0.3).astype(dtype)
    network = cnn_for(grid.shape)
    variables = network.init(jax.random.key(1), grid)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    kernel = params["convolution_0"]["kernel"]
    assert kernel.shape == (3, 3, 4, 16)
    hidden = np.stack([correlate(grid.astype(np.float64), kernel[..., i], mode="valid")[..., 0] for i in range(16)], -1)
    hidden = np.maximum(hidden + params["convolution_0"]["bias"], 0.0).reshape(-1)
    expected = np.maximum(hidden @ params["dense"]["kernel"] + params["dense"]["bias"], 0.0)
    assert expected.shape == (128,)
    np.testing.assert_allclose(network.apply(variables, grid), expected, atol=1e-5)


def test_the_smallest_side_leaves_exactly_one_value() -> None:
    assert smallest_side(NATURE_LAYERS) == 36
    assert smallest_side(GRID_LAYERS) == 3
    network = CNN(layers=NATURE_LAYERS, output_size=2)
    params = network.init(jax.random.key(0), jnp.zeros((36, 36, 1)))["params"]
    assert params["dense"]["kernel"].shape == (64, 2)


def test_images_too_small_for_the_layers_are_an_error() -> None:
    with pytest.raises(ShapeError, match="at least 36"):
        CNN(layers=NATURE_LAYERS).init(jax.random.key(0), jnp.zeros((35, 84, 3)))
