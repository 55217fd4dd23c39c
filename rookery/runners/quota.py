"""Quotas: how many steps or episodes each environment contributes to a sample."""

from collections.abc import Collection
from typing import Any

import numpy as np

ENV_STEPS, AGENT_STEPS = "env_steps", "agent_steps"
EPISODES, COMPLETE = "episodes", "complete_episodes"
WHOLE_EPISODES = (EPISODES, COMPLETE)
"""Units that end with an episode: a number of episodes, or of steps in complete episodes."""
NO_LIMIT = 2**62


class Quota:
    """The steps or episodes that each env still has to contribute to the present sample.

    Quotas are fixed beforehand, so that envs with short episodes do not contribute more of them. Only external envs
    share one quota. A step that all envs make at once is counted once.
    """

    def __init__(
        self, total: int, num_envs: int, unit: str, is_shared: bool = False, absent: Collection[int] = ()
    ) -> None:
        self.unit = unit
        self.is_shared = is_shared
        self._quotas = np.full(num_envs, total if is_shared else 0)
        self._used_by_all = 0
        self._absent = set(absent)
        self._order: list[int] = []
        """With a shared quota, the env of each step, in order."""
        self._distribute(0 if is_shared else total)

    def _distribute(self, total: int) -> None:
        present = np.array([env for env in range(len(self._quotas)) if env not in self._absent], np.int64)
        if len(present):
            share, rest = divmod(total, len(present))
            self._quotas[present] += np.where(np.arange(len(present)) < rest, share + 1, share)
        self._set_range()

    def take_from(self, env: int) -> None:
        """Distribute the rest of a lost env's quota over the others."""
        self._absent.add(env)
        if not self.is_shared:
            left = max(0, int(self._quotas[env]) - self._used_by_all)
            self._quotas[env] -= left
            self._distribute(left)

    def _set_range(self) -> None:
        self._least, self._most = int(self._quotas.min()), int(self._quotas.max())

    @property
    def largest(self) -> int:
        """The rest of the largest quota."""
        return self._most - self._used_by_all

    @property
    def has_left_all(self) -> bool:
        return self._least > self._used_by_all

    @property
    def overdraft(self) -> np.ndarray | None:
        """The env steps of each env beyond its quota; None if there are none."""
        if self.unit != ENV_STEPS or self._least >= self._used_by_all:
            return None
        if self.is_shared:
            return np.bincount(self._order[-(self._used_by_all - self._least) :], minlength=len(self._quotas))
        return np.maximum(self._used_by_all - self._quotas, 0)

    def credit(self, num_steps: np.ndarray) -> None:
        """Count steps of each env that were made before, and distribute the rest again."""
        if self.unit != ENV_STEPS:
            return
        if self.is_shared:
            self.use(ENV_STEPS, np.repeat(np.arange(len(num_steps)), num_steps))
            return
        total = int(self._quotas.sum())
        counted = np.clip(total - (np.cumsum(num_steps) - num_steps), 0, num_steps)
        self._quotas = counted.astype(np.int64)
        self._distribute(total - int(counted.sum()))
        self._quotas -= num_steps
        self._set_range()

    def has_left(self, env: int) -> bool:
        return bool(self._quotas[env] > self._used_by_all)

    def use(self, unit: str, envs: Any, amount: int = 1) -> None:
        """Count steps or episodes of these envs; an env may be named several times for steps of agents."""
        if unit != self.unit or not len(envs):
            return
        if self.is_shared:
            self._used_by_all += amount * len(envs)
            self._order.extend(envs)
        elif unit == ENV_STEPS and len(envs) == len(self._quotas):
            self._used_by_all += amount
        elif unit == ENV_STEPS:
            self._quotas[envs] -= amount
            self._set_range()
        else:
            np.subtract.at(self._quotas, np.asarray(envs), amount)
            self._set_range()
