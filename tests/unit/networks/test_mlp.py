"""Fully connected networks against float64 NumPy, and initializers against their formulas."""

import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import UnknownNameError
from rookery.networks.mlp import ACTIVATIONS, MLP, initializer_named, orthogonal


def kernels_of(network: MLP, num_features: int = 16) -> dict[str, np.ndarray]:
    params = network.init(jax.random.key(0), jnp.zeros(num_features))["params"]
    return {name: np.asarray(layer["kernel"], np.float64) for name, layer in params.items() if "kernel" in layer}


def test_every_layer_draws_its_own_kernel() -> None:
    kernels = kernels_of(MLP(hidden_sizes=(16, 16, 16), output_size=16))
    names = sorted(kernels)
    assert len(names) == 4
    for index, name in enumerate(names):
        for other in names[:index]:
            cosine = (
                np.sum(kernels[name] * kernels[other]) / np.linalg.norm(kernels[name]) / np.linalg.norm(kernels[other])
            )
            assert abs(cosine) < 0.3, (name, other)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_orthogonal_layers_have_the_gain_of_their_activation(activation: str) -> None:
    kernels = kernels_of(MLP(hidden_sizes=(16,), activation=activation, output_size=16, output_init_scale=0.01))
    gain = ACTIVATIONS[activation].gain
    np.testing.assert_allclose(kernels["hidden_0"].T @ kernels["hidden_0"], gain**2 * np.eye(16), atol=1e-5)
    np.testing.assert_allclose(kernels["output"].T @ kernels["output"], 1e-4 * np.eye(16), atol=1e-9)


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("lecun_normal", 1 / 200),
        ("lecun_uniform", 1 / 200),
        ("he_normal", 2 / 200),
        ("he_uniform", 2 / 200),
        ("xavier_normal", 2 / 500),
        ("xavier_uniform", 2 / 500),
    ],
)
def test_variance_scaling_initializers_have_the_variance_of_their_paper_times_the_squared_gain(
    name: str, variance: float
) -> None:
    kernel = initializer_named(name, gain=3.0)(jax.random.key(1), (200, 300))
    assert float(jnp.var(kernel)) == pytest.approx(9 * variance, rel=0.03)


def test_zeros_initializer_gives_zeros() -> None:
    assert not np.any(initializer_named("zeros", gain=2.0)(jax.random.key(0), (3, 4)))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_forward_pass_equals_a_float64_reference(layer_norm: bool) -> None:
    network = MLP(hidden_sizes=(7, 5), activation="tanh", output_size=3, layer_norm=layer_norm)
    inputs = jax.random.normal(jax.random.key(2), (4, 6))
    variables = network.init(jax.random.key(3), inputs)
    variables = jax.tree.map(lambda leaf: leaf + 0.1, variables)

    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    x = np.asarray(inputs, np.float64)
    for index in range(2):
        x = x @ params[f"hidden_{index}"]["kernel"] + params[f"hidden_{index}"]["bias"]
        if layer_norm:
            x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
            x = x * params[f"norm_{index}"]["scale"] + params[f"norm_{index}"]["bias"]
        x = np.tanh(x)
    expected = x @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(network.apply(variables, inputs), expected, atol=1e-5)


def test_without_output_size_the_last_hidden_layer_is_the_output() -> None:
    network = MLP(hidden_sizes=(8, 5), activation="relu")
    inputs = jax.random.normal(jax.random.key(0), (2, 3, 4))
    outputs = network.apply(network.init(jax.random.key(1), inputs), inputs)
    assert outputs.shape == (2, 3, 5)
    assert float(outputs.min()) == 0.0


def test_unknown_names_are_errors_that_offer_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'tahn'.*'tanh'"):
        MLP(hidden_sizes=(4,), activation="tahn").init(jax.random.key(0), jnp.zeros(3))
    with pytest.raises(UnknownNameError, match=r"'ortogonal'.*'orthogonal'"):
        initializer_named("ortogonal")


def test_tanh_gain_is_that_of_published_ppo() -> None:
    assert ACTIVATIONS["tanh"].gain == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("shape", [(4, 64), (64, 64), (64, 2), (3, 3, 4, 16)])
def test_orthogonal_kernels_have_orthonormal_rows_or_columns(shape: tuple[int, ...]) -> None:
    matrix = np.asarray(orthogonal(2.0)(jax.random.key(0), shape), np.float64).reshape(-1, shape[-1]) / 2.0
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-5)


def test_compiled_initialisation_of_a_population_ends() -> None:
    # Mapped QR decompositions inside one program can wait for each other for ever: a process of its own can be ended.
    code = """
import jax
from rookery.networks.mlp import MLP
network = MLP((64, 64), output_size=2)
init = jax.jit(jax.vmap(lambda key: network.init(key, jax.numpy.zeros(4))))
jax.block_until_ready(init(jax.random.split(jax.random.key(0), 512)))
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ended", done.stderr
