"""The config of a runner, and the sample that it returns."""

from dataclasses import dataclass, field
from typing import Any

from rookery.errors import InvalidInputError, check_count
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.faults import Fault
from rookery.runners.health import RestartPolicy
from rookery.runners.quota import AGENT_STEPS, COMPLETE, ENV_STEPS
from rookery.runners.recording.episode import EpisodeMetric
from rookery.sample_batch import MultiAgentBatch

TRUNCATE = "truncate_episodes"
ABORT, RAISE = "abort", "raise"


@dataclass(frozen=True)
class RunnerConfig:
    """How a runner samples.

    A sample has `rollout_fragment_length` steps of each env and cuts episodes there (`batch_mode="truncate_episodes"`)
    or goes on to their end ("complete_episodes"). `count_steps_by` counts steps of envs or of agents. On an invalid
    observation, reward or flag, abort the episode (`on_invalid="abort"`) or raise ("raise").

    With `num_fragments`, a sample has that number of fragments of whichever envs fill theirs first, so that nobody is
    waited for; `max_age` limits by how many versions of the parameters their oldest rows may lag.
    """

    rollout_fragment_length: int = 128
    batch_mode: str = TRUNCATE
    count_steps_by: str = ENV_STEPS
    explore: bool = True
    on_invalid: str = ABORT
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    perf_decay: float | None = None
    num_fragments: int | None = None
    max_age: int | None = None

    def __post_init__(self) -> None:
        check_count("rollout_fragment_length", self.rollout_fragment_length)
        if self.num_fragments is not None:
            check_count("num_fragments", self.num_fragments)
        if self.max_age is not None and (self.max_age < 0 or self.num_fragments is None):
            raise InvalidInputError(f"max_age={self.max_age} must be at least 0, and needs num_fragments.")
        for name, choices in (
            ("batch_mode", (TRUNCATE, COMPLETE)),
            ("count_steps_by", (ENV_STEPS, AGENT_STEPS)),
            ("on_invalid", (ABORT, RAISE)),
        ):
            if getattr(self, name) not in choices:
                raise InvalidInputError(f"{name}={getattr(self, name)!r}: choose {' or '.join(map(repr, choices))}.")


@dataclass(frozen=True)
class Sample:
    """Trajectories `[T, columns]` by policy, and the episodes and faults meanwhile."""

    batch: MultiAgentBatch
    first_carries: dict[PolicyID, Any]
    """The recurrent states before the first row, leaves `[columns, ...]`; `()` for agents without one."""
    episodes: list[EpisodeMetric]
    """The episodes that ended, failed ones included."""
    faults: list[Fault]
    env_steps: int
    """The number of env steps in the batch."""
    agent_steps: int
    """The number of live rows in the batch."""
    evaluated: list[EpisodeMetric] = field(default_factory=list)
    """The episodes of external simulators that evaluate the policies; their rows are in no batch."""
