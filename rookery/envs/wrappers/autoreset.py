"""Automatic reset at the end of an episode."""

import enum
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rookery.control_flow import cond_any
from rookery.envs.env import Env, EnvState
from rookery.envs.wrappers.vectorize import VectorWrapper, VmapWrapper, split_each
from rookery.errors import check_count
from rookery.types import Array, Key, PyTree, PyTreeData, PyTreeDict, Tree, index_tree, where_tree


class AutoresetMode(enum.Enum):
    """What a vectorized env does at the end of an episode."""

    NORMAL = "normal"
    """Reset in the same step: `obs` is the first of a new random episode; the true successor is `info.ori_obs`."""
    FAST = "fast"
    """Reset in the same step, to a cached state."""
    ENVPOOL = "envpool"
    """Reset in the next step, which ignores its action; the last observation is returned as it is."""
    DISABLED = "disabled"
    """A done env stays done and frozen."""


class Spares(PyTreeData):
    """One precomputed initial state per env. A used one is replaced when its env needs the next one.

    New initial states are thus computed for many envs at a time, once in a few episodes and only if an episode ends.
    The n-th episode of an env depends only on the key of that env.
    """

    keys: Key
    used: Array
    starts: PyTree


class NormalAutoresetWrapper(VectorWrapper):
    """The last step of an episode returns the first observation of the next one.

    `reward`, `done` and `info` are those of the ended episode.
    """

    def _prepare(self, state: EnvState, next_keys: Key) -> EnvState:
        starts = (state.env_state, state.obs, state._internal.inner)
        spares = Spares(keys=next_keys, used=jnp.ones(self.batch_shape, bool), starts=starts)
        return state.replace(_internal=state._internal.replace(spares=spares))

    def _finish(self, before: EnvState, stepped: EnvState) -> EnvState:
        ended = stepped.done > 0
        spares = provide_spares(self.env, _start_of, stepped._internal.spares, ended)
        state = stepped.replace(_internal=PyTreeDict(inner=stepped._internal.inner))
        state = cond_any(ended, lambda state: _continue_from(state, spares.starts), state)
        return state.replace(
            _internal=state._internal.replace(spares=spares.replace(used=spares.used | ended)),
        )


class FastAutoresetWrapper(VectorWrapper):
    """Like normal autoreset, but episodes restart from states cached at `reset`: a pool of `pool_size` per env.

    Each env cycles through its pool. Random keys in a cached state are new in every episode.
    """

    def __init__(self, env: Env, num_envs: int, pool_size: int = 1) -> None:
        check_count("pool_size", pool_size)
        super().__init__(env, num_envs)
        self.pool_size = pool_size

    def _prepare(self, state: EnvState, next_keys: Key) -> EnvState:
        first = (state.env_state, state.obs, state._internal.inner)
        pool = jax.tree.map(lambda leaf: leaf[:, None], first)
        if self.pool_size > 1:
            pool_keys = jax.vmap(lambda key: jax.random.split(key, self.pool_size - 1))(next_keys)
            fresh = jax.vmap(jax.vmap(self.env.reset))(pool_keys)
            others = (fresh.env_state, fresh.obs, fresh._internal)
            pool = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), pool, others)
        num_episodes = jnp.zeros(self.batch_shape, jnp.int32)
        return state.replace(_internal=state._internal.replace(pool=pool, num_episodes=num_episodes))

    def _finish(self, before: EnvState, stepped: EnvState) -> EnvState:
        pool = stepped._internal.pool
        num_episodes = stepped._internal.num_episodes + stepped.done.astype(jnp.int32)

        def restart(state: EnvState) -> EnvState:
            env_ids = jnp.arange(self.num_envs)
            starts = index_tree(pool, (env_ids, num_episodes % self.pool_size))
            return _continue_from(state, _with_new_keys(starts, num_episodes))

        # The pool is not an operand of the branch, which would copy it.
        state = cond_any(stepped.done, restart, stepped.replace(_internal=PyTreeDict(inner=stepped._internal.inner)))
        return state.replace(_internal=state._internal.replace(pool=pool, num_episodes=num_episodes))


class EnvPoolAutoresetWrapper(VectorWrapper):
    """The last step of an episode returns its last observation; the next step resets and ignores its action.

    That dead step has reward 0 and `info.autoreset` = 1.
    """

    def _prepare(self, state: EnvState, next_keys: Key) -> EnvState:
        zeros = jnp.zeros(self.batch_shape, jnp.float32)
        starts = state.replace(_internal=state._internal.inner)
        spares = Spares(keys=next_keys, used=jnp.ones(self.batch_shape, bool), starts=starts)
        internal = state._internal.replace(spares=spares, ended=zeros)
        return state.replace(info=state.info.replace(autoreset=zeros), _internal=internal)

    def _finish(self, before: EnvState, stepped: EnvState) -> EnvState:
        ended = before._internal.ended
        spares = provide_spares(self.env, _with_episode_start, stepped._internal.spares, ended > 0)
        state = stepped.replace(_internal=stepped._internal.inner)
        state = cond_any(ended, lambda state: where_tree(ended, spares.starts, state), state)
        internal = PyTreeDict(
            inner=state._internal, spares=spares.replace(used=spares.used | (ended > 0)), ended=state.done
        )
        return state.replace(info=state.info.replace(autoreset=ended), _internal=internal)


def provide_spares(env: Env, keep: Callable[[EnvState], PyTree], spares: Spares, needed: Array) -> Spares:
    """Replace used spares if an env in `needed` has no unused one; `keep` returns the stored parts of a state."""

    def replace_used(spares: Spares) -> Spares:
        reset_keys, next_keys = split_each(spares.keys)
        fresh = Spares(keys=next_keys, used=jnp.zeros_like(spares.used), starts=keep(jax.vmap(env.reset)(reset_keys)))
        return where_tree(spares.used, fresh, spares)

    return cond_any(needed & spares.used, replace_used, spares)


def _start_of(state: EnvState) -> tuple:
    """Return the parts of a reset state from which an episode continues."""
    return state.env_state, state.obs, state._internal


def _with_episode_start(state: EnvState) -> EnvState:
    return state.replace(info=state.info.replace(episode_start=jnp.ones_like(state.done)))


def _with_new_keys(starts: Tree, num_episodes: Array) -> Tree:
    """Derive the random keys of an episode from the cached ones: the same keys would repeat the whole episode."""

    def renew(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        fold_in = jax.random.fold_in
        for _ in range(leaf.ndim - 1):
            fold_in = jax.vmap(fold_in, (0, None))
        return jax.vmap(fold_in)(leaf, num_episodes)

    return jax.tree.map(renew, starts)


def _continue_from(state: EnvState, starts: tuple) -> EnvState:
    """Continue done envs from `starts`; `reward`, `done` and the rest of `info` stay unchanged."""
    env_state, obs, inner = where_tree(state.done, starts, (state.env_state, state.obs, state._internal.inner))
    info = state.info.replace(episode_start=state.done)
    return state.replace(env_state=env_state, obs=obs, info=info, _internal=state._internal.replace(inner=inner))


VECTOR_WRAPPERS: dict[AutoresetMode, type[VectorWrapper]] = {
    AutoresetMode.NORMAL: NormalAutoresetWrapper,
    AutoresetMode.FAST: FastAutoresetWrapper,
    AutoresetMode.ENVPOOL: EnvPoolAutoresetWrapper,
    AutoresetMode.DISABLED: VmapWrapper,
}
