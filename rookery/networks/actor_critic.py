"""A policy network and a state-value network, with separate trunks or a shared one."""

from collections.abc import Callable
from dataclasses import dataclass, field

import flax.linen as nn
import jax
import jax.numpy as jnp

from rookery.agent import Carry
from rookery.configuration import setting
from rookery.networks.distributions import Distribution
from rookery.networks.mlp import MLP
from rookery.networks.policy import PolicyConfig, PolicyNetwork, Trunk
from rookery.spaces import Shape, Space
from rookery.types import Array, Key, Obs, Params, PyTreeDict, as_key


@dataclass(frozen=True)
class ActorCriticConfig(PolicyConfig):
    """The shape of both networks: two trunks of the same shape, or one for both heads."""

    shared: bool = setting(False, help="one trunk for policy and value, instead of two")


@dataclass(frozen=True)
class ActorCriticNetwork:
    """Action distributions and state values of observations; static, compared by value.

    The carry is `()` without a recurrent core, else a pair: the carries of the policy trunk and of the value trunk
    (`()` if the trunk is shared).
    """

    obs_space: Space
    action_space: Space
    config: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    def init(self, key: Key) -> Params:
        """Make the parameters of `policy` and `value`; the latter has a `trunk` unless it is shared, and a `head`."""
        policy_key, trunk_key, head_key = jax.random.split(as_key(key), 3)
        policy_params = self._policy.init(policy_key)
        trunk = self._policy.trunk
        obs = jax.eval_shape(self.obs_space.sample, trunk_key)
        features, _ = jax.eval_shape(trunk, policy_params["trunk"], obs, trunk.initial_carry(), jnp.ones(()))
        value_params = PyTreeDict(head=self._value_head.lazy_init(head_key, features)["params"])
        if not self.config.shared:
            value_params["trunk"] = trunk.init(trunk_key)
        return PyTreeDict(policy=policy_params, value=value_params)

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        """Make the carry at the start of an episode; needs no parameters."""
        if self.config.core is None:
            return ()
        trunk = self._policy.trunk
        return trunk.initial_carry(batch_shape), () if self.config.shared else trunk.initial_carry(batch_shape)

    def __call__(
        self, params: Params, obs: Obs, carry: Carry = (), episode_start: Array | None = None
    ) -> tuple[Distribution, Array, Carry]:
        """Return the distributions and values of one step with any batch shape `[...]`, and the next carry."""
        return self._apply(Trunk.__call__, params, obs, carry, episode_start)

    def unroll(
        self, params: Params, obs: Obs, carry: Carry = (), episode_start: Array | None = None
    ) -> tuple[Distribution, Array, Carry]:
        """Return the distributions and values `[T, ...]` of a trajectory, and the carry after it."""
        return self._apply(Trunk.unroll, params, obs, carry, episode_start)

    def _apply(
        self, advance: Callable, params: Params, obs: Obs, carry: Carry, episode_start: Array | None
    ) -> tuple[Distribution, Array, Carry]:
        trunk = self._policy.trunk
        policy_carry, value_carry = carry or ((), ())
        features, policy_carry = advance(trunk, params["policy"]["trunk"], obs, policy_carry, episode_start)
        distribution = self._policy.distribution(params["policy"], features, obs)
        if not self.config.shared:
            features, value_carry = advance(trunk, params["value"]["trunk"], obs, value_carry, episode_start)
        values = self._value_head.apply({"params": params["value"]["head"]}, features)[..., 0]
        return distribution, values, () if self.config.core is None else (policy_carry, value_carry)

    @property
    def _policy(self) -> PolicyNetwork:
        return PolicyNetwork(self.obs_space, self.action_space, self.config)

    @property
    def _value_head(self) -> nn.Module:
        return MLP(hidden_sizes=(), kernel_init=self.config.kernel_init, output_size=1)
