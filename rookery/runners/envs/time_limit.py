"""A time limit for multi-agent dict environments. Other processes import this module: it does not import JAX."""

from typing import Any

from rookery.runners.envs.base_env import ALL


class TimeLimitedDictEnv:
    """Truncates the episodes of a multi-agent dict environment after `max_episode_steps` steps."""

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        self.env = env
        self.max_episode_steps = max_episode_steps
        self._num_steps = 0

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        self._num_steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        self._num_steps += 1
        if self._num_steps >= self.max_episode_steps and not terminateds.get(ALL):
            truncateds = {**truncateds, ALL: True}
        return obs, rewards, terminateds, truncateds, infos
