"""Episodes: step counts, time limits and returns."""

import jax
import jax.numpy as jnp

from rookery.envs.env import Env, EnvState, Wrapper, check_is_env
from rookery.errors import InvalidInputError, check_count, check_discount
from rookery.types import Action, Array, Key, PyTreeDict

EPISODE_INFO = ("steps", "termination", "truncation", "ori_obs", "episode_return")
"""The entries of `info` that an `EpisodeWrapper` sets."""


class EpisodeWrapper(Wrapper):
    """Counts the steps of an episode, ends it at `episode_length`, and sets these entries of `info`.

    - `steps`: steps of the episode so far, int32.
    - `termination`: 1 if the episode reached a terminal state.
    - `truncation`: 1 if a time limit ended it, this one or the env's own; 0 if the step also terminated.
    - `ori_obs` (with `record_ori_obs`): the true successor observation, before any autoreset.
    - `episode_return` (with a `discount`): the discounted sum of the rewards so far.

    `episode_length=None` keeps only the env's own limit. Wrappers that change observations or rewards belong
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

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        counters = env_state._internal.episode
        # Remove the entries of the last step: the env may return `info` unchanged.
        before = env_state.replace(done=jnp.zeros_like(env_state.done), info=without(env_state.info, EPISODE_INFO))
        state = _with_float_rewards(self.env.step(before, action))

        counters = counters.replace(steps=counters.steps + 1)
        if self.discount is not None:
            power = counters.discount_power
            counters.episode_return = jax.tree.map(
                lambda so_far, r: so_far + power * r, counters.episode_return, state.reward
            )
            counters.discount_power = power * self.discount

        truncated = state.info.get("truncation", jnp.zeros((), jnp.float32))
        # If an env reports both in the same step, that is a termination.
        termination = state.info.get("termination", state.done * (1.0 - truncated))
        if self.episode_length is not None:
            truncated = jnp.maximum(truncated, (counters.steps >= self.episode_length).astype(jnp.float32))
        return self._with_info(state, counters, termination, truncated * (1.0 - termination))

    def _with_info(self, state: EnvState, counters: PyTreeDict, termination: Array, truncation: Array) -> EnvState:
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
    """Return `info` without the named entries."""
    return PyTreeDict({name: value for name, value in info.items() if name not in names})


def has_episodes(env: Env) -> bool:
    """Tell whether there is an `EpisodeWrapper` around the env."""
    while isinstance(env, Wrapper):
        if isinstance(env, EpisodeWrapper):
            return True
        env = env.env
    return False


def check_single(wrapper: Wrapper, env: Env) -> None:
    """Raise if a wrapper for single envs is applied to a vectorized env."""
    check_is_env(env)
    if env.batch_shape:
        raise InvalidInputError(
            f"{type(wrapper).__name__} wraps a single env, and this one is vectorized: apply it first, then "
            "wrap_env(env, parallel=...)."
        )


def check_inside_episodes(wrapper: Wrapper, env: Env) -> None:
    """Raise if a wrapper that changes observations or rewards is applied outside of the `EpisodeWrapper`."""
    check_single(wrapper, env)
    if has_episodes(env):
        raise InvalidInputError(
            f"{type(wrapper).__name__} must be inside EpisodeWrapper: otherwise info.ori_obs and info.episode_return "
            "differ from what the agent receives. Wrap the bare env first, then wrap_env(env, ...)."
        )
