"""The training loop: iterations up to each record, then evaluation, record, hooks and checkpoint."""

import json
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from rookery.learning.counter import Counter
from rookery.metrics import RunningMetrics
from rookery.runs.checkpoint import CheckpointError
from rookery.runs.directory import RunDirectory
from rookery.runs.divergence import STOP, DivergedError
from rookery.runs.files import write_atomically
from rookery.runs.interruption import Interrupted, StopSignals
from rookery.runs.log import RunLog
from rookery.runs.timetable import Timetable
from rookery.types import PyTreeDict, all_finite
from rookery.workflows.config import Settings
from rookery.workflows.hooks import Hook, RecordEvent
from rookery.workflows.programs import Layout
from rookery.workflows.saved.states import SavedStates, counts_of, env_steps_of
from rookery.workflows.training import Training, TrainingState

logger = logging.getLogger(__name__)

SECONDS_PER_CALL = 0.5
"""Target time of one call of the training program; signals are checked between calls. It does not change results."""


@dataclass
class TrainingLoop:
    """Trains until `total_timesteps`, a signal or a hook stops it."""

    settings: Settings
    training: Training
    layout: Layout
    timetable: Timetable
    saved: SavedStates
    run: RunDirectory | None
    log: RunLog
    signals: StopSignals
    hooks: Sequence[Hook] = ()
    _has_warned: bool = field(default=False, init=False)
    _saved_at: float = field(default=0.0, init=False)

    def train(self, state: TrainingState, metrics: RunningMetrics, is_new: bool) -> TrainingState:
        """Train from a state whose metrics since the last record are `metrics`; return the last state."""
        timetable = self.timetable
        env_steps = self.log.progress.env_steps = env_steps_of(state)  # warm-up steps count, too
        self._saved_at = time.monotonic()
        if is_new:
            self._save(state, metrics, is_last=False)
        has_to_train, is_last, message = env_steps < timetable.total_timesteps, False, ""
        while env_steps < timetable.total_timesteps and not is_last:
            record_at = timetable.next_record(env_steps)
            state, metrics = self._advance(state, metrics, record_at)
            env_steps = env_steps_of(state)
            if env_steps < record_at:
                self._interrupt(state, metrics)
            event = self._record(state, metrics, record_at)
            state, metrics = event.next_state, self.training.no_metrics(state)
            if agreed(event.stop_reason is not None):
                message = f"stopped at {env_steps:,} steps: {event.stop_reason}"
                self.log.progress.stop_reason = message
            is_last = bool(message) or env_steps >= timetable.total_timesteps
            if not is_last and agreed(self.signals.requested is not None):
                self._interrupt(state, metrics)
            is_due = timetable.is_due(timetable.checkpoint_interval, record_at, env_steps) or agreed(self._is_old())
            if is_last or event.is_best or is_due:
                self._save(state, metrics, is_last)
        if counts_of(state.iterations)[0] == 1 and env_steps > timetable.total_timesteps:
            budget = f"total_timesteps={timetable.total_timesteps:,}"
            logger.warning("%s is less than one iteration, which takes %s steps.", budget, f"{env_steps:,}")
        # Every process must agree, because the program runs on the devices of all processes.
        is_measured = has_to_train and self.settings.train.run_dir is not None
        self.log.finish(self.training.collect_seconds(state) if is_measured else None, message)
        populations = self.training.populations(state)
        if populations and self.run is not None:
            write_atomically(self.run.population_path, json.dumps(populations) + "\n")
        return state

    def _advance(
        self, state: TrainingState, metrics: RunningMetrics, record_at: int
    ) -> tuple[TrainingState, RunningMetrics]:
        """Train until the next record, or until a signal; save a checkpoint if the last one is old."""
        log, advance, env_steps = self.log, self.training.advance, env_steps_of(state)
        until = jax.tree.map(np.asarray, Counter.of(record_at))  # on the host, so that every process has it
        log.compile("training program", advance, state, metrics, np.int32(0), until)
        while env_steps < record_at and not agreed(self.signals.requested is not None):
            at_most, before = np.int32(log.iterations_within(SECONDS_PER_CALL)), counts_of(state.iterations)
            with log.training():
                state, metrics = jax.block_until_ready(advance(state, metrics, at_most, until))
            env_steps = env_steps_of(state)
            log.advance(env_steps, max_increase(before, counts_of(state.iterations)))
            if (failure := self.training.environments.failure) is not None:
                if (diverged := self._check_divergence(state, metrics)) is not None:
                    raise diverged from failure
                self._save(state, metrics, is_last=True)
                raise failure
            if agreed(self._is_old()) and env_steps < record_at and self._is_finite(state, metrics):
                self._save(state, metrics, is_last=False)
        return state, metrics

    def _is_old(self) -> bool:
        """Return whether the last checkpoint is older than `checkpoint.minutes`, or than the environments allow."""
        minutes = self.settings.train.checkpoint.minutes
        if self.run is not None and self.training.environments.is_checkpoint_due:
            return True
        return minutes is not None and time.monotonic() - self._saved_at >= 60.0 * minutes

    def _record(self, state: TrainingState, metrics: RunningMetrics, record_at: int) -> RecordEvent:
        """Evaluate if it is due, record and call the hooks; raise if training has diverged and has to stop."""
        log, training, timetable, env_steps = self.log, self.training, self.timetable, env_steps_of(state)
        diverged = self._check_divergence(state, metrics)
        evaluation = PyTreeDict()
        if diverged is None and timetable.is_due(timetable.evaluation_interval, record_at, env_steps):
            log.compile("evaluation program", training.evaluation, training.agents(state), state.eval_key)
            with log.evaluating():
                evaluation, state = jax.block_until_ready(training.evaluate(state))
        rows = log.record(self._counts(state), metrics, evaluation)
        self._warn_about(rows)
        if diverged is not None:
            raise diverged
        config = self.settings.train.checkpoint
        is_best = config.keep_best and log.note_best(config.best_metric, rows)
        event = RecordEvent(self.settings, training, rows, state, is_best)
        for hook in self.hooks:
            hook(event)
        if is_best and not event.is_best:
            log.forget_best(env_steps)
        return event

    def _interrupt(self, state: TrainingState, metrics: RunningMetrics) -> None:
        """Save, and raise for the signal that was received."""
        diverged = self._check_divergence(state, metrics)
        if diverged is not None:
            raise diverged
        self._save(state, metrics, is_last=True)
        raise Interrupted(self.signals.requested or signal.SIGTERM, self.log.consequence, state)

    def _save(self, state: TrainingState, metrics: RunningMetrics, is_last: bool) -> None:
        """Save a checkpoint; warn if it cannot be written, unless it is the last."""
        try:
            self.saved.save(self.run, self.log, state, metrics)
        except (CheckpointError, OSError) as error:
            self.log.forget_best(env_steps_of(state))
            if is_last:
                raise
            logger.warning("%s Training continues and saves again when the next checkpoint is due.", error)
        self._saved_at = time.monotonic()

    def _is_finite(self, state: TrainingState, metrics: RunningMetrics) -> bool:
        """Return whether no seed diverged since the last record, so that the state is worth saving."""
        found = self.log.find_divergences(counts_of(state.env_steps), metrics, self._has_finite_params(state))
        return all(divergence.seed in self.log.progress.diverged for divergence in found)

    def _has_finite_params(self, state: TrainingState) -> list[bool]:
        return [all_finite(agent) for agent in self.layout.seeds_of(state.agent_state)]

    def _check_divergence(self, state: TrainingState, metrics: RunningMetrics) -> DivergedError | None:
        """Return the error if training has diverged in all seeds and has to stop; else warn about new divergences.

        Parameters and metrics are the same in all processes, so all processes agree.
        """
        log = self.log
        found = log.find_divergences(counts_of(state.env_steps), metrics, self._has_finite_params(state))
        new = log.mark_diverged(found)
        is_over = len(log.progress.diverged) == self.layout.num_seeds
        if found and is_over and self.settings.train.on_nan == STOP:
            return log.diverged_error(found[-1])
        for divergence in new if jax.process_index() == 0 else ():
            logger.warning("%s; training goes on.", divergence)
        return None

    def _warn_about(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Show the first warning about the rows of a record, once in a run."""
        warnings = filter(None, map(self.training.warning, rows))
        if not self._has_warned and jax.process_index() == 0 and (warning := next(warnings, "")):
            self._has_warned = True
            logger.warning(warning)

    def _counts(self, state: TrainingState) -> dict[str, list[Any]]:
        """Return the values of a record that are not averaged, for each seed."""
        counters = {"time/total_timesteps": state.env_steps, "time/iterations": state.iterations}
        counters |= self.training.counters(state)
        counts: dict[str, list[Any]] = {name: counts_of(counter) for name, counter in counters.items()}
        return counts | {name: [value] for name, value in self.training.environments.report().items()}


def max_increase(before: list[int], after: list[int]) -> int:
    """Return the largest increase of a count of any seed."""
    return max(new - old for old, new in zip(before, after, strict=True))


def agreed(is_wanted: bool) -> bool:
    """Return whether any process wants something; all processes must do it in the same iteration."""
    if jax.process_count() == 1:
        return is_wanted
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.array(is_wanted))))
