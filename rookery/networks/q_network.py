"""The values of all discrete actions: one number each, or the distribution of the return that it is the mean of."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Carry, action_mask_of
from rookery.errors import InvalidInputError, ShapeError, unknown_name
from rookery.networks.mlp import MLP
from rookery.networks.policy import Trunk, TrunkConfig
from rookery.spaces import Discrete, Shape, Space
from rookery.types import Array, Key, Params, PyTreeDict, as_key

HEADS = ("expected", "categorical", "quantile")


@dataclass(frozen=True)
class QNetworkConfig(TrunkConfig):
    """The shape of a Q-network.

    With `dueling` the last of the hidden layers is there twice, after the core: once for the value of the state, once
    for the advantages of the actions over it. The `head` gives for each action
    - "expected": its value;
    - "categorical": logits of `num_atoms` returns, from `min_value` to `max_value` in equal steps;
    - "quantile": `num_atoms` equally likely returns.
    """

    activation: str = "relu"
    dueling: bool = False
    head: str = "expected"
    num_atoms: int = 51
    min_value: float = -10.0
    max_value: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head not in HEADS:
            raise unknown_name("head", self.head, HEADS)
        fewest = 2 if self.head == "categorical" else 1
        if self.num_atoms < fewest:
            raise InvalidInputError(f"num_atoms={self.num_atoms} must be at least {fewest} for head={self.head!r}.")
        if not self.min_value < self.max_value:
            raise InvalidInputError(f"min_value={self.min_value:g} must be below max_value={self.max_value:g}.")


@dataclass(frozen=True)
class QNetwork:
    """Q(s, a) of all `n` actions at once; static, compared by value.

    The trunk makes features of observations, `head` makes `K` outputs for each action of them (see `QNetworkConfig`),
    and `values` the expected returns of those.
    """

    obs_space: Space
    action_space: Discrete
    config: QNetworkConfig = field(default_factory=QNetworkConfig)

    @property
    def trunk(self) -> Trunk:
        """The part of the network that makes features."""
        config = self.config
        shared = config.hidden_sizes[:-1] if config.dueling else config.hidden_sizes
        return Trunk(self.obs_space, dataclasses.replace(config, hidden_sizes=shared))

    @property
    def atoms(self) -> np.ndarray:
        """The returns `[K]` whose probabilities a categorical head gives."""
        return np.linspace(self.config.min_value, self.config.max_value, self.config.num_atoms, dtype=np.float32)

    def init(self, key: Key) -> Params:
        """Make the parameters of `trunk` and `head`."""
        trunk_key, head_key = jax.random.split(as_key(key))
        trunk_params = self.trunk.init(trunk_key)
        obs, carry, start = jax.eval_shape(self.obs_space.sample, trunk_key), self.initial_carry(), jnp.ones(())
        features, _ = jax.eval_shape(self.trunk, trunk_params, obs, carry, start)
        params = PyTreeDict(trunk=trunk_params, head=self._head.lazy_init(head_key, features)["params"])
        # One step without computing it: an action mask that does not fit the action space is found here.
        jax.eval_shape(lambda obs: self.best(self(params, obs, carry, start)[0], obs), obs)
        return params

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        """Make the carry with which an episode starts; needs no parameters."""
        return self.trunk.initial_carry(batch_shape)

    def __call__(
        self, params: Params, obs: Any, carry: Carry = (), episode_start: Array | None = None
    ) -> tuple[Array, Carry]:
        """Return the values `[..., n]` of one step with any batch shape `[...]`, and the next carry."""
        features, carry = self.trunk(params["trunk"], obs, carry, episode_start)
        return self.values(self.head(params, features)), carry

    def head(self, params: Params, features: Array) -> Array:
        """Return the outputs `[..., n, K]` for features `[..., F]` of the trunk."""
        return self._head.apply({"params": params["head"]}, features)

    def values(self, outputs: Array) -> Array:
        """Return the expected returns `[...]` of outputs `[..., K]`."""
        if self.config.head == "categorical":
            return jnp.sum(jax.nn.softmax(outputs) * jnp.broadcast_to(self.atoms, outputs.shape), axis=-1)
        return jnp.mean(outputs, axis=-1)

    def best(self, values: Array, obs: Any) -> Array:
        """Return the index `[...]` of the best of the actions that `obs` allows, or of all if it allows none."""
        mask = action_mask_of(obs)
        if mask is None:
            return jnp.argmax(values, axis=-1).astype(jnp.int32)
        if mask.shape != values.shape:
            raise ShapeError(f"action mask has shape {list(mask.shape)}; expected {list(values.shape)}, as the values.")
        allowed = mask.astype(bool)
        allowed = allowed | ~jnp.any(allowed, axis=-1, keepdims=True)
        return jnp.argmax(jnp.where(allowed, values, -jnp.inf), axis=-1).astype(jnp.int32)

    def action(self, indexes: Array) -> Array:
        """Return the actions of indexes, which count from 0."""
        return indexes.astype(self.action_space.sample_dtype) + self.action_space.start

    def index(self, actions: Array) -> Array:
        """Return the indexes of actions."""
        return (actions - self.action_space.start).astype(jnp.int32)

    @property
    def _head(self) -> nn.Module:
        num_outputs = 1 if self.config.head == "expected" else self.config.num_atoms
        return _QHead(self.action_space.n, num_outputs, self.config)


def outputs_of(outputs: Array, indexes: Array) -> Array:
    """Select from `[..., n, K]` the outputs `[..., K]` of one action each, counted from 0."""
    is_chosen = jax.nn.one_hot(indexes, outputs.shape[-2], dtype=bool)
    # On CPU the gradient of this is faster than that of an indexed read, which is a scatter.
    return jnp.sum(jnp.where(is_chosen[..., None], outputs, 0.0), axis=-2)


class _QHead(nn.Module):
    """A linear layer, or with `dueling` two streams (Wang et al., 2016, eq. 9; for each output by itself)."""

    num_actions: int
    num_outputs: int
    config: QNetworkConfig

    @nn.compact
    def __call__(self, features: Array) -> Array:
        advantages = self._stream("advantages", self.num_actions * self.num_outputs, features)
        advantages = advantages.reshape(*features.shape[:-1], self.num_actions, self.num_outputs)
        if not self.config.dueling:
            return advantages
        value = self._stream("value", self.num_outputs, features)
        return value[..., None, :] + advantages - jnp.mean(advantages, axis=-2, keepdims=True)

    def _stream(self, name: str, size: int, features: Array) -> Array:
        config = self.config
        own_sizes = config.hidden_sizes[-1:] if config.dueling else ()
        layers = MLP(own_sizes, config.activation, config.kernel_init, size, layer_norm=config.layer_norm, name=name)
        return layers(features)
