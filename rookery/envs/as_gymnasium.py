"""Environments on the device for programs that know Gymnasium only."""

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

RENDER_MODE = "rgb_array"


def as_gymnasium(
    env: Env | str, episode_length: int | None = None, render_mode: str | None = None, **library_kwargs: Any
) -> "GymnasiumEnv":
    """Make a `gymnasium.Env` of one of our single envs, or of the name of one: `as_gymnasium("classic/cartpole")`.

    `episode_length=None` is the env's own limit; `library_kwargs` go with a name.
    """
    if isinstance(env, str):
        env = make_env(env, episode_length, **library_kwargs)
    elif library_kwargs:
        raise InvalidInputError(
            f"{', '.join(library_kwargs)}: such arguments go with the name of an env, not with one."
        )
    return GymnasiumEnv(env, episode_length, render_mode)


class GymnasiumEnv(gymnasium.Env):
    """One env on the device behind the interface of Gymnasium: NumPy arrays, termination and truncation apart.

    A seed fixes all that follows, also the episodes that are begun without one.
    """

    def __init__(self, env: Env, episode_length: int | None = None, render_mode: str | None = None) -> None:
        check_is_env(env)
        if env.batch_shape or isinstance(env.unwrapped, MultiAgentEnv):
            given = f"{env.batch_shape[0]} envs side by side" if env.batch_shape else "an env with several agents"
            raise InvalidInputError(f"expected one env with one agent, got {given}: Gymnasium knows no other.")
        if has_episodes(env):
            if episode_length is not None:
                raise InvalidInputError(
                    "the environment already has an EpisodeWrapper: set its episode_length instead."
                )
        else:
            limit = env.max_episode_steps if episode_length is None else episode_length
            env = EpisodeWrapper(env, limit, record_ori_obs=False)
        can_be_drawn = type(env.unwrapped).render is not Env.render
        self.metadata = {"render_modes": [RENDER_MODE] if can_be_drawn else [], "render_fps": 30}
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise InvalidInputError(f"render_mode={render_mode!r}: this env has {self.metadata['render_modes']}.")
        self.render_mode = render_mode
        self.env = env
        self.observation_space = to_gymnasium(env.obs_space)
        self.action_space = to_gymnasium(env.action_space)
        self._reset_fn = jax.jit(env.reset)
        self._step_fn = jax.jit(env.step)
        self._state: EnvState | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self._reset_fn(jax.random.key(int(self.np_random.integers(2**31))))
        return self._observed(self._state)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
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

    def _observed(self, state: EnvState) -> tuple[Any, dict[str, Any]]:
        info = jax.device_get(without(state.info, EPISODE_INFO))
        return _as_arrays(self.env.obs_space, state.obs), dict(info)


def _as_arrays(space: Space, value: Any) -> Any:
    """Return an element of a space as NumPy arrays of the declared dtypes, which belong to the caller."""
    match space:
        case Dict():
            return {name: _as_arrays(part, value[name]) for name, part in space.spaces.items()}
        case Tuple():
            return tuple(_as_arrays(part, item) for part, item in zip(space.spaces, value, strict=True))
    assert isinstance(space, ArraySpace)
    return np.array(value, space.dtype)
