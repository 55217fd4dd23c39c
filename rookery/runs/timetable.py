"""When a run records, evaluates and saves."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Timetable:
    """Intervals in env steps. An event is due after the first iteration that reaches a multiple of its interval.

    All events are also due at the end of the run. With several seeds, the one with the fewest steps counts.
    """

    total_timesteps: int
    record_interval: int
    evaluation_interval: int
    checkpoint_interval: int

    @classmethod
    def of(
        cls,
        total_timesteps: int,
        record_interval: int | None = None,
        evaluation_interval: int | None = None,
        checkpoint_interval: int | None = None,
    ) -> Self:
        """Replace None by a share of the run; round the other intervals to multiples of `record_interval`."""
        wanted = [total_timesteps / 50, evaluation_interval, checkpoint_interval]
        every = record_interval or max(1, round(min(steps for steps in wanted if steps)))

        def rounded(interval: int | None) -> int:
            steps = interval or total_timesteps / 10
            return every * max(1, round(steps / every))

        return cls(total_timesteps, every, rounded(evaluation_interval), rounded(checkpoint_interval))

    def next_record(self, env_steps: int) -> int:
        """Return the env steps at which the next record is due."""
        return min(self.total_timesteps, (env_steps // self.record_interval + 1) * self.record_interval)

    def is_due(self, interval: int, record_at: int, env_steps: int) -> bool:
        """Tell whether an event with this interval is due together with the record that was due at `record_at`."""
        return env_steps >= self.total_timesteps or env_steps // interval > (record_at - 1) // interval
