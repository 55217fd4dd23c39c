"""Gradient steps with traced learning rates and clipping: they are part of the state, not of the optimizer."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from rookery.compilation import relaxed_promotion
from rookery.errors import unknown_name
from rookery.types import Params, PyTree, index_tree

OptimizerState = PyTree
"""The state of the optax update rule."""

Scalar = Float[Array, ""] | float

EPSILON = 1e-5
"""For both rules: the published results of PPO and A2C use it instead of 1e-8."""

RULES = {
    "adam": optax.scale_by_adam(eps=EPSILON),
    "rmsprop": optax.scale_by_rms(decay=0.99, eps=EPSILON, eps_in_sqrt=False),
}


@dataclass(frozen=True)
class Optimizer:
    """Adam or RMSProp with clipping by the global norm; static, compared by name.

    All parameters are updated as one vector, which is faster on CPU than leaf by leaf.
    """

    name: str = "adam"

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise unknown_name("optimizer", self.name, RULES)

    def init(self, params: Params) -> OptimizerState:
        """Make the initial state."""
        vector, _ = ravel_pytree(params)
        return RULES[self.name].init(vector)

    def step(
        self,
        gradients: Params,
        optimizer_state: OptimizerState,
        params: Params,
        learning_rate: Scalar,
        max_grad_norm: Scalar | None = None,
    ) -> tuple[Params, OptimizerState, Float[Array, ""]]:
        """Apply one gradient step; return the parameters, the state, and the norm of the gradients before clipping.

        Gradients with a norm above `max_grad_norm` are scaled down to it; None disables clipping.
        """
        vector, as_tree = ravel_pytree(gradients)
        norm = jnp.linalg.norm(vector)
        if max_grad_norm is not None:
            vector = vector * jnp.where(norm > max_grad_norm, max_grad_norm / norm, 1.0)
        with relaxed_promotion():  # optax raises a float to the power of an integer
            direction, optimizer_state = RULES[self.name].update(vector, optimizer_state)
        params = jax.tree.map(jnp.subtract, params, as_tree(learning_rate * direction))
        return params, optimizer_state, norm


ROWS_PER_CHUNK = 2048
"""Chunks of about this size keep the activations of small networks in the cache of a CPU core."""
IMAGES_PER_CHUNK = 256
"""The same for samples with images: convolutional networks have larger activations."""


def num_chunks_for(num_samples: int, has_images: bool = False) -> int:
    """Return the best number of equal chunks for `num_samples` samples on this machine."""
    if jax.default_backend() != "cpu":
        return 1
    num_chunks = max(1, num_samples // (IMAGES_PER_CHUNK if has_images else ROWS_PER_CHUNK))
    while num_samples % num_chunks:
        num_chunks -= 1
    return num_chunks


def gradients_in_chunks(
    loss_fn: Callable[[Params, PyTree], tuple[Float[Array, ""], PyTree]],
    params: Params,
    samples: PyTree,
    num_chunks: int,
) -> tuple[Params, PyTree]:
    """Return the gradients of a loss and its auxiliary output, computed on one chunk of the samples at a time.

    With several chunks, the loss and its auxiliary output must be means over samples `[N]`.
    """
    gradients_of = jax.grad(loss_fn, has_aux=True)
    if num_chunks == 1:
        return gradients_of(params, samples)
    chunks = jax.tree.map(lambda leaf: leaf.reshape(num_chunks, -1, *leaf.shape[1:]), samples)

    def add_chunk(total: PyTree, chunk: PyTree) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, gradients_of(params, chunk)), None

    shapes = jax.eval_shape(gradients_of, params, index_tree(chunks, 0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(add_chunk, zeros, chunks)
    return jax.tree.map(lambda leaf: leaf / num_chunks, total)
