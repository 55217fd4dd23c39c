"""Trainers: train the trials of a rung and return what they reached."""

import contextlib
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from rookery.errors import InvalidInputError, nearest_names
from rookery.registry import workflow_class
from rookery.runners.ray.settings import RaySettings
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.divergence import DIVERGED, STOP, DivergedError, Divergence, NotFiniteError
from rookery.runs.search_directory import SearchDirectory
from rookery.runs.trial_results import DIVERGED as TRIAL_DIVERGED
from rookery.runs.trial_results import FINISHED, TrialResult, mean_fitness
from rookery.tuning.samplers import Trial
from rookery.tuning.space import settings_of
from rookery.workflows.config import Settings
from rookery.workflows.hooks import Hook
from rookery.workflows.training import TrainingState
from rookery.workflows.workflow import Workflow

STEPS = "time/total_timesteps"


@dataclass(frozen=True)
class Rung:
    """A part of the budget of trials: its number, from 1, and the env steps of a trial at its end."""

    number: int
    total_timesteps: int


@dataclass(frozen=True)
class Context:
    """What all trials of a search share."""

    base: Mapping[str, Any]
    """The config that trials start from."""
    num_seeds: int
    directory: SearchDirectory
    say: Callable[[str], object]
    """Shows a line about the progress."""
    ray: RaySettings | None = None

    def settings_of(self, trial: Trial) -> Settings:
        """Return the settings of a trial on its own."""
        return settings_of(self.base, trial.values)


class Trainer(ABC):
    """Trains trials. Runs that are on disk already are not trained again but continued."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @abstractmethod
    def train(self, trials: Sequence[Trial], rung: Rung) -> Iterator[list[TrialResult]]:
        """Train trials to the end of a rung; yield results as soon as they are known."""

    def _known(self, rung: Rung) -> set[int]:
        """Return the trials that have a result of this rung."""
        return {result.trial for result in self.context.directory.read_results() if result.rung == rung.number}


def rung_settings(settings: Settings, rung: Rung) -> Settings:
    """Return the settings of a run that ends with a rung; a later rung goes on with its states."""
    train = settings.train
    return replace(settings, budget=train.total_timesteps, train=replace(train, total_timesteps=rung.total_timesteps))


def run_settings(settings: Settings, rung: Rung, run: RunDirectory, seed: int, num_seeds: int = 1) -> Settings:
    """Return the settings of a run that trains trials to the end of a rung."""
    train, timetable, of_rung = settings.train, settings.train.timetable, rung_settings(settings, rung)
    return replace(
        of_rung,
        train=replace(
            of_rung.train,
            seed=seed,
            num_seeds=num_seeds,
            record_interval=timetable.record_interval,
            evaluation=replace(train.evaluation, interval=timetable.evaluation_interval),
            checkpoint=replace(train.checkpoint, interval=timetable.checkpoint_interval, keep=1, keep_best=False),
            on_nan=STOP,
            recorders=("jsonl",),
            run_dir=str(run.path),
        ),
    )


def build(settings: Settings, ray: RaySettings | None = None, evaluation_episodes: int | None = None) -> Workflow:
    """Build the workflow of settings."""
    return workflow_class(settings.agent_name).build_from_config(
        settings, agent_name=settings.agent_name, ray=ray, evaluation_episodes=evaluation_episodes
    )


def complete(workflow: Workflow, make_state: Callable[[], TrainingState], hook: Hook) -> None:
    """Train to the end, from the last checkpoint if there is one; training that diverges is not an error here."""
    run = RunDirectory(str(workflow.settings.train.run_dir))
    with no_warnings_of_divergence(), contextlib.suppress(DivergedError, NotFiniteError):
        if Checkpoints(run.checkpoints_path).steps():
            workflow.resume(on_record=hook)
        else:
            shutil.rmtree(run.path, ignore_errors=True)  # it was killed before its first checkpoint
            workflow.learn(make_state(), hook)


def last_results(run: RunDirectory, settings: Settings) -> list[tuple[float | None, int, bool]]:
    """Return the last fitness, the env steps and whether training diverged, for each seed of a run."""
    rows, metric = run.read_metrics(), settings.train.checkpoint.best_metric
    if rows and not any(metric in row or DIVERGED in row for row in rows):
        near = nearest_names(metric, {name for row in rows for name in row})
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InvalidInputError(f"checkpoint.best_metric={metric}, the fitness of trials, was never recorded.{hint}")
    of_seeds: dict[int, list[Mapping[str, Any]]] = {seed: [] for seed in settings.train.seeds}
    for row in rows:
        of_seeds[row["seed"]].append(row)
    return [_last_result(of_seed, metric) for of_seed in of_seeds.values()]


def result_of(trial: Trial, rung: Rung, of_seeds: Sequence[tuple[float | None, int, bool]]) -> TrialResult:
    """Combine the results of the seeds of a trial."""
    has_diverged = any(diverged for _, _, diverged in of_seeds)
    fitness = tuple(None if diverged else value for value, _, diverged in of_seeds)
    return TrialResult(
        trial=trial.number,
        rung=rung.number,
        values=trial.values,
        status=TRIAL_DIVERGED if has_diverged else FINISHED,
        env_steps=max(steps for _, steps, _ in of_seeds),
        fitness=mean_fitness(fitness),
        fitness_of_seeds=fitness,
    )


def _last_result(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[float | None, int, bool]:
    values = [float(row[metric]) for row in rows if metric in row]
    fitness = values[-1] if values and np.isfinite(values[-1]) else None
    return fitness, max((int(row[STEPS]) for row in rows), default=0), any(DIVERGED in row for row in rows)


@contextlib.contextmanager
def no_warnings_of_divergence() -> Iterator[None]:
    """Drop warnings about seeds that diverged: a search counts the trials that do."""
    logger = logging.getLogger("rookery.workflows.loop")

    def is_kept(record: logging.LogRecord) -> bool:
        return not (isinstance(record.args, tuple) and record.args and isinstance(record.args[0], Divergence))

    logger.addFilter(is_kept)
    try:
        yield
    finally:
        logger.removeFilter(is_kept)


def forget_programs() -> None:
    """Free what JAX keeps of the programs of a run that is over; later runs can still share compiled ones."""
    jax.clear_caches()
