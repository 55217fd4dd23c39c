"""Recurrent cores: GRU and LSTM, which reset their carry at episode starts."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from rookery.agent import Carry
from rookery.errors import InvalidInputError, ShapeError, unknown_name
from rookery.networks.mlp import orthogonal
from rookery.spaces import Shape
from rookery.types import Array, Key, Params, PyTreeDict, as_key, where_tree

CELLS = {"gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}


@dataclass(frozen=True)
class RecurrentCore:
    """A recurrent cell whose carry is reset before each step that starts an episode."""

    kind: str
    size: int

    def __post_init__(self) -> None:
        if self.kind not in CELLS:
            raise unknown_name("recurrent core", self.kind, CELLS)
        if self.size < 1:
            raise InvalidInputError(f"recurrent core: size={self.size} must be at least 1.")

    def init(self, key: Key, num_features: int) -> Params:
        """Make the parameters for inputs `[..., num_features]`."""
        return PyTreeDict(self._cell.init(as_key(key), self.initial_carry(), jnp.zeros(num_features))["params"])

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        """Make the carry at the start of an episode: the hidden state of a GRU, cell and hidden state of an LSTM."""
        zeros = jnp.zeros((*batch_shape, self.size))
        return (zeros, zeros) if self.kind == "lstm" else zeros

    def step(self, params: Params, carry: Carry, inputs: Array, episode_start: Array) -> tuple[Carry, Array]:
        """Advance by one step: inputs `[..., F]`, `episode_start` `[...]` (0 or 1), outputs `[..., size]`."""
        batch_shape = inputs.shape[:-1]
        _check_shapes(batch_shape, episode_start, carry)
        carry = where_tree(episode_start, self.initial_carry(batch_shape), carry)
        return self._cell.apply({"params": params}, carry, inputs)

    def unroll(self, params: Params, carry: Carry, inputs: Array, episode_starts: Array) -> tuple[Carry, Array]:
        """Advance over the leading time axis: inputs `[T, ..., F]`, `episode_starts` `[T, ...]`."""

        def advance(carry: Carry, step: tuple[Array, Array]) -> tuple[Carry, Array]:
            return self.step(params, carry, *step)

        return jax.lax.scan(advance, carry, (inputs, episode_starts))

    def trace(self, params: Params, carry: Carry, inputs: Array, episode_starts: Array) -> tuple[Carry, Array]:
        """`unroll` that returns the carry after every step, `[T, ...]`."""

        def advance(carry: Carry, step: tuple[Array, Array]) -> tuple[Carry, tuple[Carry, Array]]:
            carry, outputs = self.step(params, carry, *step)
            return carry, (carry, outputs)

        return jax.lax.scan(advance, carry, (inputs, episode_starts))[1]

    @property
    def _cell(self) -> nn.RNNCellBase:
        return CELLS[self.kind](self.size, recurrent_kernel_init=orthogonal())


def _check_shapes(batch_shape: Shape, episode_start: Array, carry: Carry) -> None:
    if jnp.shape(episode_start) != batch_shape:
        raise ShapeError(
            f"episode_start has shape {list(jnp.shape(episode_start))}; expected the batch shape {list(batch_shape)}."
        )
    for leaf in jax.tree.leaves(carry):
        if leaf.shape[:-1] != batch_shape:
            raise ShapeError(
                f"the carry has shape {list(leaf.shape)}; expected {[*batch_shape, leaf.shape[-1]]}: "
                f"start from initial_carry({batch_shape})."
            )
