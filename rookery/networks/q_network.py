"""Q-networks: values of all discrete actions, as numbers or as distributions of returns."""

import dataclasses
from dataclasses import dataclass, field

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Carry, action_mask_of
from rookery.configuration import setting
from rookery.errors import InvalidInputError, ShapeError
from rookery.networks.mlp import MLP
from rookery.networks.policy import Trunk, TrunkConfig
from rookery.spaces import Discrete, Shape, Space
from rookery.types import Array, Key, Obs, Params, PyTreeDict, as_key

HEADS = ("expected", "categorical", "quantile")


@dataclass(frozen=True)
class QNetworkConfig(TrunkConfig):
    """The shape of a Q-network.

    The `head` gives for each action
    - "expected": its value;
    - "categorical": logits of `num_atoms` returns, from `min_value` to `max_value` in equal steps;
    - "quantile": `num_atoms` equally likely returns.
    """

    activation: str = "relu"
    dueling: bool = setting(False, help="after the core, one last layer for the state's value, one for the advantages")
    head: str = setting(
        "expected",
        choices=HEADS,
        help="expected: values; categorical: C51, fixed returns; quantile: QR-DQN, equally likely returns",
    )
    num_atoms: int = setting(51, low=1, help="categorical and quantile: number of returns")
    min_value: float = setting(-10.0, help="categorical: the lowest return; lower ones count as this")
    max_value: float = setting(10.0, help="categorical: the highest return")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head == "categorical" and self.num_atoms < 2:
            raise InvalidInputError(f"num_atoms={self.num_atoms} must be at least 2 for head={self.head!r}.")
        if not self.min_value < self.max_value:
            raise InvalidInputError(f"min_value={self.min_value:g} must be below max_value={self.max_value:g}.")


@dataclass(frozen=True)
class QNetwork:
    """Q(s, a) of all `n` actions; static, compared by value.

    The trunk computes features, `head` computes `K` outputs for each action (see `QNetworkConfig`), and `values`
    computes their expected returns.
    """

    obs_space: Space
    action_space: Discrete
    config: QNetworkConfig = field(default_factory=QNetworkConfig)

    @property
    def trunk(self) -> Trunk:
        """The part of the network that computes features."""
        config = self.config
        shared = config.hidden_sizes[:-1] if config.dueling else config.hidden_sizes
        return Trunk(self.obs_space, dataclasses.replace(config, hidden_sizes=shared))

    @property
    def atoms(self) -> np.ndarray:
        """The returns `[K]` whose probabilities a categorical head predicts."""
        return np.linspace(self.config.min_value, self.config.max_value, self.config.num_atoms, dtype=np.float32)

    def init(self, key: Key) -> Params:
        """Make the parameters of `trunk` and `head`."""
        trunk_key, head_key = jax.random.split(as_key(key))
        trunk_params = self.trunk.init(trunk_key)
        obs, carry, start = jax.eval_shape(self.obs_space.sample, trunk_key), self.initial_carry(), jnp.ones(())
        features, _ = jax.eval_shape(self.trunk, trunk_params, obs, carry, start)
        params = PyTreeDict(trunk=trunk_params, head=self._head.lazy_init(head_key, features)["params"])
        # Trace one step: an action mask that does not fit the action space raises here.
        jax.eval_shape(lambda obs: self.best(self(params, obs, carry, start)[0], obs), obs)
        return params

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        """Make the carry at the start of an episode; needs no parameters."""
        return self.trunk.initial_carry(batch_shape)

    def __call__(
        self, params: Params, obs: Obs, carry: Carry = (), episode_start: Array | None = None
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

    def best(self, values: Array, obs: Obs) -> Array:
        """Return the index `[...]` of the best action allowed by the mask of `obs`, or of all if none is allowed."""
        mask = action_mask_of(obs)
        if mask is None:
            return jnp.argmax(values, axis=-1).astype(jnp.int32)
        if mask.shape != values.shape:
            raise ShapeError(
                f"action mask has shape {list(mask.shape)}; expected {list(values.shape)} like the values."
            )
        allowed = mask.astype(bool)
        allowed = allowed | ~jnp.any(allowed, axis=-1, keepdims=True)
        return jnp.argmax(jnp.where(allowed, values, -jnp.inf), axis=-1).astype(jnp.int32)

    def action(self, indexes: Array) -> Array:
        """Convert indexes, which start at 0, to actions."""
        return indexes.astype(self.action_space.sample_dtype) + self.action_space.start

    def index(self, actions: Array) -> Array:
        """Convert actions to indexes."""
        return (actions - self.action_space.start).astype(jnp.int32)

    @property
    def _head(self) -> nn.Module:
        num_outputs = 1 if self.config.head == "expected" else self.config.num_atoms
        return _QHead(self.action_space.n, num_outputs, self.config)


def outputs_of(outputs: Array, indexes: Array) -> Array:
    """Select the outputs `[..., K]` of one action each from `[..., n, K]`; indexes start at 0."""
    is_chosen = jax.nn.one_hot(indexes, outputs.shape[-2], dtype=bool)
    # On CPU its gradient is faster than that of indexing, which is a scatter.
    return jnp.sum(jnp.where(is_chosen[..., None], outputs, 0.0), axis=-2)


class _QHead(nn.Module):
    """A linear layer, or with `dueling` two streams (Wang et al., 2016, eq. 9, applied to each output)."""

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
