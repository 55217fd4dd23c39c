"""Gradient steps against optax over trees, and against float64 NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rookery.errors import UnknownNameError
from rookery.learning.updates import Optimizer, gradients_in_chunks, num_chunks_for
from rookery.types import Array

NUM_STEPS = 20


def tree_of(key: Array, scale: float = 1.0) -> dict[str, Any]:
    first, second, third = jax.random.split(key, 3)
    return {
        "kernel": scale * jax.random.normal(first, (5, 3)),
        "bias": scale * jax.random.normal(second, (3,)),
        "log_std": scale * jax.random.normal(third, ()),
    }


def gradients_of(step: int) -> dict[str, Any]:
    """Norms from far below to far above the limit of 0.5."""
    return tree_of(jax.random.key(100 + step), scale=10.0 ** (step % 5 - 3))


@pytest.mark.parametrize("max_grad_norm", [0.5, None])
@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_steps_equal_those_of_optax_on_the_tree(name: str, max_grad_norm: float | None) -> None:
    rules = {"adam": optax.adam(1e-2, eps=1e-5), "rmsprop": optax.rmsprop(1e-2, 0.99, 1e-5, eps_in_sqrt=False)}
    clip = optax.identity() if max_grad_norm is None else optax.clip_by_global_norm(max_grad_norm)
    reference = optax.chain(clip, rules[name])
    ours = Optimizer(name)
    params = expected = tree_of(jax.random.key(0))
    state, reference_state = ours.init(params), reference.init(expected)
    step = jax.jit(ours.step)
    for index in range(NUM_STEPS):
        gradients = gradients_of(index)
        params, state, norm = step(gradients, state, params, 1e-2, max_grad_norm)
        with jax.numpy_dtype_promotion("standard"):
            updates, reference_state = reference.update(gradients, reference_state, expected)
        expected = optax.apply_updates(expected, updates)
        np.testing.assert_allclose(norm, optax.tree.norm(gradients), rtol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), params, expected)


def test_rmsprop_is_the_one_of_pytorch_which_adds_epsilon_outside_the_root() -> None:
    gradients = np.random.default_rng(0).normal(size=(NUM_STEPS, 7)) * 1e-4
    params, square_average = np.zeros(7), np.zeros(7)
    ours = Optimizer("rmsprop")
    our_params = jnp.zeros(7)
    state = ours.init(our_params)
    for gradient in gradients:
        square_average = 0.99 * square_average + 0.01 * gradient**2
        params = params - 7e-4 * gradient / (np.sqrt(square_average) + 1e-5)
        our_params, state, _ = ours.step(jnp.asarray(gradient, jnp.float32), state, our_params, 7e-4, None)
    np.testing.assert_allclose(our_params, params, rtol=1e-4)


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.5, None])
def test_zero_gradients_change_nothing(name: str, max_grad_norm: float | None) -> None:
    optimizer, params = Optimizer(name), tree_of(jax.random.key(0))
    gradients = jax.tree.map(jnp.zeros_like, params)
    after, _, norm = optimizer.step(gradients, optimizer.init(params), params, 1e-2, max_grad_norm)
    assert norm == 0.0
    jax.tree.map(np.testing.assert_array_equal, after, params)


def test_hyperparameters_may_differ_between_mapped_seeds() -> None:
    optimizer = Optimizer()
    params = jax.vmap(tree_of)(jax.random.split(jax.random.key(0), 3))
    gradients = jax.vmap(tree_of)(jax.random.split(jax.random.key(1), 3))
    rates, limits = jnp.asarray([1e-3, 0.0, 1e-1]), jnp.asarray([0.5, 1.0, 1e3])
    states = jax.vmap(optimizer.init)(params)
    together = jax.vmap(optimizer.step)(gradients, states, params, rates, limits)
    for seed in range(3):
        one = jax.tree.map(lambda leaf, seed=seed: leaf[seed], (gradients, states, params, rates, limits))
        alone = optimizer.step(*one)
        jax.tree.map(lambda a, b, s=seed: np.testing.assert_allclose(a[s], b, rtol=1e-5, atol=1e-7), together, alone)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b[1]), together[0], params)


def test_a_learning_rate_changed_between_steps_takes_effect_without_a_new_state() -> None:
    optimizer, params = Optimizer(), jnp.zeros(3)
    _, state, _ = optimizer.step(jnp.ones(3), optimizer.init(params), params, 1e-3, None)
    slow, _, _ = optimizer.step(jnp.ones(3), state, params, 1e-3, None)
    fast, _, _ = optimizer.step(jnp.ones(3), state, params, 2e-3, None)
    np.testing.assert_allclose(fast, 2.0 * slow, rtol=1e-6)


def test_a_misspelled_optimizer_is_an_error_that_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'adam'"):
        Optimizer("adamm")


def test_gradients_computed_in_chunks_are_those_of_all_samples_at_once() -> None:
    weights = {"slope": jnp.arange(3.0), "offset": jnp.ones(())}
    samples = {"inputs": jax.random.normal(jax.random.key(0), (24, 3)), "targets": jnp.linspace(-1.0, 1.0, 24)}

    def loss(params: Any, samples: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        error = (samples["inputs"] @ params["slope"] + params["offset"] - samples["targets"]) ** 2
        return jnp.mean(error), {"mean distance": jnp.mean(jnp.sqrt(error))}

    whole = gradients_in_chunks(loss, weights, samples, num_chunks=1)
    in_chunks = gradients_in_chunks(loss, weights, samples, num_chunks=4)
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, rtol=1e-5), whole, in_chunks)


@pytest.mark.parametrize(("has_images", "chunk_size"), [(False, 2048), (True, 256)])
@pytest.mark.parametrize("num_samples", [1, 256, 2048, 4096, 65536, 6000, 4099])
def test_chunks_are_equal_and_hold_about_two_thousand_samples_or_256_images(
    num_samples: int, has_images: bool, chunk_size: int
) -> None:
    num_chunks = num_chunks_for(num_samples, has_images)
    assert num_samples % num_chunks == 0
    assert num_samples // num_chunks >= min(num_samples, chunk_size)


def test_large_minibatches_are_cut_on_a_cpu() -> None:
    assert num_chunks_for(65536) == 32
    assert num_chunks_for(2048, has_images=True) == 8
