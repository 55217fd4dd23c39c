"""Remembers from where each runner of a group goes on if it is started again."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rookery.errors import InvalidInputError
from rookery.runners.groups.group import RunnerStart, RunnerState


class RunnerStarts:
    """The last state of each runner, and the number of fragments that it may have begun since then.

    Nobody knows how far a lost runner came, so that the one after it leaves out the seeds of these fragments. A
    resumed run leaves out `num_unsaved_fragments`. A checkpoint is due after half of them: one that cannot be written
    costs no seed twice.
    """

    def __init__(self, num_runners: int, num_unsaved_fragments: int) -> None:
        self._num_unsaved_fragments = num_unsaved_fragments
        self._states: list[RunnerState | None] = [None] * num_runners
        self._num_begun = [0] * num_runners
        self._num_unsaved = [0] * num_runners
        """The number of fragments that each runner has begun since the last checkpoint."""

    def __getitem__(self, index: int) -> RunnerStart:
        return RunnerStart(self._states[index], self._num_begun[index])

    def begin(self, index: int) -> None:
        """Note that a runner was asked for a fragment."""
        self._num_begun[index] += 1
        self._num_unsaved[index] += 1

    def note(self, index: int, state: RunnerState) -> None:
        """Note the state of a runner that has answered all requests."""
        self._states[index], self._num_begun[index] = state, 0

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether a runner has begun enough fragments that a resumed run might use their seeds again.

        The fewer runners are up, the more of the steps between two checkpoints are those of one.
        """
        return max(self._num_unsaved) > self._num_unsaved_fragments // 2

    def save(self) -> list[Any]:
        """Return the states for a checkpoint as JSON data."""
        self._num_unsaved = [0] * len(self._states)
        states: list[Any] = jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), self._states)
        return states

    def restore(self, states: Sequence[RunnerState | None]) -> None:
        """Continue from the states of a checkpoint; there are none if the run had not started."""
        num_runners = len(self._states)
        if len(states) not in (0, num_runners):
            raise InvalidInputError(
                f"the checkpoint has the states of {len(states)} runners, and this run has {num_runners}: resume with "
                f"num_env_runners={len(states)}."
            )
        self._states = list(states) or [None] * num_runners
        self._num_begun = [self._num_unsaved_fragments if states else 0] * num_runners
        self._num_unsaved = [0] * num_runners
