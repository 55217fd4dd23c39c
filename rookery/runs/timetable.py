"""When a training records, evaluates and saves."""

from dataclasses import dataclass
from typing import Self

from rookery.workflows.config import TrainConfig


@dataclass(frozen=True)
class Timetable:
    """When things happen, in env steps: after the first iteration that reaches a multiple of the interval, and last.

    With several seeds, the one with the fewest steps counts.
    """

    total_timesteps: int
    record_interval: int
    evaluation_interval: int
    checkpoint_interval: int

    @classmethod
    def of(cls, train: TrainConfig) -> Self:
        """Fill in the intervals that are not given; evaluations and checkpoints go with a record."""
        wanted = [train.total_timesteps / 50, train.evaluation.interval, train.checkpoint.interval]
        record_interval = train.record_interval or max(1, round(min(steps for steps in wanted if steps)))

        def with_records(interval: int | None) -> int:
            steps = interval or train.total_timesteps / 10
            return record_interval * max(1, round(steps / record_interval))

        return cls(
            train.total_timesteps,
            record_interval,
            with_records(train.evaluation.interval),
            with_records(train.checkpoint.interval),
        )

    def next_record(self, env_steps: int) -> int:
        """The number of env steps at which the next record is made."""
        return min(self.total_timesteps, (env_steps // self.record_interval + 1) * self.record_interval)

    def is_due(self, interval: int, record_at: int, env_steps: int) -> bool:
        """Tell whether something with this interval goes with the record that was to be made at `record_at`."""
        return env_steps >= self.total_timesteps or env_steps // interval > (record_at - 1) // interval
