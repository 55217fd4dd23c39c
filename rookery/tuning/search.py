"""A search: asks a sampler for trials, trains them rung by rung, and keeps what they reach on disk."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rookery.configs import compose, with_values
from rookery.configs.composition import GROUPS
from rookery.configuration import from_mapping, plain, to_mapping
from rookery.errors import InvalidInputError, check_count
from rookery.runners.ray.settings import RaySettings
from rookery.runs.interruption import Interrupted
from rookery.runs.search_directory import SearchDirectory, is_search
from rookery.runs.trial_results import DIVERGED, FINISHED, TrialResult, best_of, ranked
from rookery.tuning.batches import BatchTrainer, program_of
from rookery.tuning.config import OPTUNA_ROUND, TuneConfig
from rookery.tuning.halving import budgets, survivors
from rookery.tuning.one_by_one import OneByOneTrainer
from rookery.tuning.samplers import Sampler, Trial, make_sampler
from rookery.tuning.space import TuneSpace, full_space, settings_of
from rookery.tuning.trainer import Context, Rung, Trainer, build, rung_settings
from rookery.workflows.config import Settings

OF_A_RUN = ("seed", "num_seeds", "run_dir")
"""The settings that a preset leaves to the run."""


class Search:
    """A search of settings, new or `reopened`; `run` runs it in a directory.

    `base` is the config that trials start from, and `space` what is searched.
    """

    def __init__(
        self, base: Mapping[str, Any], space: Mapping[str, Any], config: TuneConfig, ray: RaySettings | None = None
    ) -> None:
        self.base = {**base, "num_seeds": 1}
        self.num_seeds: int = base["num_seeds"]
        check_count("num_seeds", self.num_seeds)
        self.config = config
        self._given = full_space(self.base, space)
        self.space = TuneSpace.of(self.base, self._given)
        self.ray = ray
        self._train = settings_of(self.base, {}).train
        if self._train.env.is_on_host and config.trials_at_once not in (None, 1):
            raise InvalidInputError(
                f"trials_at_once={config.trials_at_once}: {self._train.env.name} is on the host, where trials train "
                "one after the other."
            )
        self._sampler()  # raises if Optuna is not installed

    @classmethod
    def reopened(cls, directory: SearchDirectory, ray: RaySettings | None = None) -> "Search":
        """Return the search of a directory, to go on with it."""
        description = directory.description
        parts = [plain(description.get(name, {}), name) for name in ("config", "space", "tune")]
        return cls(parts[0], parts[1], from_mapping(TuneConfig, parts[2], "tune"), ray)

    def check(self) -> None:
        """Raise if a trial of the first round cannot be built, or its first rung is too short; nothing is compiled."""
        of_trials = [settings_of(self.base, trial.values) for trial in self._sampler().ask()]
        for settings in {program_of(settings): settings for settings in of_trials}.values():
            build(settings, evaluation_episodes=1).close()
            if self.config.num_rungs > 1:
                self._check_first_rung(settings)

    def _check_first_rung(self, settings: Settings) -> None:
        rung = self._rungs[0]
        try:
            build(rung_settings(settings, rung), evaluation_episodes=1).close()
        except InvalidInputError as error:
            raise InvalidInputError(
                f"rungs={self.config.rungs} of total_timesteps={self._train.total_timesteps}: the first ends after "
                f"{rung.total_timesteps} env steps. {error} Use fewer rungs, or more total_timesteps."
            ) from error

    @property
    def description(self) -> dict[str, Any]:
        """Everything that the search depends on, as plain data."""
        tune = to_mapping(replace(self.config, search_dir=None))
        return {"config": {**self.base, "num_seeds": self.num_seeds}, "space": self._given, "tune": tune}

    def directory(self, path: str) -> SearchDirectory:
        """Create the directory of the search, or open the one that is there; raise if it has another search."""
        if not is_search(Path(path)):
            return SearchDirectory.create(path, self.description)
        directory = SearchDirectory.open(path)
        if (before := Search.reopened(directory).description) != self.description:
            other = next(name for name in before if before[name] != self.description[name])
            raise InvalidInputError(
                f"the search in {path} has another {other}: choose another search_dir, or continue that search with "
                f"`{directory.resume_command}`."
            )
        return directory

    def run(self, directory: SearchDirectory, say: Callable[[str], object]) -> list[TrialResult]:
        """Run the search in its directory, from where it is; return the last result of each trial, the best first."""
        with directory.lock():
            try:
                self._run(directory, Context(self.base, self.num_seeds, directory, say, self.ray))
            except Interrupted as stopped:
                consequence = f"continue with `{directory.resume_command}`"
                raise Interrupted(stopped.signal, consequence, stopped.state) from None
            results = directory.read_results()
            if best := best_of(results):
                remark = f"trial {best.trial}, fitness {best.fitness:g}: {directory.train_command}"
                directory.write_best(self.preset(best), remark)
        return ranked(results)

    def preset(self, result: TrialResult) -> dict[str, Any]:
        """Return the setting of a trial as a preset: agent, environment, and what differs from their defaults."""
        config = {name: value for name, value in with_values(self.base, result.values).items() if name not in OF_A_RUN}
        names = {group: config[group]["name"] for group in GROUPS}
        defaults = compose([f"{group}='{name}'" for group, name in names.items()])
        changed = differing(config, defaults)
        return {**{group: {"name": name, **changed.pop(group, {})} for group, name in names.items()}, **changed}

    def _run(self, directory: SearchDirectory, context: Context) -> None:
        sampler, trainer = self._sampler(), self._trainer(context)
        while trials := sampler.ask():
            last: dict[int, TrialResult] = {}
            left = trials
            for rung in self._rungs:
                reached = self._reach(rung, left, trainer, directory)
                last |= {result.trial: result for result in reached}
                left = survivors(left, reached)
            sampler.tell([last[trial.number] for trial in trials])

    def _reach(
        self, rung: Rung, trials: list[Trial], trainer: Trainer, directory: SearchDirectory
    ) -> list[TrialResult]:
        """Train trials to the end of a rung; return their results, also those that were on disk already."""
        for results in trainer.train(trials, rung):
            directory.add(results)
            if num_diverged := sum(result.status == DIVERGED for result in results):
                trainer.context.say(f"  {num_diverged} of {len(results)} trials diverged")
        values = {trial.number: trial.values for trial in trials}
        reached = [r for r in directory.read_results() if r.rung == rung.number and r.trial in values]
        for result in reached:
            if result.values != values[result.trial]:
                raise InvalidInputError(
                    f"trial {result.trial} in {directory.trials_path} has other values than the search proposes: "
                    "resume it with the versions of JAX and Optuna with which it began."
                )
        if reached and all(result.status == FINISHED and result.fitness is None for result in reached):
            raise InvalidInputError(
                f"no trial has a fitness after {rung.total_timesteps} env steps, rung {rung.number} of "
                f"{self.config.num_rungs}: {self._train.checkpoint.best_metric} was not recorded, or is not finite. An "
                "iteration may be longer than a rung: use fewer rungs, or more total_timesteps."
            )
        return reached

    @property
    def _rungs(self) -> list[Rung]:
        steps = budgets(self._train.total_timesteps, self.config.num_rungs)
        return [Rung(number, end) for number, end in enumerate(steps, start=1)]

    def _sampler(self) -> Sampler:
        round_size = self.config.trials_at_once or (1 if self._train.env.is_on_host else OPTUNA_ROUND)
        return make_sampler(self.config, self.space, self._train.seed, round_size)

    def _trainer(self, context: Context) -> Trainer:
        if self._train.env.is_on_host:
            return OneByOneTrainer(context)
        return BatchTrainer(context, self.config.trials_at_once)


def differing(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a config that differ from those of another, nested as they are."""
    changed: dict[str, Any] = {}
    for name, value in config.items():
        default = defaults.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            if of_group := differing(value, default):
                changed[name] = of_group
        elif name not in defaults or value != default:
            changed[name] = value
    return changed
