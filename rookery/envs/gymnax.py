"""Environments of gymnax."""

import dataclasses
import inspect
from typing import Any

import gymnax
import gymnax.registration
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces as gymnax_spaces
from gymnax.environments.environment import Environment, EnvParams

from rookery.compilation import relaxed_promotion
from rookery.envs.adapter import as_arrays
from rookery.envs.env import Env, EnvState
from rookery.errors import InvalidInputError, unknown_name
from rookery.spaces import ArraySpace, Box, Dict, Discrete, Space, Tuple
from rookery.types import Action, Array, Key, PyTreeData, PyTreeDict, as_key

WRONGLY_BOUNDED = (
    "BernoulliBandit",  # the normalized time exceeds 1 if the episode is longer than the default
    "GaussianBandit",  # rewards and the normalized time are negative
    "MNISTBandit",  # pixels are read as signed bytes
    "MemoryChain",  # the context is -1 or 1
    "MetaMaze",  # the last reward is 10
    "UmbrellaChain",  # the remaining time is rounded to less than 0
)
"""Classes whose observations leave their declared bounds; their `obs_space` is unbounded."""


class GymnaxState(PyTreeData):
    """The state of the gymnax env, and the key and step count that its random numbers depend on."""

    state: Any
    key: Key
    num_steps: Array


class GymnaxAdapter(Env):
    """One gymnax env, without gymnax's autoreset. The info of gymnax is in `info.metrics`."""

    def __init__(self, gymnax_env: Environment, params: EnvParams | None = None) -> None:
        self.gymnax_env = gymnax_env
        self.params = gymnax_env.default_params if params is None else params

        def first_step(key: Key) -> tuple[Any, Any, dict]:
            obs, state = gymnax_env.reset_env(key, self.params)
            action = gymnax_env.action_space(self.params).sample(key)
            return obs, action, gymnax_env.step_env(key, state, action, self.params)[-1]

        with relaxed_promotion():
            obs, action, self._metrics = jax.eval_shape(first_step, jax.random.key(0))
            self._obs_space = _to_space(gymnax_env.observation_space(self.params), obs)
            self._action_space = _to_space(gymnax_env.action_space(self.params), action)
        if type(gymnax_env).__name__ in WRONGLY_BOUNDED:
            self._obs_space = Box(-np.inf, np.inf, obs.shape, obs.dtype)

    def reset(self, key: Key) -> EnvState:
        reset_key, steps_key = jax.random.split(as_key(key))
        with relaxed_promotion():
            obs, state = self.gymnax_env.reset_env(reset_key, self.params)
        zero = jnp.zeros((), jnp.float32)
        metrics = jax.tree.map(lambda metric: jnp.zeros(metric.shape, jnp.float32), self._metrics)
        return EnvState(
            env_state=GymnaxState(state=as_arrays(state), key=steps_key, num_steps=jnp.zeros((), jnp.int32)),
            obs=_as_obs(obs),
            reward=zero,
            done=zero,
            info=PyTreeDict(truncation=zero, metrics=metrics),
        )

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        self.action_space.check(action, "action")
        if isinstance(self.action_space, ArraySpace):
            action = jnp.asarray(action, self.action_space.sample_dtype)
        before: GymnaxState = env_state.env_state
        # Unlike a chain of splits, this costs nothing if the env uses no random numbers.
        step_key = jax.random.fold_in(before.key, before.num_steps)
        with relaxed_promotion():
            obs, state, reward, terminated, metrics = self.gymnax_env.step_env(
                step_key, before.state, action, self.params
            )
            out_of_time = self.gymnax_env.is_truncated(state, self.params)
        terminated, out_of_time = jnp.asarray(terminated, bool), jnp.asarray(out_of_time, bool)
        return env_state.replace(
            env_state=before.replace(state=as_arrays(state), num_steps=before.num_steps + 1),
            obs=_as_obs(obs),
            reward=jnp.asarray(reward, jnp.float32),
            done=(terminated | out_of_time).astype(jnp.float32),
            info=env_state.info.replace(
                truncation=(out_of_time & ~terminated).astype(jnp.float32),
                metrics=jax.tree.map(lambda metric: jnp.asarray(metric, jnp.float32), metrics),
            ),
        )

    @property
    def obs_space(self) -> Space:
        return self._obs_space

    @property
    def action_space(self) -> Space:
        return self._action_space

    @property
    def max_episode_steps(self) -> int:
        return int(self.params.max_steps_in_episode)


def names() -> tuple[str, ...]:
    """Return the names of all registered gymnax envs. `MNISTBandit-bsuite` downloads its images."""
    return tuple(sorted(gymnax.registered_envs))


def make(name: str, episode_length: int | None = None, **kwargs: Any) -> Env:
    """Build the gymnax env `name`.

    `kwargs` are arguments of its constructor (`size=10`) or fields of its params (`fail_prob=0.0`); `episode_length`
    replaces its own time limit.
    """
    if name not in gymnax.registered_envs:
        raise unknown_name("environment", f"gymnax/{name}", [f"gymnax/{known}" for known in names()])
    constructor_names = set(inspect.signature(gymnax.registration._registry[name]).parameters)
    arguments = {argument: value for argument, value in kwargs.items() if argument in constructor_names}
    changes = {argument: value for argument, value in kwargs.items() if argument not in constructor_names}
    try:
        with relaxed_promotion():
            gymnax_env, params = gymnax.make(name, **arguments)
    except OSError as error:
        raise InvalidInputError(
            f"gymnax/{name} could not load its data ({error}): the first use downloads them and needs internet access."
        ) from error
    param_names = {field.name for field in dataclasses.fields(params)} - {"max_steps_in_episode"}
    for argument in changes:
        if argument not in param_names:
            accepted = sorted(constructor_names | param_names | {"episode_length"})
            raise InvalidInputError(f"gymnax/{name} takes no argument {argument!r}: it takes {', '.join(accepted)}.")
    if episode_length is not None:
        # Some envs count time in floats.
        changes["max_steps_in_episode"] = type(params.max_steps_in_episode)(episode_length)
    return GymnaxAdapter(gymnax_env, params.replace(**changes))


def _to_space(space: gymnax_spaces.Space, example: Any) -> Space:
    """Convert a space; shapes and dtypes are taken from `example`, since some envs declare wrong ones."""
    match space:
        case gymnax_spaces.Discrete():
            return Discrete(space.n, dtype=example.dtype)
        case gymnax_spaces.Box():
            low, high = np.asarray(space.low), np.asarray(space.high)
            unbounded = np.finfo(np.float32).max  # gymnax's value for infinity
            low, high = np.where(low <= -unbounded, -np.inf, low), np.where(high >= unbounded, np.inf, high)
            return Box(low, high, example.shape, example.dtype)
        case gymnax_spaces.Dict():
            return Dict({name: _to_space(entry, example[name]) for name, entry in space.spaces.items()})
        case gymnax_spaces.Tuple():
            return Tuple([_to_space(entry, part) for entry, part in zip(space.spaces, example, strict=True)])
    raise InvalidInputError(f"the gymnax space {space} is unknown: expected Discrete, Box, Dict or Tuple.")


def _as_obs(obs: Any) -> Any:
    return as_arrays(PyTreeDict(obs) if isinstance(obs, dict) else obs)
