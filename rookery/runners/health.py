"""The health of environments: which of them wait, play, failed or were given up, and when they are restarted."""

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from rookery.errors import InvalidInputError, check_count


@dataclass(frozen=True)
class RestartPolicy:
    """How often in a row an env is restarted before it is given up, and how long to wait before each restart.

    The row ends once the env has made `good_steps` steps since its restart or, where whole episodes are played, has
    finished one. `max_faults` limits the faults of one env over its whole life; None sets no limit.
    """

    max_restarts: int = 5
    good_steps: int = 10
    first_delay: float = 0.1
    max_delay: float = 30.0
    max_faults: int | None = None

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise InvalidInputError(f"max_restarts={self.max_restarts} must be at least 0.")
        check_count("good_steps", self.good_steps)
        if not 0 <= self.first_delay <= self.max_delay:
            raise InvalidInputError(
                f"first_delay={self.first_delay} must lie between 0 and max_delay={self.max_delay} seconds."
            )
        if self.max_faults is not None and self.max_faults < 0:
            raise InvalidInputError(f"max_faults={self.max_faults} must be at least 0.")

    def delay(self, num_tries: int) -> float:
        """Seconds to wait after `num_tries` failed restarts: 0 after the first fault, then doubling."""
        return 0.0 if num_tries == 0 else min(self.max_delay, self.first_delay * 2.0 ** (num_tries - 1))


class Status(enum.StrEnum):
    """The state of health of an environment."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """It failed and waits for its restart."""
    RESTORED = "restored"
    """It was restarted and has not proved itself yet."""
    LOST = "lost"
    """Its restarts are used up."""


@dataclass(frozen=True)
class Health:
    """The health of one environment; every event makes a new value."""

    status: Status = Status.HEALTHY
    num_failures: int = 0
    """Faults in a row that count against the env."""
    num_good_steps: int = 0
    """Steps since the last restart."""
    num_faults: int = 0
    """All faults of its life."""
    retry_at: float = 0.0
    """When a suspect env may be restarted, on the runner's clock."""

    def after_fault(self, policy: RestartPolicy, now: float) -> "Health":
        """Count a fault against the env, which is lost if it failed too often."""
        num_failures = self.num_failures + 1
        counted = self._counted(policy, num_failures)
        if num_failures > policy.max_restarts:
            return replace(counted, status=Status.LOST)
        return replace(counted, retry_at=now + policy.delay(num_failures - 1))

    def after_episode_fault(self, policy: RestartPolicy, now: float, num_episode_faults: int) -> "Health":
        """Note a fault that counts against the episode, which has failed `num_episode_faults` times.

        The episode had begun, so the failures in a row of the env itself are over.
        """
        return replace(self._counted(policy, num_failures=0), retry_at=now + policy.delay(num_episode_faults - 1))

    def after_loss_elsewhere(self, policy: RestartPolicy, now: float, num_tries: int) -> "Health":
        """Note a failure that counts against nobody, such as that of a machine: it only delays the restart."""
        retry_at = now + policy.delay(num_tries - 1)
        return replace(self, status=Status.SUSPECT, num_faults=self.num_faults + 1, retry_at=retry_at)

    def _counted(self, policy: RestartPolicy, num_failures: int) -> "Health":
        num_faults = self.num_faults + 1
        is_over_limit = policy.max_faults is not None and num_faults > policy.max_faults
        status = Status.LOST if is_over_limit else Status.SUSPECT
        return replace(self, status=status, num_faults=num_faults, num_failures=num_failures)

    def after_restart(self) -> "Health":
        return replace(self, status=Status.RESTORED, num_good_steps=0)

    def after_good_step(self, policy: RestartPolicy) -> "Health":
        num_good_steps = self.num_good_steps + 1
        if num_good_steps < policy.good_steps:
            return replace(self, num_good_steps=num_good_steps)
        return replace(self, status=Status.HEALTHY, num_failures=0, num_good_steps=num_good_steps)

    def may_restart(self, now: float) -> bool:
        return self.status is Status.SUSPECT and now >= self.retry_at


