"""The ledger of a runner: every env step is returned, discarded for a documented reason, or pending."""

from dataclasses import dataclass


@dataclass
class Steps:
    """A number of env steps, and of the rows that agents made of them."""

    env_steps: int = 0
    rows: int = 0

    def __iadd__(self, other: "Steps") -> "Steps":
        self.env_steps += other.env_steps
        self.rows += other.rows
        return self

    def __add__(self, other: "Steps") -> "Steps":
        return Steps(self.env_steps + other.env_steps, self.rows + other.rows)

    def __sub__(self, other: "Steps") -> "Steps":
        return Steps(self.env_steps - other.env_steps, self.rows - other.rows)


@dataclass(frozen=True)
class Account:
    """Steps by what became of them. Each number is counted on its own; `is_exact` is True if they agree."""

    taken: int
    returned: int
    discarded: int
    """Steps of episodes that failed or were abandoned by `force_reset`, which are never trained on."""
    pending: int
    """Steps that the next samples will return."""
    abandoned: int = 0
    """Steps that simulators began and did not finish, because they left the episode."""

    @property
    def is_exact(self) -> bool:
        return self.taken == self.returned + self.discarded + self.pending + self.abandoned


@dataclass(frozen=True)
class Ledger:
    """The accounts of env steps and of rows."""

    env_steps: Account
    rows: Account

    @property
    def is_exact(self) -> bool:
        return self.env_steps.is_exact and self.rows.is_exact
