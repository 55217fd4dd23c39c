"""The ledger of a runner: every step of an environment is returned, discarded by a stated rule, or still to come."""

from dataclasses import dataclass


@dataclass
class Steps:
    """A number of steps of envs, and of the rows that the agents in them made of these."""

    env_steps: int = 0
    rows: int = 0

    def __iadd__(self, other: "Steps") -> "Steps":
        self.env_steps += other.env_steps
        self.rows += other.rows
        return self


@dataclass(frozen=True)
class Account:
    """What became of some steps. Each number is counted where it happens; `is_exact` says whether they agree."""

    taken: int
    returned: int
    discarded: int
    """Steps of episodes that failed: they are never trained on."""
    pending: int
    """Steps that the next sample will return."""

    @property
    def is_exact(self) -> bool:
        return self.taken == self.returned + self.discarded + self.pending


@dataclass(frozen=True)
class Ledger:
    """The accounts of the steps of envs and of rows."""

    env_steps: Account
    rows: Account

    @property
    def is_exact(self) -> bool:
        return self.env_steps.is_exact and self.rows.is_exact