class EnvStates:
    """The environments of a runner, each in one of five sets, and the health of each.

    The sets are `over`, `out`, `waiting`, `suspect` and `lost`; `restarting` and `restored` mark some of their envs.
    """

    def __init__(self, num_envs: int, restart: RestartPolicy) -> None:
        self.everyone = frozenset(range(num_envs))
        self.over = set(self.everyone)
        """Envs without an episode: their next one has not been requested yet."""
        self.out: set[int] = set()
        """Envs that have been asked for a step or an episode and have not answered."""
        self.waiting: set[int] = set()
        """Envs that wait to be stepped, with observations or without."""
        self.suspect: set[int] = set()
        """Envs that failed and wait for their restart."""
        self.lost: set[int] = set()
        """Envs that were given up."""
        self.restarting: set[int] = set()
        """Envs in `out` that are being restarted."""
        self.late: set[int] = set()
        """Envs in `out` that have been silent for so long that nobody waits for them."""
        self.restored: set[int] = set()
        """Envs that were restarted and have not proved themselves yet."""
        self._restart = restart
        self._health = [Health() for _ in self.everyone]

    def request_episodes(self, envs: Collection[int]) -> None:
        """Note that these envs have been asked for their next episode."""
        self.over.difference_update(envs)
        self.out.update(envs)

    def begin_episodes(self, envs: Collection[int]) -> None:
        """Note that these envs have begun the requested episode."""
        for others in (self.out, self.restarting, self.late):
            others.difference_update(envs)
        self.waiting.update(envs)

    def send(self, envs: Collection[int]) -> None:
        """Note that actions were sent to these envs."""
        if len(envs) == len(self.waiting) and not self.out:
            self.waiting, self.out = self.out, self.waiting  # mostly all act at once
        else:
            self.out.update(envs)
            self.waiting.difference_update(envs)

    def answer(self, envs: Collection[int] | np.ndarray) -> None:
        """Note that these envs have made their step."""
        if len(envs) == len(self.out) and not self.waiting:
            self.waiting, self.out = self.out, self.waiting
            self.late.clear()
        else:
            answered = envs.tolist() if isinstance(envs, np.ndarray) else envs
            self.waiting.update(answered)
            self.out.difference_update(answered)
            self.late.difference_update(answered)

    def end_episodes(self, envs: Collection[int]) -> None:
        """Note that the episodes of these envs are over."""
        self.waiting.difference_update(envs)
        self.over.update(envs)

    def leave_episode(self, env: int) -> None:
        """Note that the simulator of an env left its episode, whoever's turn it was."""
        for others in (self.out, self.waiting, self.restarting, self.late):
            others.discard(env)
        self.over.add(env)

    def abandon_episodes(self) -> None:
        """Note that all running episodes were abandoned; the health of each env tells which of them failed."""
        by_status = {status: {env for env in self.everyone if self._health[env].status is status} for status in Status}
        self.suspect, self.lost = by_status[Status.SUSPECT], by_status[Status.LOST]
        self.restored = by_status[Status.RESTORED]
        self.over = set(self.everyone - self.suspect - self.lost)
        for others in (self.out, self.waiting, self.restarting, self.late):
            others.clear()

    def fail(self, env: int, now: float, num_episode_faults: int | None = None) -> Health:
        """Note that an env failed: it waits for its restart or is given up. Return its health.

        The fault counts against the env or, with `num_episode_faults`, against the episode that it played.
        """
        health = self._health[env]
        if num_episode_faults is None:
            health = health.after_fault(self._restart, now)
        else:
            health = health.after_episode_fault(self._restart, now, num_episode_faults)
        self._health[env] = health
        for others in (self.waiting, self.out, self.restarting, self.late, self.restored):
            others.discard(env)
        (self.lost if health.status is Status.LOST else self.suspect).add(env)
        return health

    def note_silence(self) -> None:
        """Note that the envs that have not answered are late; those that restart are not waited for anyway."""
        self.late = self.out - self.restarting

    def due(self, now: float) -> list[int]:
        """Return the suspect envs that may be restarted by now."""
        return sorted(env for env in self.suspect if self._health[env].may_restart(now))

    def restart(self, env: int) -> None:
        """Note that an env is being restarted and has been asked for an episode."""
        self._health[env] = self._health[env].after_restart()
        self.suspect.remove(env)
        for others in (self.out, self.restarting, self.restored):
            others.add(env)

    def seconds_to_restart(self, now: float, envs: Collection[int]) -> float:
        """Return the seconds until the first of these suspect envs may be restarted."""
        return max(0.0, min(self._health[env].retry_at for env in envs) - now)

    def trust(self, envs: Collection[int], num_steps: int = 1) -> None:
        """Note that envs made good steps, which counts for the restored ones."""
        for env in self.restored.intersection(envs):
            for _ in range(num_steps):
                self._health[env] = self._health[env].after_good_step(self._restart)
            if self._health[env].status is Status.HEALTHY:
                self.restored.discard(env)
