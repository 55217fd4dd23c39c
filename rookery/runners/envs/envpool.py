"""Environments of EnvPool, which steps all of them at once in C++."""

import importlib
import warnings
from typing import Any

import gymnasium
import numpy as np

from rookery.errors import unknown_name
from rookery.runners.envs.threaded import MAX_SEED, channels_last, images_channels_last, seeds_of


def envpool_names() -> list[str]:
    """The environments of EnvPool."""
    return importlib.import_module("envpool").list_all_envs()


class EnvPoolEnvs(gymnasium.vector.VectorEnv):
    """Envs of EnvPool, which take seeds only when they are made: a reset with seeds makes new ones.

    Images have channels last. Infos are omitted.
    """

    def __init__(
        self, name: str, num_envs: int, episode_length: int | None, render: bool, kwargs: dict[str, Any]
    ) -> None:
        names = envpool_names()
        if name not in names:
            raise unknown_name("environment", f"envpool/{name}", [f"envpool/{known}" for known in names])
        self.num_envs = num_envs
        self._name = name
        self.render_mode = "rgb_array" if render else None
        self._options = {"render_mode": self.render_mode, **kwargs}
        if episode_length is not None:
            self._options["max_episode_steps"] = episode_length
        self._pool = self._make_pool()
        self.metadata = self._pool.metadata
        space, self.single_action_space = self._pool.single_observation_space, self._pool.single_action_space
        self._has_images = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8
        self.single_observation_space = images_channels_last(space) if self._has_images else space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._pool.close()
            self._pool = self._make_pool(seed=(seeds_of(seed, self.num_envs) % MAX_SEED).tolist())
        return self._observed(self._pool.reset(options=options)[0]), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, rewards, terminated, truncated, _ = self._pool.step(actions)
        return self._observed(obs), rewards, terminated, truncated, {}

    def render(self) -> Any:
        return self._pool.render(np.arange(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        self._pool.close()

    def _make_pool(self, **options: Any) -> Any:
        envpool = importlib.import_module("envpool")
        pool = envpool.make(self._name, env_type="gymnasium", num_envs=self.num_envs, **{**self._options, **options})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*precision lowered by casting")
            _ = pool.observation_space, pool.action_space  # made when first read, with warnings about rounded bounds
        return pool

    def _observed(self, obs: Any) -> Any:
        return channels_last(obs) if self._has_images else obs
