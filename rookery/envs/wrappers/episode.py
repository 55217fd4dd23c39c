"""Episodes: step counts, time limits and returns."""

from typing import Any

import jax
import jax.numpy as jnp

from rookery.envs.env import Env, EnvState, Wrapper, check_is_env
from rookery.errors import InvalidInputError, check_count, check_discount
from rookery.types import Key, PyTreeDict

EPISODE_INFO = ("steps", "termination", "truncation", "ori_obs", "episode_return")
"""The entries of `info` that an `EpisodeWrapper` makes."""


class EpisodeWrapper(Wrapper):
    """Counts the steps of an episode, ends it at `episode_length`, and tells the two kinds of end apart in `info`.

    - `steps`: steps of the episode so far, int32.
    - `termination`: 1 where the episode truly ended.
    - `truncation`: 1 where it was cut off by a time limit, this one or the env's own; 0 where the step also terminated.
    - `ori_obs` (with `record_ori_obs`): the true successor observation, before any autoreset.
    - `episode_return` (with a `discount`): the discounted sum of the rewards so far.

    `episode_length=None` sets no limit besides the env's own. Wrappers that change observations or rewards belong
    inside this one.
    """

    def __init__(
        self,
        env: Env,
        episode_length: int | None,
        record_ori_obs: bool = True,
        discount: float | None = None,
    ) -> None:
        if episode_length is not None:
            check_count("episode_length", episode_length)
        if discount is not None:
            check_discount(discount)
        check_single(self, env)
        if has_episodes(env):
            raise InvalidInputError("the environment already has an EpisodeWrapper: set its episode_length instead.")
        super().__init__(env)
        self.episode_length = episode_length
        self.record_ori_obs = record_ori_obs
        self.discount = discount

    @property
    def max_episode_steps(self) -> int | None:
        limits = [limit for limit in (self.episode_length, self.env.max_episode_steps) if limit is not None]
        return min(limits, default=None)

    def reset(self, key: Key) -> EnvState:
        state = _with_float_rewards(self.env.reset(key))
        counters = PyTreeDict(steps=jnp.zeros((), jnp.int32))
        if self.discount is not None:
            counters.episode_return = jax.tree.map(jnp.zeros_like, state.reward)
            counters.discount_power = jnp.ones((), jnp.float32)
        return self._with_info(state, counters, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        self.action_space.check(action, "action")
        counters = env_state._internal.episode
        # The env may hand on what it is given: it must not find there what this wrapper said of the last step.
        before = env_state.replace(done=jnp.zeros_like(env_state.done), info=without(env_state.info, EPISODE_INFO))
        state = _with_float_rewards(self.env.step(before, action))

        counters = counters.replace(steps=counters.steps + 1)
        if self.discount is not None:
            power = counters.discount_power
            counters.episode_return = jax.tree.map(
                lambda so_far, r: so_far + power * r, counters.episode_return, state.reward
            )
            counters.discount_power = power * self.discount

        cut_off = state.info.get("truncation", jnp.zeros((), jnp.float32))
        # An env that tells both kinds of end may report them in the same step: that is a termination.
        termination = state.info.get("termination", state.done * (1.0 - cut_off))
        if self.episode_length is not None:
            cut_off = jnp.maximum(cut_off, (counters.steps >= self.episode_length).astype(jnp.float32))
        return self._with_info(state, counters, termination, cut_off * (1.0 - termination))

    def _with_info(self, state: EnvState, counters: PyTreeDict, termination: Any, truncation: Any) -> EnvState:
        info = state.info.replace(steps=counters.steps, termination=termination, truncation=truncation)
        if self.record_ori_obs:
            info.ori_obs = state.obs
        if self.discount is not None:
            info.episode_return = counters.episode_return
        return state.replace(
            done=jnp.maximum(termination, truncation), info=info, _internal=state._internal.replace(episode=counters)
        )


def _with_float_rewards(state: EnvState) -> EnvState:
    return state.replace(reward=jax.tree.map(lambda reward: jnp.asarray(reward, jnp.float32), state.reward))


def without(info: PyTreeDict, names: tuple[str, ...]) -> PyTreeDict:
    """Return `info` less the named entries."""
    return PyTreeDict({name: value for name, value in info.items() if name not in names})


def has_episodes(env: Env) -> bool:
    """Tell whether there is an `EpisodeWrapper` around the env."""
    while isinstance(env, Wrapper):
        if isinstance(env, EpisodeWrapper):
            return True
        env = env.env
    return False


def check_single(wrapper: Wrapper, env: Env) -> None:
    """Raise if a wrapper for single envs would sit outside the vectorisation."""
    check_is_env(env)
    if env.batch_shape:
        raise InvalidInputError(
            f"{type(wrapper).__name__} belongs inside the vectorisation: wrap the single env first, then "
            "wrap_env(env, parallel=...)."
        )


def check_inside_episodes(wrapper: Wrapper, env: Env) -> None:
    """Raise if a wrapper that changes what the agent sees or earns would sit outside the `EpisodeWrapper`."""
    check_single(wrapper, env)
    if has_episodes(env):
        raise InvalidInputError(
            f"{type(wrapper).__name__} belongs inside EpisodeWrapper, or info.ori_obs and info.episode_return would "
            "differ from what the agent gets: wrap the bare env first, then wrap_env(env, ...)."
        )
