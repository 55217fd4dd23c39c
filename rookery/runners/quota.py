"""How much each environment has to give for a sample."""

from collections.abc import Collection
from typing import Any

import numpy as np

ENV_STEPS, AGENT_STEPS = "env_steps", "agent_steps"
EPISODES, COMPLETE = "episodes", "complete_episodes"
WHOLE_EPISODES = (EPISODES, COMPLETE)
"""Units of which an env gives only whole ones: a number of episodes, or of steps in episodes that are complete."""
NO_LIMIT = 2**62


class Quota:
    """How much each env still has to give for the present sample, in steps or episodes.

    It is given out before, so that envs with short episodes do not give more of them; only envs whose episodes come
    from outside share one. What all envs give alike is counted once.
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
        """Who gave what, one after the other, where all share."""
        self._give_out(0 if is_shared else total)

    def _give_out(self, total: int) -> None:
        present = np.array([env for env in range(len(self._quotas)) if env not in self._absent], np.int64)
        if len(present):
            share, rest = divmod(total, len(present))
            self._quotas[present] += np.where(np.arange(len(present)) < rest, share + 1, share)
        self._set_range()

    def take_from(self, env: int) -> None:
        """Give what an env cannot give any more to the others."""
        self._absent.add(env)
        if not self.is_shared:
            left = max(0, int(self._quotas[env]) - self._used_by_all)
            self._quotas[env] -= left
            self._give_out(left)

    def _set_range(self) -> None:
        self._least, self._most = int(self._quotas.min()), int(self._quotas.max())

    @property
    def largest(self) -> int:
        """What is left of the largest quota."""
        return self._most - self._used_by_all

    @property
    def is_left_to_all(self) -> bool:
        return self._least > self._used_by_all

    @property
    def overdraft(self) -> np.ndarray | None:
        """How many env steps each env gave more than it had to; None if there are none."""
        if self.unit != ENV_STEPS or self._least >= self._used_by_all:
            return None
        if self.is_shared:
            return np.bincount(self._order[-(self._used_by_all - self._least) :], minlength=len(self._quotas))
        return np.maximum(self._used_by_all - self._quotas, 0)

    def credit(self, num_steps: np.ndarray) -> None:
        """Count steps of each env that were given before; what they leave is given out anew."""
        if self.unit != ENV_STEPS:
            return
        if self.is_shared:
            self.use(ENV_STEPS, np.repeat(np.arange(len(num_steps)), num_steps))
            return
        total = int(self._quotas.sum())
        counted = np.clip(total - (np.cumsum(num_steps) - num_steps), 0, num_steps)
        self._quotas = counted.astype(np.int64)
        self._give_out(total - int(counted.sum()))
        self._quotas -= num_steps
        self._set_range()

    def has_left(self, env: int) -> bool:
        return bool(self._quotas[env] > self._used_by_all)

    def use(self, unit: str, envs: Any, amount: int = 1) -> None:
        """Note that these envs gave something; for steps of agents an env may be named several times."""
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
