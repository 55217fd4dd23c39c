"""Device environments with the interface of Gymnasium."""

from typing import Any

import gymnasium
import jax
import numpy as np

from rookery.envs.env import Env, EnvState, MultiAgentEnv, check_is_env
from rookery.envs.registration import make_env
from rookery.envs.wrappers import EpisodeWrapper
from rookery.envs.wrappers.episode import EPISODE_INFO, has_episodes, without
from rookery.errors import InvalidInputError
from rookery.spaces import ArraySpace, Dict, Space, Tuple, check_discrete_range, to_gymnasium
from rookery.types import Action, Obs, PyTree

RENDER_MODE = "rgb_array"


def as_gymnasium(
    env: Env | str, episode_length: int | None = None, render_mode: str | None = None, **library_kwargs: Any
) -> "GymnasiumEnv":
    """Convert a single device env, or the name of one, to a `gymnasium.Env`: `as_gymnasium("classic/cartpole")`.

    `episode_length=None` is the env's own limit; `library_kwargs` can be given with a name.
    """
    if isinstance(env, str):
        env = make_env(env, episode_length, **library_kwargs)
    elif library_kwargs:
        raise InvalidInputError(f"{', '.join(library_kwargs)}: library arguments need the name of an env, not an env.")
    return GymnasiumEnv(env, episode_length, render_mode)


class GymnasiumEnv(gymnasium.Env):
    """A device env as a `gymnasium.Env`, with NumPy arrays.

    A seed determines this episode and all later ones that are reset without a seed.
    """

    def __init__(self, env: Env, episode_length: int | None = None, render_mode: str | None = None) -> None:
        check_is_env(env)
        if env.batch_shape or isinstance(env.unwrapped, MultiAgentEnv):
            given = f"{env.batch_shape[0]} vectorized envs" if env.batch_shape else "an env with several agents"
            raise InvalidInputError(
                f"expected one env with one agent, got {given}: gymnasium.Env supports nothing else."
            )
        if has_episodes(env):
            if episode_length is not None:
                raise InvalidInputError(
                    "the environment already has an EpisodeWrapper: set its episode_length instead."
                )
        else:
            limit = env.max_episode_steps if episode_length is None else episode_length
            env = EpisodeWrapper(env, limit, record_ori_obs=False)
        can_render = type(env.unwrapped).render is not Env.render
        self.metadata = {"render_modes": [RENDER_MODE] if can_render else [], "render_fps": 30}
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise InvalidInputError(f"render_mode={render_mode!r}: this env supports {self.metadata['render_modes']}.")
        self.render_mode = render_mode
        self.env = env
        self.observation_space = to_gymnasium(env.obs_space)
        self.action_space = to_gymnasium(env.action_space)
        self._reset_fn = jax.jit(env.reset)
        self._step_fn = jax.jit(env.step)
        self._state: EnvState | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self._reset_fn(jax.random.key(int(self.np_random.integers(2**31))))
        return self._observed(self._state)

    def step(self, action: Action) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        space = self.env.action_space
        action = _as_arrays(space, action)
        space.check(action, "the action")
        check_discrete_range(space, action, "the action")
        self._state = self._step_fn(self._running_state(), action)
        obs, info = self._observed(self._state)
        flags = self._state.info
        return obs, float(self._state.reward), bool(flags.termination), bool(flags.truncation), info

    def render(self) -> np.ndarray | None:
        return None if self.render_mode is None else self.env.render(self._running_state())

    def _running_state(self) -> EnvState:
        if self._state is None:
            raise InvalidInputError("the environment has not been reset: call reset first.")
        return self._state

    def _observed(self, state: EnvState) -> tuple[Obs, dict[str, Any]]:
        info = jax.device_get(without(state.info, EPISODE_INFO))
        return _as_arrays(self.env.obs_space, state.obs), dict(info)


def _as_arrays(space: Space, value: PyTree) -> PyTree:
    """Convert an element of a space to new NumPy arrays of the declared dtypes."""
    match space:
        case Dict():
            return {name: _as_arrays(part, value[name]) for name, part in space.spaces.items()}
        case Tuple():
            return tuple(_as_arrays(part, item) for part, item in zip(space.spaces, value, strict=True))
    assert isinstance(space, ArraySpace)
    return np.array(value, space.dtype)
