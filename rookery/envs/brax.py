"""Environments of Brax."""

import contextlib
import inspect
import io
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.compilation import relaxed_promotion
from rookery.envs.adapter import as_arrays
from rookery.envs.env import Env, EnvState
from rookery.errors import InvalidInputError, unknown_name
from rookery.spaces import Box, Dict, Space
from rookery.types import Array, Key, PyTreeDict, as_key

with contextlib.redirect_stdout(io.StringIO()):  # Brax prints that the optional library warp is missing
    import brax.envs

DEFAULT_EPISODE_LENGTH = 1000
"""The episode length of Brax's own training."""


class BraxAdapter(Env):
    """One Brax env. Actions are in [-1, 1]; Brax envs scale them to their actuators.

    Brax envs have no time limit, so every done is a termination; `episode_length` is reported as `max_episode_steps`.
    (`info["time_out"]` of Brax is ignored: inverted_pendulum sets it when the pole falls.) The metrics of the env are
    in `info.metrics`.
    """

    def __init__(self, brax_env: brax.envs.Env, episode_length: int = DEFAULT_EPISODE_LENGTH) -> None:
        self.brax_env = brax_env
        self._episode_length = episode_length
        self._action_space = Box(-1.0, 1.0, (brax_env.action_size,))
        self._obs_space = _unbounded_space(jax.eval_shape(self.reset, jax.random.key(0)).obs)

    def reset(self, key: Key) -> EnvState:
        with relaxed_promotion():
            return _env_state(self.brax_env.reset(as_key(key)))

    def step(self, env_state: EnvState, action: Array) -> EnvState:
        self.action_space.check(action, "action")
        with relaxed_promotion():
            stepped = _env_state(self.brax_env.step(env_state.env_state, jnp.asarray(action, jnp.float32)))
        return stepped.replace(info=env_state.info.replace(**stepped.info), _internal=env_state._internal)

    @property
    def obs_space(self) -> Space:
        return self._obs_space

    @property
    def action_space(self) -> Box:
        return self._action_space

    @property
    def max_episode_steps(self) -> int:
        return self._episode_length

    def render(self, env_state: EnvState) -> np.ndarray:
        """Render with MuJoCo, which needs OpenGL: without a display, start Python with `MUJOCO_GL=egl`."""
        with relaxed_promotion():
            return self.brax_env.render([env_state.env_state.pipeline_state])[0]


def names() -> tuple[str, ...]:
    """Return the names of all registered Brax envs."""
    return tuple(sorted(brax.envs._envs))


def make(name: str, episode_length: int | None = None, **kwargs: Any) -> Env:
    """Build the Brax env `name`; `kwargs` (`backend="spring"`, ...) are arguments of its constructor."""
    if name not in names():
        raise unknown_name("environment", f"brax/{name}", [f"brax/{known}" for known in names()])
    accepted = _constructor_arguments(brax.envs._envs[name])
    for argument in kwargs:
        if argument not in accepted:
            raise InvalidInputError(
                f"brax/{name} takes no argument {argument!r}: it takes {', '.join(sorted(accepted))}."
            )
    with warnings.catch_warnings(), relaxed_promotion():
        warnings.filterwarnings("ignore", message="Brax System", category=UserWarning)
        brax_env = brax.envs.get_environment(name, **kwargs)
    env = BraxAdapter(brax_env, DEFAULT_EPISODE_LENGTH if episode_length is None else episode_length)
    _check_step(env, name)
    return env


def _env_state(state: brax.envs.State) -> EnvState:
    # Some envs return Python numbers from `step` where `reset` returns arrays.
    state = as_arrays(state)
    obs = PyTreeDict(state.obs) if isinstance(state.obs, dict) else state.obs
    metrics = jax.tree.map(lambda metric: metric.astype(jnp.float32), state.metrics)
    return EnvState(
        env_state=state,
        obs=obs,
        reward=state.reward.astype(jnp.float32),
        done=state.done.astype(jnp.float32),
        info=PyTreeDict(metrics=metrics),
    )


def _unbounded_space(obs: Any) -> Space:
    if isinstance(obs, dict):
        return Dict({name: _unbounded_space(entry) for name, entry in obs.items()})
    return Box(-np.inf, np.inf, obs.shape, obs.dtype)


def _constructor_arguments(env_class: type) -> set[str]:
    """Return the constructor arguments of an env class and of its bases, to which it passes unknown ones."""
    constructors = [vars(base)["__init__"] for base in env_class.__mro__[:-1] if "__init__" in vars(base)]
    parameters = [parameter for init in constructors for parameter in inspect.signature(init).parameters.values()]
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    return named - {"self", "sys"}


def _check_step(env: BraxAdapter, name: str) -> None:
    """Trace one step: an env that does not work with this version of JAX is refused before anything compiles."""

    def first_step(key: Key) -> EnvState:
        return env.step(env.reset(key), jnp.zeros(env.action_space.shape))

    try:
        jax.eval_shape(first_step, jax.random.key(0))
    except Exception as error:
        raise InvalidInputError(
            f"brax/{name} cannot be stepped: this version of brax does not work with JAX {jax.__version__} "
            f"({error!r}). Choose another env, or install compatible versions."
        ) from error
