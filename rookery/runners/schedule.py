"""Schedules: which environments play on, with which seeds, and until when."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import numpy as np

from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.faults import Failed, Phase
from rookery.runners.health import EnvStates
from rookery.runners.quota import AGENT_STEPS, COMPLETE, ENV_STEPS, EPISODES, NO_LIMIT, WHOLE_EPISODES, Quota
from rookery.runners.recording.filled import FilledFragments
from rookery.runners.seeds import episode_seed

NO_EPISODE = -1
IDLE_SEED = 0
"""The seed of envs that are reset and do not play."""


class Schedule(ABC):
    """Decides which environments play on, with which seeds, and until when."""

    waits_for_resets: bool = False
    """Whether all envs wait for one that is reset, so that they go on together."""
    trusts_steps: bool = False
    """Whether steps prove a restarted env; otherwise it has to finish an episode."""

    @abstractmethod
    def is_finished(self, states: EnvStates) -> bool:
        """Return whether everything has been played."""

    @abstractmethod
    def may_begin(self, env: int) -> bool:
        """Return whether an env that is over begins another episode."""

    @abstractmethod
    def may_restart(self, env: int) -> bool:
        """Return whether a suspect env is restarted."""

    @abstractmethod
    def begin_episode(self, env: int) -> tuple[int, int]:
        """Return the number and the seed of the next episode of an env; `NO_EPISODE` if it has none to play."""

    def may_act(self, waiting: set[int]) -> set[int]:
        """Return those of the waiting envs that are stepped."""
        return waiting

    def count_steps(self, envs: Sequence[int] | np.ndarray) -> None:  # noqa: B027
        """Count a step of each of these envs."""

    def count_rows(self, envs: Sequence[int] | np.ndarray) -> None:  # noqa: B027
        """Count rows that were completed, by the env of each."""

    def end_episode(self, env: int, num_steps: int) -> None:  # noqa: B027
        """Count an episode that is over, of which `num_steps` were recorded since the last sample."""

    def count_fault(self, env: int, failed: Failed) -> int | None:
        """Return how often the env's episode has failed; None if the fault counts against the env."""
        return None

    def discard_episode(self, env: int, is_given_up: bool) -> None:  # noqa: B027
        """Take back the episode of an env that failed; it is played again unless it is given up."""

    def lose(self, env: int) -> None:  # noqa: B027
        """Note that an env is given up."""


class TrainingSchedule(Schedule):
    """Samples for training: episodes follow one another."""

    def __init__(self, base_env: BaseEnv, seed: int, runner_index: int) -> None:
        self._num_envs = base_env.num_envs
        self._seed, self._runner_index = seed, runner_index
        self.episode_counts = [0] * base_env.num_envs
        """How many episodes each env has begun, failed ones included: seeds depend on it."""

    def may_restart(self, env: int) -> bool:
        return True

    def begin_episode(self, env: int) -> tuple[int, int]:
        number = self.episode_counts[env] * self._num_envs + env
        self.episode_counts[env] += 1
        return number, episode_seed(self._seed, self._runner_index, number)


class FragmentSchedule(TrainingSchedule):
    """Plays until enough fragments are full, of whichever envs fill theirs first."""

    trusts_steps = True

    def __init__(self, base_env: BaseEnv, seed: int, runner_index: int, filled: FilledFragments, number: int) -> None:
        super().__init__(base_env, seed, runner_index)
        self._filled = filled
        self._number = number

    def is_finished(self, states: EnvStates) -> bool:
        return len(self._filled) >= self._number

    def may_begin(self, env: int) -> bool:
        return True


