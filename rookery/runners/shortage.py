"""Watches whether enough runners are up."""

from rookery.errors import RookeryError
from rookery.runners.group import RunnerFailed


class Shortage:
    """Says when too few runners have been up for too long. The caller passes the time and reports failures."""

    def __init__(self, num_runners: int, min_runners: int, wait_timeout: float) -> None:
        self._num_runners = num_runners
        self._min_runners = min_runners
        self._wait_timeout = wait_timeout
        self._since: float | None = None
        """Since when fewer than `min_runners` are up."""
        self._cause: RunnerFailed | None = None
        """The first failure after which fewer than `min_runners` were up."""

    def note_failure(self, failure: RunnerFailed, num_up: int) -> None:
        """Note a failure; `num_up` runners are up after it."""
        if num_up < self._min_runners:
            self._cause = self._cause or failure

    def check(self, num_up: int, now: float) -> RookeryError | None:
        """Return an error if fewer than `min_runners` have been up for more than `wait_timeout` seconds."""
        if num_up >= self._min_runners:
            self._since, self._cause = None, None
            return None
        if self._since is None:
            self._since = now
        if now - self._since <= self._wait_timeout:
            return None
        seconds = f"{self._wait_timeout:g} seconds (ray.wait_timeout)"
        return self.error(f"{num_up} of {self._num_runners} runners were up for {seconds}")

    def error(self, what: str) -> RookeryError:
        """Make the error of a run that has too few runners."""
        text = f"{what}, and ray.min_env_runners={self._min_runners} are needed."
        return RookeryError(f"{text} The cause: {self._cause.message}" if self._cause else text)
