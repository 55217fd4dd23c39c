"""Where each environment of a runner stands: waiting for an action, asked for something, over, broken or given up."""

from collections.abc import Collection, Iterable

import numpy as np

from rookery.runners.faults import Health, RestartPolicy, Status

NOBODY: frozenset[int] = frozenset()


class Slots:
    """The environments of a runner, each in one of five sets, and the health of each.

    The sets are replaced, not changed: mostly all envs go from one to another at once.
    """

    def __init__(self, num_envs: int, restart: RestartPolicy) -> None:
        self.everyone = frozenset(range(num_envs))
        self.over = self.everyone
        """Those whose next episode was not asked for yet."""
        self.out = NOBODY
        """Those that were asked for something and have not answered."""
        self.waiting = NOBODY
        """Those that wait to be stepped, with observations or without."""
        self.suspect = NOBODY
        """Those that failed and are to be built anew."""
        self.lost = NOBODY
        """Those that were given up."""
        self.restarting = NOBODY
        """Those among the ones that are out which are being built anew."""
        self.restored = NOBODY
        """Those that were built anew and have not made enough steps yet to be trusted."""
        self._restart = restart
        self._health = [Health() for _ in self.everyone]

    def ask_for_episodes(self, envs: Iterable[int]) -> None:
        """These envs were asked for their next episode."""
        asked = frozenset(envs)
        self.over -= asked
        self.out |= asked

    def begin_episodes(self, envs: Iterable[int]) -> None:
        """These envs have begun the episode that they were asked for."""
        begun = frozenset(envs)
        self.out -= begun
        self.restarting -= begun
        self.waiting |= begun

    def send(self, envs: frozenset[int]) -> None:
        """These envs were sent actions."""
        self.waiting = NOBODY if envs is self.waiting else self.waiting - envs
        self.out = self.out | envs if self.out else envs

    def answer(self, envs: Collection[int] | np.ndarray) -> frozenset[int]:
        """These envs have made the step that they were asked for; return them as a set."""
        if len(envs) == len(self.everyone):
            self.out, self.waiting = NOBODY, self.everyone
            return self.everyone
        answered = frozenset(envs.tolist() if isinstance(envs, np.ndarray) else envs)
        self.out -= answered
        self.waiting |= answered
        return answered

    def end_episodes(self, envs: frozenset[int]) -> None:
        """The episodes of these envs are over."""
        self.waiting -= envs
        self.over |= envs

    def fail(self, env: int, now: float) -> Health:
        """Note that an env failed: it is to be built anew, or given up. Return its health."""
        health = self._health[env] = self._health[env].after_fault(self._restart, now)
        alone = frozenset((env,))
        self.waiting -= alone
        self.out -= alone
        self.restarting -= alone
        self.restored -= alone
        if health.status is Status.LOST:
            self.lost |= alone
        else:
            self.suspect |= alone
        return health

    def restart_due(self, now: float) -> list[int]:
        """Return the envs that may be built anew by now; they count as asked for an episode from now on."""
        due = frozenset(env for env in self.suspect if self._health[env].may_restart(now))
        for env in due:
            self._health[env] = self._health[env].after_restart()
        self.suspect -= due
        self.out |= due
        self.restarting |= due
        self.restored |= due
        return sorted(due)

    def seconds_to_restart(self, now: float) -> float:
        """How long it takes until one of the suspect envs may be built anew."""
        return max(0.0, min(self._health[env].retry_at for env in self.suspect) - now)

    def trust(self, envs: frozenset[int], num_steps: int = 1) -> None:
        """Note that envs made good steps, which counts for those among them that were built anew."""
        for env in self.restored & envs:
            for _ in range(num_steps):
                self._health[env] = self._health[env].after_good_step(self._restart)
            if self._health[env].status is Status.HEALTHY:
                self.restored -= {env}
