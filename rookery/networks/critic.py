"""Action-value networks: Q(s, a) for continuous actions, or the values of all discrete actions."""

import dataclasses
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from rookery.configuration import setting
from rookery.errors import InvalidInputError
from rookery.networks.distributions import GaussianConfig
from rookery.networks.mlp import MLP
from rookery.networks.policy import PolicyConfig, PolicyNetwork, Trunk, TrunkConfig
from rookery.spaces import Box, Discrete, Space
from rookery.types import Action, Array, Key, Params, PyTreeDict, as_key


@dataclass(frozen=True)
class Critic:
    """Q(s, a); static, compared by value.

    The trunk encodes observations and ends with the recurrent core, if there is one. Its features and the action are
    the inputs of the fully connected layers; the action is scaled to [-1, 1] if its bounds are finite.
    """

    obs_space: Space
    action_space: Box | Discrete
    config: TrunkConfig = field(default_factory=TrunkConfig)

    def __post_init__(self) -> None:
        if not isinstance(self.action_space, (Box, Discrete)):
            raise InvalidInputError(f"no critic for actions of {self.action_space}: expected Box or Discrete.")

    @property
    def trunk(self) -> Trunk:
        """The part of the network that depends only on the observation."""
        return Trunk(self.obs_space, dataclasses.replace(self.config, hidden_sizes=()))

    def init(self, key: Key) -> Params:
        """Make the parameters of `trunk` and `head`."""
        trunk_key, head_key = jax.random.split(as_key(key))
        params = self.trunk.init(trunk_key)
        obs, action = (jax.eval_shape(space.sample, head_key) for space in (self.obs_space, self.action_space))
        carry = self.trunk.initial_carry()
        features, _ = jax.eval_shape(self.trunk, params, obs, carry, jnp.ones(()))
        inputs = jax.eval_shape(self._inputs, features, action)
        return PyTreeDict(trunk=params, head=self._head.lazy_init(head_key, inputs)["params"])

    def __call__(self, params: Params, features: Array, actions: Action) -> Array:
        """Return the values `[...]` of features `[..., F]` of the trunk and actions `[..., *shape]`."""
        values = self._head.apply({"params": params["head"]}, self._inputs(features, actions))
        if isinstance(self.action_space, Box):
            return values[..., 0]
        indexes = actions - self.action_space.start
        return jnp.take_along_axis(values, indexes[..., None].astype(jnp.int32), axis=-1)[..., 0]

    def of_all_actions(self, params: Params, features: Array) -> Array:
        """Return the values `[..., n]` of all discrete actions."""
        return self._head.apply({"params": params["head"]}, features)

    def _inputs(self, features: Array, actions: Action) -> Array:
        space = self.action_space
        if not isinstance(space, Box):
            return features
        scaled = actions
        if space.bounded:
            center, half_range = space.low / 2 + space.high / 2, space.high / 2 - space.low / 2
            half_range = np.where(half_range > 0, half_range, 1)  # for entries with equal bounds
            scaled = (actions - jnp.broadcast_to(center, actions.shape)) / jnp.broadcast_to(half_range, actions.shape)
        return jnp.concatenate([features, scaled.reshape(*features.shape[:-1], space.size)], axis=-1)

    @property
    def _head(self) -> MLP:
        config = self.config
        return MLP(
            config.hidden_sizes,
            config.activation,
            config.kernel_init,
            output_size=1 if isinstance(self.action_space, Box) else self.action_space.n,
            layer_norm=config.layer_norm,
        )


@dataclass(frozen=True)
class SquashedGaussianConfig(GaussianConfig):
    """How a policy acts in a `Box` with finite bounds: within them."""

    bounds: str = "squash"


@dataclass(frozen=True)
class ActorCriticsConfig(PolicyConfig):
    """The shape of a policy and of its critics, which have the same layers and a core each."""

    activation: str = "relu"
    gaussian: SquashedGaussianConfig = SquashedGaussianConfig()
    num_critics: int = setting(2, low=1, help="number of critics; the lowest value counts")


@dataclass(frozen=True)
class ActorCriticsNetwork:
    """A policy and several critics with separate parameters; static, compared by value."""

    obs_space: Space
    action_space: Space
    config: ActorCriticsConfig

    @property
    def policy(self) -> PolicyNetwork:
        return PolicyNetwork(self.obs_space, self.action_space, self.config)

    @property
    def critic(self) -> Critic:
        """One critic; map it over the first axis of the parameters, which is the number of critics."""
        return Critic(self.obs_space, self.action_space, self.config)  # type: ignore[arg-type]

    def init(self, key: Key) -> Params:
        """Make the parameters of the `policy` and of the `critics` `[num_critics, ...]`."""
        policy_key, critics_key = jax.random.split(as_key(key))
        critics = jax.vmap(self.critic.init)(jax.random.split(critics_key, self.config.num_critics))
        return PyTreeDict(policy=self.policy.init(policy_key), critics=critics)
