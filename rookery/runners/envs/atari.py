"""Games of Atari 2600, stepped and preprocessed by the Arcade Learning Environment (ALE)."""

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from rookery.errors import unknown_name
from rookery.runners.envs.base_env import EPISODE_INFO
from rookery.runners.envs.threaded import channels_last, images_channels_last, seeds_of

MIN_PICTURE_HEIGHT = 252
"""In pixels: observations are too small to watch."""


def atari_names() -> list[str]:
    """The games of ALE, in the settings of Machado et al., 2018."""
    importlib.import_module("ale_py")
    return [f"{spec.name}-v{spec.version}" for spec in gymnasium.registry.values() if spec.namespace == "ALE"]


def make_atari_games(
    name: str, num_envs: int, episode_length: int | None, render: bool, kwargs: dict[str, Any]
) -> "AtariGames":
    """Make copies of a game such as `Pong-v5`, whose observations are four gray frames of 84 by 84, channels last.

    The `kwargs` are those of ALE. `episodic_life` ends an episode with each life, `reward_clipping` replaces rewards by
    their signs; both are off by default.
    """
    vector_env = importlib.import_module("ale_py.vector_env")
    spec = gymnasium.registry.get(f"ALE/{name}")
    if spec is None:
        raise unknown_name("environment", f"ale/{name}", [f"ale/{known}" for known in atari_names()])
    options = {**spec.kwargs, **kwargs}
    options.pop("obs_type", None)
    if episode_length is not None:
        options["max_num_frames_per_episode"] = episode_length * options["frameskip"]
    episodic_life = options.pop("episodic_life", False)
    reward_clipping = options.pop("reward_clipping", False)
    env = vector_env.AtariVectorEnv(
        num_envs=num_envs, autoreset_mode=AutoresetMode.SAME_STEP, reward_clipping=False, **options
    )
    return AtariGames(env, episodic_life, reward_clipping, render)


class AtariGames(gymnasium.vector.VectorEnv):
    """ALE's games with channels last, optionally lives as episodes, and the figures of whole games in the infos.

    ALE's own `episodic_life` begins a new game with every life, so that second lives are never played. Here the game
    goes on: the observation after a lost life is the last of one episode and the first of the next. The score and the
    number of steps of a whole game come with its end, by the game's own rewards, whether or not they are clipped.
    """

    def __init__(self, env: Any, episodic_life: bool, reward_clipping: bool, render: bool = False) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.autoreset_mode = AutoresetMode.SAME_STEP
        self.render_mode = "rgb_array" if render else None
        self.single_observation_space = images_channels_last(env.single_observation_space)
        self.single_action_space = env.single_action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = env.action_space
        self._episodic_life = episodic_life
        self._reward_clipping = reward_clipping
        self._obs = np.zeros((self.num_envs, *self.single_observation_space.shape), np.uint8)
        self._lives = np.zeros(self.num_envs, np.int32)
        self._scores = np.zeros(self.num_envs, np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = self.env.reset(seed=seed if seed is None else seeds_of(seed, self.num_envs), options=options)
        self._lives = infos["lives"]
        self._scores[:] = self._lengths[:] = 0
        self._obs = channels_last(obs)
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        self._obs = obs = channels_last(obs)
        is_game_over = terminated | truncated
        self._scores += rewards
        self._lengths += 1
        if self._episodic_life:
            terminated = terminated | ((infos["lives"] < self._lives) & ~is_game_over)
        self._lives = infos["lives"]
        infos = self._infos(obs, terminated | truncated, is_game_over, infos)
        return obs, np.sign(rewards) if self._reward_clipping else rewards, terminated, truncated, infos

    def render(self) -> tuple[np.ndarray, ...]:
        """Render the newest frame of the last observation, each pixel as a square."""
        num_channels = 1 if self.env.grayscale else 3
        frames = self._obs[..., -num_channels:]
        frames = np.broadcast_to(frames, (*frames.shape[:3], 3))
        size = -(-MIN_PICTURE_HEIGHT // frames.shape[1])
        return tuple(frames.repeat(size, axis=1).repeat(size, axis=2))

    def close_extras(self, **kwargs: Any) -> None:
        self.env.close()

    def _infos(
        self, obs: np.ndarray, is_over: np.ndarray, is_game_over: np.ndarray, infos: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the final infos of Gymnasium's vector envs, for `AutoresetMode.SAME_STEP`."""
        if not is_over.any():
            return {}
        if not is_game_over.any():
            return {"final_obs": obs, "_final_obs": is_over}
        final_obs = np.where(is_game_over[:, None, None, None], channels_last(infos["final_obs"]), obs)
        games = {
            "game_return": self._scores.copy(),
            "_game_return": is_game_over,
            "game_length": self._lengths.copy(),
            "_game_length": is_game_over,
        }
        self._scores[is_game_over] = self._lengths[is_game_over] = 0
        return {
            "final_obs": final_obs,
            "_final_obs": is_over,
            "final_info": {EPISODE_INFO: games, f"_{EPISODE_INFO}": is_game_over},
            "_final_info": is_game_over,
        }
