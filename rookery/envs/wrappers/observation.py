"""Wrappers that change observations."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import ACTION_MASK
from rookery.envs.env import Env, EnvState, Wrapper
from rookery.envs.wrappers.episode import check_inside_episodes
from rookery.errors import InvalidInputError, check_count
from rookery.spaces import ArraySpace, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from rookery.types import Action, Array, Key, Obs, PyTree, PyTreeDict


class ObsFlattenWrapper(Wrapper):
    """Flattens observations, dicts and tuples included, into one float32 vector; discrete parts become one-hot.

    The parts of a dict follow the sorted names. An action mask is not part of the vector: then the observation is a
    dict of the vector `obs` and the `action_mask`.
    """

    def __init__(self, env: Env) -> None:
        check_inside_episodes(self, env)
        super().__init__(env)
        space = env.obs_space
        self._mask_space = space[ACTION_MASK] if isinstance(space, Dict) and ACTION_MASK in space else None
        if isinstance(space, Dict) and self._mask_space is not None:
            space = Dict({name: part for name, part in space.spaces.items() if name != ACTION_MASK})
        self._seen_space = space
        bounds = [_flat_bounds(part) for part in _array_spaces(space)]
        self._flat_space = Box(np.concatenate([low for low, _ in bounds]), np.concatenate([high for _, high in bounds]))

    @property
    def obs_space(self) -> Space:
        if self._mask_space is None:
            return self._flat_space
        return Dict({"obs": self._flat_space, ACTION_MASK: self._mask_space})

    def reset(self, key: Key) -> EnvState:
        return self._flatten(self.env.reset(key))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        return self._flatten(self.env.step(env_state, action))

    def _flatten(self, state: EnvState) -> EnvState:
        spaces, arrays = _array_spaces(self._seen_space), _arrays_in_order(self._seen_space, state.obs)
        flat = jnp.concatenate([_flat_obs(space, array) for space, array in zip(spaces, arrays, strict=True)])
        if self._mask_space is None:
            return state.replace(obs=flat)
        return state.replace(obs=PyTreeDict({"obs": flat, ACTION_MASK: state.obs[ACTION_MASK]}))


class FrameStackWrapper(Wrapper):
    """Stacks the last `num_frames` observations, oldest first; at the start of an episode the first one is repeated.

    `axis="last"` concatenates along the last axis, as convolutions need it; `axis="new"` stacks along a new first axis.
    Scalars are always stacked along a new axis. Each part of a dict or tuple is stacked, except for the action mask.
    """

    def __init__(self, env: Env, num_frames: int, axis: str = "last") -> None:
        check_inside_episodes(self, env)
        check_count("num_frames", num_frames)
        if axis not in ("last", "new"):
            raise InvalidInputError(f"axis={axis!r}: choose 'last' or 'new'.")
        if _has_frame_stack(env):
            raise InvalidInputError("the environment already has a FrameStackWrapper: set its num_frames instead.")
        super().__init__(env)
        self.num_frames = num_frames
        self.axis = axis
        self._obs_space = self._stacked_space(env.obs_space)

    @property
    def obs_space(self) -> Space:
        return self._obs_space

    def reset(self, key: Key) -> EnvState:
        state = self.env.reset(key)
        return self._show(state, jax.tree.map(lambda part: jnp.stack([part] * self.num_frames), state.obs))

    def step(self, env_state: EnvState, action: Action) -> EnvState:
        frames = env_state._internal.frames
        state = self.env.step(env_state, action)
        return self._show(
            state, jax.tree.map(lambda stack, part: jnp.concatenate([stack[1:], part[None]]), frames, state.obs)
        )

    def _show(self, state: EnvState, frames: PyTree) -> EnvState:
        obs = self._joined(self.env.obs_space, frames)
        return state.replace(obs=obs, _internal=state._internal.replace(frames=frames))

    def _joined(self, space: Space, frames: PyTree) -> PyTree:
        match space:
            case Dict():
                return PyTreeDict(
                    {
                        name: frames[name][-1] if name == ACTION_MASK else self._joined(part, frames[name])
                        for name, part in space.spaces.items()
                    }
                )
            case Tuple():
                return tuple(self._joined(part, stack) for part, stack in zip(space.spaces, frames, strict=True))
        return self._join(frames, jnp)

    def _join(self, frames: Any, numpy: Any) -> Any:
        return frames if self.axis == "new" or frames.ndim == 1 else numpy.concatenate(list(frames), axis=-1)

    def _stacked_space(self, space: Space) -> Space:
        def stacked(values: Any) -> np.ndarray:
            return self._join(np.stack([np.asarray(values)] * self.num_frames), np)

        match space:
            case Dict():
                parts = space.spaces.items()
                return Dict({name: part if name == ACTION_MASK else self._stacked_space(part) for name, part in parts})
            case Tuple():
                return Tuple([self._stacked_space(part) for part in space.spaces])
            case Box():
                return Box(stacked(space.low), stacked(space.high), dtype=space.dtype)
            case Discrete():
                return MultiDiscrete(stacked(space.n), stacked(space.start), space.dtype)
            case MultiDiscrete():
                return MultiDiscrete(stacked(space.nvec), stacked(space.start), space.dtype)
            case MultiBinary():
                return MultiBinary(stacked(np.zeros(space.shape)).shape)
        raise InvalidInputError(f"expected a space of rookery.spaces, got {space!r}.")


def _has_frame_stack(env: Env) -> bool:
    while isinstance(env, Wrapper):
        if isinstance(env, FrameStackWrapper):
            return True
        env = env.env
    return False


def _array_spaces(space: Space) -> list[ArraySpace]:
    """Return the array spaces inside a nested space, in the order of `_arrays_in_order`."""
    match space:
        case Dict():
            return [part for name in sorted(space.spaces) for part in _array_spaces(space[name])]
        case Tuple():
            return [part for inner in space.spaces for part in _array_spaces(inner)]
        case ArraySpace():
            return [space]
    raise InvalidInputError(f"expected a space of rookery.spaces, got {space!r}.")


def _arrays_in_order(space: Space, obs: Obs) -> list[Array]:
    match space:
        case Dict():
            return [array for name in sorted(space.spaces) for array in _arrays_in_order(space[name], obs[name])]
        case Tuple():
            return [a for inner, part in zip(space.spaces, obs, strict=True) for a in _arrays_in_order(inner, part)]
    return [obs]


def _flat_bounds(space: ArraySpace) -> tuple[np.ndarray, np.ndarray]:
    match space:
        case Box():
            return space.low.ravel().astype(np.float32), space.high.ravel().astype(np.float32)
        case Discrete():
            size = space.n
        case MultiDiscrete():
            size = int(space.nvec.sum())
        case _:
            size = space.size
    return np.zeros(size, np.float32), np.ones(size, np.float32)


def _flat_obs(space: ArraySpace, obs: Array) -> Array:
    match space:
        case Discrete():
            return jax.nn.one_hot(obs - space.start, space.n)
        case MultiDiscrete():
            entries = zip(obs.ravel(), space.start.ravel().tolist(), space.nvec.ravel().tolist(), strict=True)
            return jnp.concatenate([jax.nn.one_hot(entry - start, n) for entry, start, n in entries])
    return obs.astype(jnp.float32).ravel()
