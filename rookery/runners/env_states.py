"""Where each environment of a runner stands: waiting for an action, asked for something, over, broken or given up."""

from collections.abc import Collection

import numpy as np

from rookery.runners.faults import Health, RestartPolicy, Status


class EnvStates:
    """The environments of a runner, each in one of five sets, and the health of each."""

    def __init__(self, num_envs: int, restart: RestartPolicy) -> None:
        self.everyone = frozenset(range(num_envs))
        self.over = set(self.everyone)
        """Those whose next episode was not asked for yet."""
        self.out: set[int] = set()
        """Those that were asked for something and have not answered."""
        self.waiting: set[int] = set()
        """Those that wait to be stepped, with observations or without."""
        self.suspect: set[int] = set()
        """Those that failed and are to be built anew."""
        self.lost: set[int] = set()
        """Those that were given up."""
        self.restarting: set[int] = set()
        """Those among the ones that are out which are being built anew."""
        self.restored: set[int] = set()
        """Those that were built anew and have not made enough steps yet to be trusted."""
        self._restart = restart
        self._health = [Health() for _ in self.everyone]

    def ask_for_episodes(self, envs: Collection[int]) -> None:
        """These envs were asked for their next episode."""
        self.over.difference_update(envs)
        self.out.update(envs)

    def begin_episodes(self, envs: Collection[int]) -> None:
        """These envs have begun the episode that they were asked for."""
        self.out.difference_update(envs)
        self.restarting.difference_update(envs)
        self.waiting.update(envs)

    def send(self, envs: Collection[int]) -> None:
        """These envs were sent actions."""
        if len(envs) == len(self.waiting) and not self.out:
            self.waiting, self.out = self.out, self.waiting  # mostly all go at once
        else:
            self.out.update(envs)
            self.waiting.difference_update(envs)

    def answer(self, envs: Collection[int] | np.ndarray) -> None:
        """These envs have made the step that they were asked for."""
        if len(envs) == len(self.out) and not self.waiting:
            self.waiting, self.out = self.out, self.waiting
        else:
            answered = envs.tolist() if isinstance(envs, np.ndarray) else envs
            self.waiting.update(answered)
            self.out.difference_update(answered)

    def end_episodes(self, envs: Collection[int]) -> None:
        """The episodes of these envs are over."""
        self.waiting.difference_update(envs)
        self.over.update(envs)

    def fail(self, env: int, now: float) -> Health:
        """Note that an env failed: it is to be built anew, or given up. Return its health."""
        health = self._health[env] = self._health[env].after_fault(self._restart, now)
        for others in (self.waiting, self.out, self.restarting, self.restored):
            others.discard(env)
        (self.lost if health.status is Status.LOST else self.suspect).add(env)
        return health

    def restart_due(self, now: float) -> list[int]:
        """Return the envs that may be built anew by now; they count as asked for an episode from now on."""
        due = sorted(env for env in self.suspect if self._health[env].may_restart(now))
        for env in due:
            self._health[env] = self._health[env].after_restart()
        self.suspect.difference_update(due)
        for others in (self.out, self.restarting, self.restored):
            others.update(due)
        return due

    def seconds_to_restart(self, now: float) -> float:
        """How long it takes until one of the suspect envs may be built anew."""
        return max(0.0, min(self._health[env].retry_at for env in self.suspect) - now)

    def trust(self, envs: Collection[int], num_steps: int = 1) -> None:
        """Note that envs made good steps, which counts for those among them that were built anew."""
        for env in self.restored.intersection(envs):
            for _ in range(num_steps):
                self._health[env] = self._health[env].after_good_step(self._restart)
            if self._health[env].status is Status.HEALTHY:
                self.restored.discard(env)
