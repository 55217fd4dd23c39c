"""The episodes that the individuals of a generation have to play on the host: a queue, and what came out."""

from collections import deque
from typing import Any

import numpy as np

from rookery.evaluators.lanes import PopulationEpisodes
from rookery.evaluators.measures import Measure
from rookery.learning.running_statistics import RunningStatistics
from rookery.runners.seeds import episode_seed


class Jobs:
    """The episodes of one generation: those that wait, and what came out of the others.

    Job j is episode j % num_episodes of individual j // num_episodes. The seed of an episode depends on these two and
    on how often it was begun, so which env plays it makes no difference.
    """

    def __init__(
        self, population_size: int, num_episodes: int, measures: tuple[Measure, ...] = (), seed: int = 0
    ) -> None:
        self.shape = population_size, num_episodes
        self.num_left = num_jobs = population_size * num_episodes
        self.waiting = deque(range(num_jobs))
        self.returns = np.zeros(num_jobs)
        self.lengths = np.zeros(num_jobs, np.int32)
        self.num_faults = [0] * num_jobs
        self._num_begun = [0] * num_jobs
        self._measures = measures
        self._measured = np.zeros((num_jobs, len(measures)))
        self._seed = seed

    def seed_of(self, job: int) -> int:
        """The seed of the present try."""
        num_tries_before = self._num_begun[job] - 1
        return episode_seed(self._seed, 0, num_tries_before * len(self._num_begun) + job)

    def begin(self) -> int:
        """Take the next job that waits."""
        job = self.waiting.popleft()
        self._num_begun[job] += 1
        return job

    def begin_again(self, job: int) -> None:
        """Let a job wait for another try."""
        self.returns[job], self.lengths[job], self._measured[job] = 0.0, 0, 0.0
        self.waiting.appendleft(job)

    def give_up(self, job: int) -> None:
        """End a job without a result."""
        self.returns[job], self.lengths[job], self._measured[job] = np.nan, 0, np.nan
        self.num_left -= 1

    def measure(self, job: int, action: Any, reward: float, obs: Any, info: Any, is_over: bool) -> None:
        """Take a step into the measures; what is looked at last need not be there before the episode is over."""
        totals = self._measured[job]
        for index, measure in enumerate(self._measures):
            if is_over or measure.reduction != "last":
                totals[index] = measure.accumulate(totals[index], measure.at_host_step(action, reward, obs, info))

    def result(self, obs_statistics: RunningStatistics | None) -> PopulationEpisodes:
        """Return what came out, as arrays of the host."""
        lengths = np.maximum(self.lengths, 1)  # what did not begin has no mean
        columns = [measure.result(self._measured[:, i], lengths) for i, measure in enumerate(self._measures)]
        measured = np.stack(columns, axis=1) if columns else self._measured
        arrays: dict[str, Any] = {
            "episode_returns": self.returns.reshape(self.shape).astype(np.float32),
            "episode_lengths": self.lengths.reshape(self.shape).copy(),
            "measures": measured.reshape(*self.shape, len(self._measures)).astype(np.float32),
        }
        return PopulationEpisodes(**arrays, obs_statistics=obs_statistics)
