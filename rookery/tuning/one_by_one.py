"""Trials on host environments: one after the other, and so are the seeds of a trial."""

from collections.abc import Iterator, Sequence

from rookery.errors import shortened
from rookery.runs.directory import RunDirectory
from rookery.runs.trial_results import FAILED, TrialResult
from rookery.tuning.samplers import Trial
from rookery.tuning.trainer import (
    Rung,
    Trainer,
    build,
    complete,
    forget_programs,
    last_results,
    result_of,
    run_settings,
)
from rookery.workflows.hooks import RecordEvent

MAX_REASON_LENGTH = 1000


class OneByOneTrainer(Trainer):
    """Trains each trial and seed in a run of its own, which later rungs continue. A failing trial stops no other."""

    def train(self, trials: Sequence[Trial], rung: Rung) -> Iterator[list[TrialResult]]:
        known = self._known(rung)
        for trial in trials:
            if trial.number not in known:
                yield [self._train(trial, rung)]

    def _train(self, trial: Trial, rung: Rung) -> TrialResult:
        first = self.context.settings_of(trial).train.seed
        self.context.say(f"trial {trial.number} to {rung.total_timesteps:,} steps")
        try:
            of_seeds = [self._train_seed(trial, rung, first + number) for number in range(self.context.num_seeds)]
        except Exception as error:
            reason = shortened(" ".join(str(error).split()) or type(error).__name__, MAX_REASON_LENGTH)
            self.context.say(f"  failed: {reason}")
            return TrialResult(trial.number, rung.number, trial.values, FAILED, error=reason)
        return result_of(trial, rung, of_seeds)

    def _train_seed(self, trial: Trial, rung: Rung, seed: int) -> tuple[float | None, int, bool]:
        settings = run_settings(self.context.settings_of(trial), rung, self._run(trial, seed), seed)
        metric = settings.train.checkpoint.best_metric

        def report(event: RecordEvent) -> None:
            if metric in event.metrics:
                self.context.say(f"  {event.env_steps:>12,} steps  {metric}: {event.metrics[metric]:.2f}")

        workflow = build(settings, self.context.ray)
        try:
            complete(workflow, lambda: workflow.init(workflow.make_key()), report)
        finally:
            workflow.close()
            forget_programs()
        return last_results(self._run(trial, seed), settings)[0]

    def _run(self, trial: Trial, seed: int) -> RunDirectory:
        return self.context.directory.run(f"trial-{trial.number}-seed-{seed}")
