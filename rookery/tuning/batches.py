"""Trials on device environments: those that differ in numbers only train side by side in one compiled program.

A batch of trials is one run with a seed for each trial and seed, so it has the checkpoints, records and policies of a
run with several seeds. A rung of halving starts new batches from the states of the trials that are left.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from rookery.configuration import to_mapping
from rookery.distributed.memory import memory_bytes
from rookery.errors import InvalidInputError
from rookery.hyperparameters import Hyperparameters
from rookery.runs.directory import RunDirectory
from rookery.runs.trial_results import TrialResult
from rookery.tuning.samplers import Trial
from rookery.tuning.trainer import (
    Context,
    Rung,
    Trainer,
    build,
    complete,
    forget_programs,
    last_results,
    result_of,
    run_settings,
)
from rookery.types import Key, Tree, make_key
from rookery.workflows.config import Settings
from rookery.workflows.hooks import Hook, RecordEvent
from rookery.workflows.training import TrainingState
from rookery.workflows.workflow import Workflow

HEADROOM = 2
"""The memory of a machine divided by the lower bound that a batch may need: the compiler needs more than the bound."""
MAX_STATES = 2**12
"""The largest number of trials times seeds in a batch, whose records are read at once."""


@dataclass(frozen=True)
class Batch:
    """Trials that share a program, and the run that trains them."""

    trials: tuple[Trial, ...]
    settings: tuple[Settings, ...]
    """The settings of each trial on its own."""
    run: RunDirectory
    num_seeds: int

    def run_settings(self, rung: Rung) -> Settings:
        """Return the settings of the run, with the hyper-parameters of the first trial."""
        first = self.settings[0]
        return run_settings(first, rung, self.run, first.train.seed, len(self.trials) * self.num_seeds)

    def keys(self) -> Key:
        """Return the first key of each trial and seed: the seeds are the same for all trials."""
        train = self.settings[0].train
        seeds = np.arange(train.seed, train.seed + self.num_seeds)
        if len(self.trials) * self.num_seeds == 1:
            return make_key(train.seed, train.prng)
        return jax.vmap(lambda seed: make_key(seed, train.prng))(np.tile(seeds, len(self.trials)).astype(np.int32))

    def hyperparameters(self) -> Hyperparameters:
        """Return the hyper-parameters of each trial and seed."""
        of_trials = [own.hyperparameters for own in self.settings for _ in range(self.num_seeds)]
        return stacked([jax.tree.map(np.float32, own) for own in of_trials])

    def places(self, trial: Trial) -> range:
        """Return the places of the seeds of a trial among the states of the run."""
        first = self._order[trial.number] * self.num_seeds
        return range(first, first + self.num_seeds)

    @cached_property
    def _order(self) -> dict[int, int]:
        return {trial.number: index for index, trial in enumerate(self.trials)}


class BatchTrainer(Trainer):
    """Trains batches of trials, one batch after the other."""

    def __init__(self, context: Context, trials_at_once: int | None) -> None:
        super().__init__(context)
        self._trials_at_once = trials_at_once
        self._num_batches = 0
        self._last: dict[int, tuple[Batch, Rung]] = {}
        """The batch in which a trial was trained last."""

    def train(self, trials: Sequence[Trial], rung: Rung) -> Iterator[list[TrialResult]]:
        known, before = self._known(rung), dict(self._last)
        for batch in self._batches(trials):
            if not all(trial.number in known for trial in batch.trials):
                yield self._train(batch, rung)
            self._last |= {trial.number: (batch, rung) for trial in batch.trials}
        for trial in trials:  # their states are in the checkpoints of this rung now
            if trial.number in before:
                shutil.rmtree(before[trial.number][0].run.checkpoints_path, ignore_errors=True)

    def _by_program(self, trials: Sequence[Trial]) -> list[list[tuple[Trial, Settings]]]:
        groups: dict[str, list[tuple[Trial, Settings]]] = {}
        for trial in trials:
            settings = self.context.settings_of(trial)
            groups.setdefault(program_of(settings), []).append((trial, settings))
        return list(groups.values())

    def _batches(self, trials: Sequence[Trial]) -> Iterator[Batch]:
        """Split the trials into batches of about the same size, so that they share a program."""
        for group in self._by_program(trials):
            num_batches = -(-len(group) // self._size_of_batch(group))
            for part in np.array_split(np.arange(len(group)), num_batches):
                own_trials, own_settings = zip(*(group[index] for index in part), strict=True)
                run = self.context.directory.run(f"batch-{self._num_batches}")
                self._num_batches += 1
                yield Batch(own_trials, own_settings, run, self.context.num_seeds)

    def _size_of_batch(self, group: Sequence[tuple[Trial, Settings]]) -> int:
        """Return how many of the trials fit into memory at the same time."""
        num_seeds, settings = self.context.num_seeds, group[0][1]
        size = min(len(group), self._trials_at_once or len(group), max(1, MAX_STATES // num_seeds))
        while size > 1 and HEADROOM * bytes_needed(settings, size * num_seeds) > memory_bytes():
            size = -(-size // 2)
        return size

    def _train(self, batch: Batch, rung: Rung) -> list[TrialResult]:
        self._check_size(batch)
        workflow = build(batch.run_settings(rung))
        numbers = [trial.number for trial in batch.trials]
        self.context.say(f"trials {describe_numbers(numbers)} to {rung.total_timesteps:,} steps")
        try:
            complete(workflow, lambda: self._first_state(workflow, batch), self._report(batch))
        finally:
            workflow.close()
            forget_programs()
        of_seeds = last_results(batch.run, workflow.settings)
        return [result_of(trial, rung, [of_seeds[place] for place in batch.places(trial)]) for trial in batch.trials]

    def _check_size(self, batch: Batch) -> None:
        """Raise if the run that a killed search left has other trials than this batch."""
        size = len(batch.trials) * batch.num_seeds
        if batch.run.config_path.exists() and (before := batch.run.config.get("num_seeds")) != size:
            raise InvalidInputError(
                f"{batch.run.path} trains {before} states at once, and here it would be {size}, because the memory "
                "differs: resume the search where it began."
            )

    def _first_state(self, workflow: Workflow, batch: Batch) -> TrainingState:
        """Return the state in which a batch starts: new, or that of the trials after the rung before."""
        if not all(trial.number in self._last for trial in batch.trials):
            return workflow.init(batch.keys(), batch.hyperparameters())
        trained = [self._last[trial.number] for trial in batch.trials]
        sources = {before.run.path: (before, rung) for before, rung in trained}
        states_by_run = {path: states_of(before, rung) for path, (before, rung) in sources.items()}
        states = [
            states_by_run[before.run.path][place]
            for trial, (before, _) in zip(batch.trials, trained, strict=True)
            for place in before.places(trial)
        ]
        return workflow.layout.place(stacked(states), workflow.training.specs())

    def _report(self, batch: Batch) -> Hook:
        metric = batch.settings[0].train.checkpoint.best_metric

        def report(event: RecordEvent) -> None:
            values = np.array([row.get(metric, np.nan) for row in event.rows])
            means = values.reshape(len(batch.trials), batch.num_seeds).mean(axis=1)
            if np.isfinite(means).any():
                best, median = np.nanmax(means), np.nanmedian(means)
                self.context.say(f"  {event.env_steps:>12,} steps  {metric}: best {best:.2f}, median {median:.2f}")

        return report


def program_of(settings: Settings) -> str:
    """Return what the compiled program of a trial depends on: all but its numbers."""
    structure = jax.tree.structure(settings.hyperparameters)
    return json.dumps([to_mapping(settings.train), to_mapping(settings.method), str(structure)], sort_keys=True)


def bytes_needed(settings: Settings, num_states: int) -> int:
    """Return a lower bound of the memory for a batch with this number of states."""
    workflow = build(replace(settings, train=replace(settings.train, num_seeds=num_states, run_dir=None)))
    try:
        return workflow.bytes_needed(workflow.training.state_shape(workflow.make_key()))
    finally:
        workflow.close()


def states_of(batch: Batch, rung: Rung) -> list[TrainingState]:
    """Read the states of a batch that was trained, on the host."""
    workflow = build(batch.run_settings(rung))
    try:
        return workflow.layout.seeds_of(workflow.restore())
    finally:
        workflow.close()


def stacked(trees: Sequence[Tree]) -> Tree:
    """Stack trees along a new first axis; a single one stays as it is."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *leaves: (np if isinstance(leaves[0], np.ndarray) else jnp).stack(leaves), *trees)


def describe_numbers(numbers: Sequence[int]) -> str:
    """Return numbers as a short text: 0-31, or 3, 5, 8 and 4 more."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown
