"""Gradient steps whose learning rate and clipping are traced values: they ride in the state, not in the optimizer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from rookery.compilation import relaxed_promotion
from rookery.errors import unknown_name
from rookery.types import Params

OptimizerState = Any
"""What optax keeps for the chosen rule."""

Scalar = Float[Array, ""] | float

EPSILON = 1e-5
"""Of both rules: with it the published results of PPO and A2C were made, rather than with 1e-8."""

RULES = {
    "adam": optax.scale_by_adam(eps=EPSILON),
    "rmsprop": optax.scale_by_rms(decay=0.99, eps=EPSILON, eps_in_sqrt=False),
}


@dataclass(frozen=True)
class Optimizer:
    """Adam or RMSProp with clipping by the global norm; static, compared by name.

    All parameters are updated as one vector, which on CPU costs less than a leaf at a time.
    """

    name: str = "adam"

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise unknown_name("optimizer", self.name, RULES)

    def init(self, params: Params) -> OptimizerState:
        """Make the state before the first step."""
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
        """Descend by one step; return the parameters, the state, and the norm of the gradients before clipping.

        Gradients of a norm above `max_grad_norm` are scaled down to it; None leaves them as they are.
        """
        vector, as_tree = ravel_pytree(gradients)
        norm = jnp.linalg.norm(vector)
        if max_grad_norm is not None:
            vector = vector * jnp.where(norm > max_grad_norm, max_grad_norm / norm, 1.0)
        with relaxed_promotion():  # optax raises a float to the power of an integer
            direction, optimizer_state = RULES[self.name].update(vector, optimizer_state)
        params = jax.tree.map(lambda leaf, change: leaf - change, params, as_tree(learning_rate * direction))
        return params, optimizer_state, norm


ROWS_PER_CHUNK = 2048
"""With about so many samples at a time, the activations of small networks stay in the cache of a CPU core."""


def num_chunks_for(num_samples: int) -> int:
    """Return into how many equal chunks so many samples are best cut on this machine."""
    if jax.default_backend() != "cpu":
        return 1
    most = max(1, num_samples // ROWS_PER_CHUNK)
    return next(number for number in range(most, 0, -1) if num_samples % number == 0)


def gradients_in_chunks(
    loss_fn: Callable[[Params, Any], tuple[Float[Array, ""], Any]], params: Params, samples: Any, num_chunks: int
) -> tuple[Params, Any]:
    """Return the gradients of a loss and what it reports beside it, computed on one chunk of the samples at a time.

    With several chunks the loss and its report must be means over samples `[N]`, which are then those of all samples.
    """
    gradients_of = jax.grad(loss_fn, has_aux=True)
    if num_chunks == 1:
        return gradients_of(params, samples)
    chunks = jax.tree.map(lambda leaf: leaf.reshape(num_chunks, -1, *leaf.shape[1:]), samples)

    def add_chunk(total: Any, chunk: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradients_of(params, chunk)), None

    first = jax.tree.map(lambda leaf: leaf[0], chunks)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(gradients_of, params, first))
    total, _ = jax.lax.scan(add_chunk, zeros, chunks)
    return jax.tree.map(lambda leaf: leaf / num_chunks, total)
