"""Policy networks: a trunk, which may be recurrent, and a head with an action distribution."""

from collections.abc import Callable
from dataclasses import dataclass, field

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Carry, action_mask_of
from rookery.configuration import check_settings, setting
from rookery.errors import InvalidInputError
from rookery.networks.dense import Dense
from rookery.networks.distributions import Distribution, DistributionFamily, GaussianConfig, distribution_family
from rookery.networks.encoders import ObservationEncoder, OwnEncoder, own_encoder
from rookery.networks.mlp import ACTIVATIONS, KERNEL_INITIALIZERS, MLP, initializer_named
from rookery.networks.recurrent import CELLS, RecurrentCore
from rookery.spaces import Shape, Space
from rookery.trust import name_of
from rookery.types import Array, Key, Obs, Params, PyTreeDict, as_key

MAX_LAYERS = 64
"""The maximum number of fully connected layers: a short text may describe a network that takes minutes to trace."""


@dataclass(frozen=True)
class TrunkConfig:
    """The shape of a trunk: fully connected layers on the encoded observation, then an optional recurrent core."""

    hidden_sizes: tuple[int, ...] = setting((64, 64), low=1, help="units of the fully connected layers")
    activation: str = setting("tanh", choices=ACTIVATIONS)
    kernel_init: str = setting("orthogonal", choices=KERNEL_INITIALIZERS)
    layer_norm: bool = setting(False, help="normalize the output of every layer")
    encoder: str | type | None = setting(
        None, help="your flax module that encodes observations, my_module:MyEncoder; the layers follow; null: ours"
    )
    core: str | None = setting(None, choices=CELLS, help="recurrent core after the layers: null, gru or lstm")
    core_size: int = setting(128, low=1, help="units of the core")

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        encoder = name_of(self.encoder) if isinstance(self.encoder, type) else self.encoder
        object.__setattr__(self, "encoder", encoder)
        check_settings(self)
        if len(self.hidden_sizes) > MAX_LAYERS:
            raise InvalidInputError(f"hidden_sizes={len(self.hidden_sizes)} layers: expected at most {MAX_LAYERS}.")
        if encoder is not None:
            own_encoder(encoder)

    def make_encoder(self, obs_space: Space) -> nn.Module:
        """Make the encoder of observations."""
        if self.encoder is None:
            return ObservationEncoder(obs_space, self.kernel_init, name="encoder")
        return OwnEncoder(obs_space, self.encoder, name="encoder")

    def make_core(self) -> RecurrentCore | None:
        """Make the recurrent core, or None for a feed-forward network."""
        return None if self.core is None else RecurrentCore(self.core, self.core_size)


@dataclass(frozen=True)
class PolicyConfig(TrunkConfig):
    """The shape of a policy network."""

    output_init_scale: float = setting(0.01, help="small: the first policy is nearly the same in all states")
    gaussian: GaussianConfig = setting(GaussianConfig(), help="continuous actions only")


@dataclass(frozen=True)
class Trunk:
    """Features of observations, for any head; static, compared by value.

    Without a recurrent core, the carry is `()` and `episode_start` is not needed.
    """

    obs_space: Space
    config: TrunkConfig = field(default_factory=TrunkConfig)

    def init(self, key: Key) -> Params:
        """Make the parameters: `layers`, and `core` if there is one."""
        layers_key, core_key = jax.random.split(as_key(key))
        obs = jax.eval_shape(self.obs_space.sample, layers_key)
        params = PyTreeDict(layers=self._layers.lazy_init(layers_key, obs).get("params", {}))
        if self.config.encoder is not None:  # an own one may work with one observation alone
            rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), obs)
            jax.eval_shape(self._encode, params, rows)
        core = self.config.make_core()
        if core is not None:
            features = jax.eval_shape(self._encode, params, obs)
            params["core"] = core.init(core_key, features.shape[-1])
        return params

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        """Make the carry at the start of an episode; needs no parameters."""
        core = self.config.make_core()
        return () if core is None else core.initial_carry(batch_shape)

    def __call__(
        self, params: Params, obs: Obs, carry: Carry = (), episode_start: Array | None = None
    ) -> tuple[Array, Carry]:
        """Return the features `[..., F]` of one step and the next carry; `episode_start` is `[...]`."""
        return self._apply(RecurrentCore.step, params, obs, carry, episode_start)

    def unroll(
        self, params: Params, obs: Obs, carry: Carry = (), episode_start: Array | None = None
    ) -> tuple[Array, Carry]:
        """Return the features `[T, ..., F]` of a trajectory that starts with `carry`, and the carry after it."""
        return self._apply(RecurrentCore.unroll, params, obs, carry, episode_start)

    def trace(
        self, params: Params, obs: Obs, carry: Carry = (), episode_start: Array | None = None
    ) -> tuple[Array, Carry]:
        """`unroll` that returns the carry after every step, `[T, ...]`."""
        return self._apply(RecurrentCore.trace, params, obs, carry, episode_start)

    def _apply(
        self, advance: Callable, params: Params, obs: Obs, carry: Carry, episode_start: Array | None
    ) -> tuple[Array, Carry]:
        features = self._encode(params, obs)
        core = self.config.make_core()
        if core is None:
            return features, ()
        if episode_start is None or not jax.tree.leaves(carry):
            raise InvalidInputError(
                f"a network with a {self.config.core} core needs a carry and episode_start: "
                "start with initial_carry(batch_shape) and episode_start 1."
            )
        carry, features = advance(core, params["core"], carry, features, episode_start)
        return features, carry

    def _encode(self, params: Params, obs: Obs) -> Array:
        self.obs_space.batch_shape_of(obs)  # raises if the observation does not fit the space
        return self._layers.apply({"params": params["layers"]}, obs)

    @property
    def _layers(self) -> nn.Module:
        return _TrunkLayers(self.obs_space, self.config)


class _TrunkLayers(nn.Module):
    """The feed-forward layers of a trunk."""

    obs_space: Space
    config: TrunkConfig

    @nn.compact
    def __call__(self, obs: Obs) -> Array:
        config = self.config
        features = config.make_encoder(self.obs_space)(obs)
        hidden = MLP(
            config.hidden_sizes, config.activation, config.kernel_init, layer_norm=config.layer_norm, name="hidden"
        )
        return hidden(features)


@dataclass(frozen=True)
class PolicyNetwork:
    """Action distributions of observations; static, compared by value, so it can be part of a compiled program.

    Parameters and carry are arguments; the carry is `()` without a recurrent core. The action mask of a dict
    observation is respected.
    """

    obs_space: Space
    action_space: Space
    config: PolicyConfig = field(default_factory=PolicyConfig)

    def __post_init__(self) -> None:
        distribution_family(self.action_space, self.config.gaussian)

    def init(self, key: Key) -> Params:
        """Make the parameters of `trunk` and `head`."""
        trunk_key, head_key = jax.random.split(as_key(key))
        trunk_params = self.trunk.init(trunk_key)
        obs = jax.eval_shape(self.obs_space.sample, trunk_key)
        features, _ = jax.eval_shape(self.trunk, trunk_params, obs, self.initial_carry(), jnp.ones(()))
        params = PyTreeDict(trunk=trunk_params, head=self._head.lazy_init(head_key, features)["params"])
        # Trace one step: an action mask that does not fit the action space raises here.
        jax.eval_shape(self, params, obs, self.initial_carry(), jnp.ones(()))
        return params

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        """Make the carry at the start of an episode; needs no parameters."""
        return self.trunk.initial_carry(batch_shape)

    def __call__(
        self, params: Params, obs: Obs, carry: Carry = (), episode_start: Array | None = None
    ) -> tuple[Distribution, Carry]:
        """Return the distributions of one step with any batch shape `[...]`, and the next carry.

        The carry is reset before the step where `episode_start` `[...]` is 1.
        """
        features, carry = self.trunk(params["trunk"], obs, carry, episode_start)
        return self.distribution(params, features, obs), carry

    def unroll(
        self, params: Params, obs: Obs, carry: Carry = (), episode_start: Array | None = None
    ) -> tuple[Distribution, Carry]:
        """Return the distributions `[T, ...]` of a trajectory that starts with `carry`, and the carry after it."""
        features, carry = self.trunk.unroll(params["trunk"], obs, carry, episode_start)
        return self.distribution(params, features, obs), carry

    def distribution(self, params: Params, features: Array, obs: Obs) -> Distribution:
        """Return the distributions for the features of `obs`."""
        outputs, free_parameters = self._head.apply({"params": params["head"]}, features)
        mask = action_mask_of(obs)
        if mask is not None:
            mask = mask.reshape(*features.shape[:-1], -1)
        return self._family.build(outputs, free_parameters, mask)

    @property
    def _family(self) -> DistributionFamily:
        return distribution_family(self.action_space, self.config.gaussian)

    @property
    def trunk(self) -> Trunk:
        """The part of the network that computes features."""
        return Trunk(self.obs_space, self.config)

    @property
    def _head(self) -> nn.Module:
        config = self.config
        family = self._family
        kernel_init = initializer_named(config.kernel_init, config.output_init_scale)
        values = family.initial_free_parameters
        # A function, because flax walks over every number of a tuple, which may be long.
        free_init = (lambda key: jnp.asarray(np.array(values, np.float32))) if values else None
        return _PolicyHead(family.num_outputs, free_init, kernel_init)


class _PolicyHead(nn.Module):
    """A linear layer, and the parameters of the distribution that do not depend on the observation."""

    num_outputs: int
    free_init: nn.initializers.Initializer | None
    kernel_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, features: Array) -> tuple[Array, Array]:
        outputs = Dense(self.num_outputs, kernel_init=self.kernel_init, name="output")(features)
        if self.free_init is None:
            return outputs, jnp.zeros(0)  # no parameter of size 0: checkpoints cannot store one
        return outputs, self.param("free", self.free_init)
