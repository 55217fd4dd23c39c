"""Recording of evaluations: the return and the length of each episode, without rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rookery.runners.acting.players import Players
from rookery.runners.envs.base_env import Actions, EnvOutputs
from rookery.runners.ledger import Steps
from rookery.runners.perf import Perf, Stage
from rookery.runners.recording.episode import LiveEpisode
from rookery.runners.recording.recorder import EpisodeRecorder


class ReturnsRecorder(EpisodeRecorder):
    """Sums up the rewards and steps of numbered episodes; those that are not finished have NaN and length 0."""

    def __init__(self, players: Players, num_envs: int, num_episodes: int) -> None:
        self.returns = np.full((num_episodes, players.num_policies), np.nan)
        """By episode and policy; NaN for policies that did not act in an episode."""
        self.lengths = np.zeros(num_episodes, np.int32)
        self._players = players
        self._env_returns = np.zeros((num_envs, players.num_policies))
        self._env_lengths = np.zeros(num_envs, np.int32)

    @property
    def is_finished(self) -> np.ndarray:
        """Whether each episode was played to its end."""
        return self.lengths > 0

    def observe(self, polled: EnvOutputs, episodes: Sequence[LiveEpisode]) -> Sequence[int]:
        is_step = ~polled.is_reset
        policies = self._players.policies_of(polled, episodes)[is_step]
        np.add.at(self._env_returns, (polled.envs[is_step], policies), polled.rewards[is_step])
        stepped = np.asarray(polled.stepped, np.int64)
        self._env_lengths[stepped] += 1
        self._players.observe(polled, episodes)
        return ()

    def act(self, envs: np.ndarray, episodes: Sequence[LiveEpisode], perf: Perf) -> Actions:
        actions = self._players.act(envs, self._env_lengths)
        perf.mark(Stage.INFERENCE)
        return actions

    def end_episode(self, episode: LiveEpisode) -> int:
        self.update(episode)
        env, number = episode.env_index, episode.number
        self.returns[number] = np.where(self._players.have_acted(episode), self._env_returns[env], np.nan)
        self.lengths[number] = self._env_lengths[env]
        return self.discard(env).env_steps

    def abandon(self, env: int) -> Steps:
        return Steps()

    def discard(self, env: int) -> Steps:
        num_steps = int(self._env_lengths[env])
        self._env_returns[env], self._env_lengths[env] = 0.0, 0
        return Steps(num_steps, num_steps)

    def last_action(self, env: int) -> Any:
        return self._players.last_action(env)

    def update(self, episode: LiveEpisode) -> None:
        episode.length = int(self._env_lengths[episode.env_index])
