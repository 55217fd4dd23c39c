"""Vectorization: many copies of an environment."""

from abc import abstractmethod

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs.env import Env, EnvState, Wrapper, check_is_env
from rookery.envs.wrappers.episode import without
from rookery.errors import InvalidInputError, ShapeError, check_count
from rookery.spaces import Shape, check_discrete_range
from rookery.types import Action, Array, Key, PyTreeDict, Tree, as_key, as_mappable_key, index_tree, where_tree

VECTOR_INFO = ("episode_start", "autoreset")
"""The entries of `info` that only vectorized envs have."""


class VectorWrapper(Wrapper):
    """`num_envs` copies of an env along a leading axis; subclasses define what happens at the end of an episode.

    `info.episode_start` is 1 where `obs` is the first of an episode. In `_internal`, `inner` belongs to the single
    envs and the rest to this wrapper.
    """

    def __init__(self, env: Env, num_envs: int) -> None:
        check_is_env(env)
        check_count("num_envs", num_envs)
        if env.batch_shape:
            raise InvalidInputError("the environment is already vectorized.")
        super().__init__(env)
        self.num_envs = num_envs
        # Compiled here, so that `step` is also fast outside of a compiled program.
        self._compiled_reset = jax.jit(self._reset)
        self._compiled_step = jax.jit(self._step)

    @property
    def batch_shape(self) -> Shape:
        return (self.num_envs,)

    def reset(self, key: Key) -> EnvState:
        """Reset all envs with `num_envs` keys, or with one key, which is split."""
        return self._compiled_reset(self._key_per_env(key))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action", self.batch_shape)
        check_discrete_range(self.action_space, action, "action")
        return self._compiled_step(env_state, action)

    def _reset(self, keys: Key) -> EnvState:
        first_keys, next_keys = split_each(keys)
        state = jax.vmap(self.env.reset)(first_keys)
        self._check(state, "reset")
        info = state.info.replace(episode_start=jnp.ones(self.batch_shape, jnp.float32))
        return self._prepare(state.replace(info=info, _internal=PyTreeDict(inner=state._internal)), next_keys)

    def _step(self, env_state: EnvState, action: Action) -> EnvState:
        stepped = jax.vmap(self.env.step)(self._inner(env_state), action)
        self._check(stepped, "step")
        info = stepped.info.replace(episode_start=jnp.zeros(self.batch_shape, jnp.float32))
        internal = env_state._internal.replace(inner=stepped._internal)
        return self._finish(env_state, stepped.replace(info=info, _internal=internal))

    @abstractmethod
    def _prepare(self, state: EnvState, next_keys: Key) -> EnvState:
        """Add the fields of this wrapper to `_internal` of a reset state; `next_keys` has one unused key per env."""

    @abstractmethod
    def _finish(self, before: EnvState, stepped: EnvState) -> EnvState:
        """Handle the envs whose episode has ended."""

    def render(self, env_state: EnvState) -> np.ndarray:
        """Render the first env."""
        return self.env.render(self.first(env_state))

    def first(self, env_state: EnvState) -> EnvState:
        """Return the state of the first env, without the batch axis."""
        return _first(self._inner(env_state))

    def _check(self, state: EnvState, method: str) -> None:
        """Raise while tracing if the single env returned inconsistent shapes."""
        name = type(self.unwrapped).__name__
        if not isinstance(state, EnvState):
            raise ShapeError(f"{name}.{method} returned {type(state).__name__}; expected an EnvState.")
        self.obs_space.check(state.obs, f"the observation of {name}.{method}", self.batch_shape)
        for what, value in (("reward", state.reward), ("done", state.done)):
            for leaf in jax.tree.leaves(value):
                if jnp.shape(leaf) != self.batch_shape:
                    raise ShapeError(
                        f"the {what} of {name}.{method} has shape {list(jnp.shape(leaf)[1:])}; expected a scalar. "
                        "check_env of rookery.testing.check_env tests all requirements."
                    )

    def _inner(self, env_state: EnvState) -> EnvState:
        """Return the state of the single envs."""
        return env_state.replace(info=without(env_state.info, VECTOR_INFO), _internal=env_state._internal.inner)

    def _key_per_env(self, key: Key) -> Key:
        key = as_key(key)
        if key.shape == ():
            key = jax.random.split(key, self.num_envs)
        if key.shape != self.batch_shape:
            raise ShapeError(f"reset takes one key or {self.num_envs} of them, got keys of shape {list(key.shape)}.")
        return as_mappable_key(key)


class VmapWrapper(VectorWrapper):
    """No autoreset: a done env stays done and frozen, with reward 0, until all envs are reset."""

    def _prepare(self, state: EnvState, next_keys: Key) -> EnvState:
        return state

    def _finish(self, before: EnvState, stepped: EnvState) -> EnvState:
        frozen = before.replace(
            reward=jax.tree.map(jnp.zeros_like, before.reward),
            info=before.info.replace(episode_start=stepped.info.episode_start),
        )
        return where_tree(before.done, frozen, stepped)


def split_each(keys: Key) -> tuple[Array, Array]:
    """Split each key of an array of keys in two."""
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]


@jax.jit
def _first(tree: Tree) -> Tree:
    """Return the first env; compiled, since one call per leaf is slow when every state is rendered."""
    return index_tree(tree, 0)
