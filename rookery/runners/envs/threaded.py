"""The common part of vector envs that a library steps in its own threads: seeds, and the layout of images."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

MAX_SEED = 2**31 - 1


class OnlyEnv(gymnasium.Env):
    """The only env of a vector env, for one episode."""

    def __init__(self, vector_env: gymnasium.vector.VectorEnv) -> None:
        self.vector_env = vector_env
        self.observation_space = vector_env.single_observation_space
        self.action_space = vector_env.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._first(self.vector_env.reset(seed=seed)[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, rewards, terminated, truncated, _ = self.vector_env.step(np.asarray([action]))
        return self._first(obs), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Any:
        images: Any = self.vector_env.render()
        return images[0]

    def close(self) -> None:
        self.vector_env.close()

    def _first(self, obs: Any) -> Any:
        return next(iter(gymnasium.vector.utils.iterate(self.vector_env.observation_space, obs)))


def make_only_env(make_vector_env: Callable[[], gymnasium.vector.VectorEnv], index: int) -> OnlyEnv:
    """Make a vector env with one env and return that."""
    return OnlyEnv(make_vector_env())


def channels_last(images: np.ndarray) -> np.ndarray:
    """Turn `[N, C, H, W]`, or `[N, C, H, W, 3]` for frames in color, into `[N, H, W, channels]`."""
    images = np.moveaxis(images, 1, 3)
    return images if images.ndim == 4 else images.reshape(*images.shape[:3], -1)


def images_channels_last(space: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
    """Return the space of one such image."""
    shape = channels_last(space.low[None]).shape[1:]
    return gymnasium.spaces.Box(0, 255, shape, np.uint8)


def seeds_of(seed: Any, num_envs: int) -> np.ndarray:
    """Return one seed for each env, from one seed or several."""
    if np.ndim(seed) == 1:
        return np.asarray(seed)
    return np.random.SeedSequence(seed).generate_state(num_envs).astype(np.int64) % MAX_SEED