class QuotaSchedule(TrainingSchedule):
    """Samples for training: every env has a quota of steps or episodes, and episodes follow one another."""

    waits_for_resets = True

    def __init__(self, base_env: BaseEnv, seed: int, runner_index: int) -> None:
        super().__init__(base_env, seed, runner_index)
        self._is_shared = base_env.is_external
        self._steps_together = base_env.steps_together
        self.end_sample()

    def begin_sample(self, total: int, unit: str, has_fixed_shares: bool, states: EnvStates) -> int | None:
        """Distribute the quotas; return the number of rows of each column, None if that is not known.

        With `has_fixed_shares` the share of a lost env is missing, so that samples keep their shape. Otherwise the
        others give it.
        """
        absent = () if has_fixed_shares else states.lost
        self.quota = Quota(total, self._num_envs, unit, self._is_shared, absent)
        self._has_fixed_shares = has_fixed_shares
        self.trusts_steps = unit not in WHOLE_EPISODES
        if self._kept is not None:
            self.quota.credit(self._kept)
        return self.quota.largest if unit == ENV_STEPS and not self._is_shared else None

    def end_sample(self, kept: np.ndarray | None = None) -> None:
        """Go on without a limit; `kept` are the steps of each env that the next sample begins with."""
        self.quota = Quota(NO_LIMIT, self._num_envs, ENV_STEPS, is_shared=True)
        self._has_fixed_shares = True
        self.trusts_steps = True
        self._kept = kept

    def is_finished(self, states: EnvStates) -> bool:
        """Return whether every env has given its share.

        With fixed shares, an env that is late or being restarted is waited for only if no other has given anything, and
        envs that step together stop together, although a reset may have cost some of them a step.
        """
        quota = self.quota
        if quota.largest <= 0:
            return True
        if self._has_fixed_shares and self._steps_together and quota.unit == ENV_STEPS:
            return not quota.has_left_all
        if not states.suspect and not states.lost and not states.restarting and not states.late:
            return False
        absent = states.lost
        if self._has_fixed_shares:
            absent = states.lost | states.suspect | states.restarting | states.late
        return not any(map(quota.has_left, states.everyone - absent)) and not quota.has_left_all

    def may_begin(self, env: int) -> bool:
        return self.quota.unit not in WHOLE_EPISODES or self.quota.has_left(env)

    def may_act(self, waiting: set[int]) -> set[int]:
        if self.quota.has_left_all or self._steps_together:
            return waiting
        return set(filter(self.quota.has_left, waiting))

    def count_steps(self, envs: Sequence[int] | np.ndarray) -> None:
        self.quota.use(ENV_STEPS, envs)

    def count_rows(self, envs: Sequence[int] | np.ndarray) -> None:
        self.quota.use(AGENT_STEPS, envs)

    def end_episode(self, env: int, num_steps: int) -> None:
        if self.quota.unit in WHOLE_EPISODES:
            self.quota.use(COMPLETE, (env,), num_steps)
            self.quota.use(EPISODES, (env,))

    def lose(self, env: int) -> None:
        if not self._has_fixed_shares:
            self.quota.take_from(env)


class EpisodeQueue(Schedule):
    """Numbered episodes to play once each; an env that is free takes the next.

    The seed of an episode depends on its number and the tries before, not on the env that plays it. A fault within an
    episode counts against the episode, which is then played again with another seed: a policy may break a simulator. A
    fault before its first step counts against the env.

    `played` are the episodes that are played here, of those with a number below `num_episodes`; None: all.
    """

    def __init__(self, num_episodes: int, num_envs: int, seed: int, played: range | None = None) -> None:
        played = range(num_episodes) if played is None else played
        self.num_left = len(played)
        self.num_given_up = 0
        self._played = [NO_EPISODE] * num_envs
        """The episode that each env plays."""
        self._num_begun = [0] * num_episodes
        self._num_faults = [0] * num_episodes
        self._seed = seed
        self._queues = self._make_queues(played, num_envs)

    def _make_queues(self, played: range, num_envs: int) -> list[deque[int]]:
        """Return the queue of each env."""
        return [deque(played)] * num_envs

    def is_finished(self, states: EnvStates) -> bool:
        return self.num_left == 0

    def may_begin(self, env: int) -> bool:
        return bool(self._queues[env])

    def may_restart(self, env: int) -> bool:
        return bool(self._queues[env])

    def begin_episode(self, env: int) -> tuple[int, int]:
        if not self._queues[env]:
            return NO_EPISODE, IDLE_SEED
        episode = self._played[env] = self._queues[env].popleft()
        seed_number = self._num_begun[episode] * len(self._num_begun) + episode
        self._num_begun[episode] += 1
        return episode, episode_seed(self._seed, 0, seed_number)

    def end_episode(self, env: int, num_steps: int) -> None:
        if self._played[env] != NO_EPISODE:
            self._played[env] = NO_EPISODE
            self.num_left -= 1

    def count_fault(self, env: int, failed: Failed) -> int | None:
        if failed.phase is not Phase.STEP or self._played[env] == NO_EPISODE:
            return None
        self._num_faults[self._played[env]] += 1
        return self._num_faults[self._played[env]]

    def discard_episode(self, env: int, is_given_up: bool) -> None:
        if self._played[env] == NO_EPISODE:
            return
        if is_given_up:
            self.num_given_up += 1
            self.num_left -= 1
        else:
            self._queues[env].appendleft(self._played[env])
        self._played[env] = NO_EPISODE


class DealtEpisodes(EpisodeQueue):
    """Numbered episodes that are dealt to the envs beforehand: env k plays episodes k, k + n, k + 2n, ... of n envs.

    What a lost env leaves is dealt to the others.
    """

    def _make_queues(self, played: range, num_envs: int) -> list[deque[int]]:
        self._present = list(range(num_envs))
        return [deque(played[env::num_envs]) for env in range(num_envs)]

    def lose(self, env: int) -> None:
        self._present.remove(env)
        if self._present:
            for index, episode in enumerate(self._queues[env]):
                self._queues[self._present[index % len(self._present)]].append(episode)
            self._queues[env].clear()
