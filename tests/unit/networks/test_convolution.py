"""Convolutional networks against SciPy, Flax and `jax.lax` in float64."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import correlate

from rookery.errors import ShapeError
from rookery.networks import convolution
from rookery.networks.convolution import (
    CNN,
    GRID_LAYERS,
    NATURE_LAYERS,
    Convolution,
    ConvolutionLayer,
    cnn_for,
    smallest_side,
)


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


def flax_convolution(layer: ConvolutionLayer) -> nn.Conv:
    return nn.Conv(layer.num_features, (layer.kernel_size,) * 2, (layer.stride,) * 2, "VALID")


def image_and_parameter_gradients(network: nn.Module, variables: Any, images: jax.Array) -> Any:
    def loss(variables: Any, images: jax.Array) -> jax.Array:
        outputs = network.apply(variables, images)
        return jnp.sum(outputs * jnp.sin(jnp.arange(outputs.size, dtype=jnp.float32).reshape(outputs.shape)))

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(variables, images)


def assert_trees_are_close(actual: Any, expected: Any) -> None:
    def assert_close(actual: jax.Array, expected: jax.Array) -> None:
        np.testing.assert_allclose(actual, expected, atol=1e-5 * float(jnp.max(jnp.abs(expected))))

    jax.tree.map(assert_close, actual, expected)


def random_images(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(2).standard_normal(shape), jnp.float32)


LAYERS_AND_IMAGES = [
    pytest.param(ConvolutionLayer(32, 8, 4), (2, 3, 36, 40, 4), id="nature_0"),
    pytest.param(ConvolutionLayer(64, 4, 2), (2, 2, 9, 8, 32), id="nature_1"),
    pytest.param(ConvolutionLayer(64, 3, 1), (3, 7, 6, 64), id="nature_2"),
    pytest.param(ConvolutionLayer(16, 3, 1), (10, 10, 4), id="grid_without_batch_axis"),
    pytest.param(ConvolutionLayer(5, 5, 3), (2, 3, 13, 16, 3), id="window_no_multiple_of_stride"),
    pytest.param(ConvolutionLayer(3, 2, 3), (4, 12, 10, 1), id="window_smaller_than_stride"),
    pytest.param(ConvolutionLayer(2, 1, 1), (2, 3, 3, 2), id="window_of_one"),
]


@pytest.mark.parametrize(("layer", "image_shape"), LAYERS_AND_IMAGES)
def test_parameters_values_and_gradients_are_those_of_flax(layer: ConvolutionLayer, image_shape: tuple) -> None:
    images = random_images(*image_shape)
    ours, theirs = Convolution(layer), flax_convolution(layer)
    variables = ours.init(jax.random.key(0), images)
    jax.tree.map(np.testing.assert_array_equal, variables, theirs.init(jax.random.key(0), images))
    np.testing.assert_allclose(ours.apply(variables, images), theirs.apply(variables, images), atol=1e-5)
    gradients = image_and_parameter_gradients(ours, variables, images)
    assert_trees_are_close(gradients, image_and_parameter_gradients(theirs, variables, images))


def lax_convolution(images: jax.Array, kernel: jax.Array, bias: jax.Array, stride: int) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    outputs = jax.lax.conv_general_dilated(images, kernel, (stride, stride), "VALID", dimension_numbers=layout)
    return outputs + bias[None, None, None]


@pytest.mark.parametrize(("layer", "image_shape"), LAYERS_AND_IMAGES)
def test_values_and_gradients_are_those_of_lax_in_float64(layer: ConvolutionLayer, image_shape: tuple) -> None:
    rng = np.random.default_rng(3)
    images = random_images(5, *image_shape[-3:])
    params = {"kernel": random_images(layer.kernel_size, layer.kernel_size, image_shape[-1], layer.num_features)}
    params["bias"] = random_images(layer.num_features)
    outputs, pull_back = jax.vjp(lambda *args: Convolution(layer).apply({"params": args[0]}, args[1]), params, images)
    cotangents = rng.standard_normal(outputs.shape).astype(np.float32)
    actual = outputs, pull_back(jnp.asarray(cotangents))
    with jax.enable_x64(True):

        def convolve(params: Any, images: jax.Array) -> jax.Array:
            return lax_convolution(images, params["kernel"], params["bias"], layer.stride)

        doubles = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), (params, images, cotangents))
        outputs, pull_back = jax.vjp(convolve, *doubles[:2])
        expected = jax.tree.map(np.asarray, (outputs, pull_back(doubles[2])))
    assert expected[0].dtype == np.float64
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6 * np.max(np.abs(theirs))),
        actual,
        expected,
    )


@pytest.mark.parametrize("images_per_chunk", [0, 2, 3, 7])
def test_values_and_gradients_do_not_depend_on_the_size_of_chunks(
    images_per_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, images = ConvolutionLayer(5, 3, 2), random_images(7, 9, 7, 2)
    patch_bytes = 4 * 3 * (3 * 3 * 2) * 4  # of one image
    monkeypatch.setattr(convolution, "MAX_PATCH_BYTES", images_per_chunk * patch_bytes)
    ours, theirs = Convolution(layer), flax_convolution(layer)
    variables = ours.init(jax.random.key(0), images)
    np.testing.assert_allclose(ours.apply(variables, images), theirs.apply(variables, images), atol=1e-5)
    gradients = image_and_parameter_gradients(ours, variables, images)
    assert_trees_are_close(gradients, image_and_parameter_gradients(theirs, variables, images))


def test_a_population_has_the_gradients_of_its_members() -> None:
    layer, images = ConvolutionLayer(8, 4, 2), random_images(3, 2, 10, 9, 4)
    population = jax.vmap(Convolution(layer).init, in_axes=(0, None))(jax.random.split(jax.random.key(0), 3), images[0])

    def gradients(network: nn.Module) -> Any:
        return jax.vmap(lambda variables, images: image_and_parameter_gradients(network, variables, images))

    member = jax.tree.map(lambda leaf: leaf[1], (population, images))
    of_population = gradients(Convolution(layer))(population, images)
    of_member = image_and_parameter_gradients(flax_convolution(layer), *member)
    assert_trees_are_close(jax.tree.map(lambda leaf: leaf[1], of_population), of_member)


def test_an_empty_batch_has_zero_gradients() -> None:
    layer, images = ConvolutionLayer(2, 3, 1), jnp.zeros((0, 5, 5, 1))
    network, variables = Convolution(layer), Convolution(layer).init(jax.random.key(0), images)
    gradients = jax.grad(lambda variables: jnp.sum(network.apply(variables, images)))(variables)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradients))


def test_second_derivatives_are_those_of_flax() -> None:
    layer, images = ConvolutionLayer(3, 3, 2), random_images(2, 7, 7, 2)
    variables = Convolution(layer).init(jax.random.key(0), images)

    def gradient_norm(images: jax.Array, network: nn.Module) -> jax.Array:
        loss = jax.grad(lambda images: jnp.mean(jnp.tanh(network.apply(variables, images))))
        return jnp.sum(jnp.square(loss(images)))

    theirs = jax.grad(gradient_norm)(images, flax_convolution(layer))
    np.testing.assert_allclose(jax.grad(gradient_norm)(images, Convolution(layer)), theirs, atol=1e-5)
    assert float(jnp.max(jnp.abs(theirs))) > 1e-4


@pytest.mark.parametrize(("platform", "num_convolutions"), [("cpu", 0), ("cuda", 3), ("tpu", 3)])
def test_xla_convolves_on_accelerators_but_not_on_cpu(platform: str, num_convolutions: int) -> None:
    layer, images = ConvolutionLayer(4, 3, 1), random_images(2, 5, 5, 1)
    variables = Convolution(layer).init(jax.random.key(0), images)

    def loss(variables: Any, images: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(Convolution(layer).apply(variables, images)))

    traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(variables, images)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    assert program.count("stablehlo.convolution") == num_convolutions
