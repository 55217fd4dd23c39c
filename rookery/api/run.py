"""A run in hand: its policy, its metrics, and what can be done with it."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.api.loading import load
from rookery.api.teams import read_teams
from rookery.configs import compose, named_again, resumed_config, split_values
from rookery.configs.evaluation import evaluated_env
from rookery.envs.own import is_own
from rookery.errors import InvalidInputError, check_count, unknown_name
from rookery.metrics import EvaluateMetric
from rookery.policy import Policy
from rookery.recorders.jsonl import encode_row
from rookery.registry import build_workflow
from rookery.report import learning_curve_frame, write_report, write_video
from rookery.runners.envs.own import name_own_env
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.interruption import Interrupted
from rookery.runs.policy_files import PolicyName
from rookery.trust import strangers_config
from rookery.types import make_key
from rookery.workflows.evaluation import Team, TeamEvaluator, check_spaces, num_envs_of
from rookery.workflows.hooks import Hook, Hooks, RecordEvent, as_hooks
from rookery.workflows.programs import gather
from rookery.workflows.saved.policies import PolicyPart, by_policy, policy_in, policy_parts
from rookery.workflows.training import TrainingState
from rookery.workflows.workflow import Workflow

Rows = Sequence[Mapping[str, float]]


class Best(NamedTuple):
    """The best evaluation of a run in memory, and its policies."""

    value: float
    policies: Sequence[PolicyPart]


class RunMetrics(Mapping[str, np.ndarray]):
    """The metrics of a run by name: one value per record, or `[record, seed]`; NaN where a metric is absent."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._seeds = sorted({row["seed"] for row in rows})
        self._records = _records_of(rows)
        self._names = list(dict.fromkeys(name for row in rows for name in row if name != "seed"))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(str(unknown_name("metric", name, self._names)))
        values = [[record.get(seed, {}).get(name, np.nan) for seed in self._seeds] for record in self._records]
        columns = np.array(values, np.float64)
        return columns[:, 0] if len(self._seeds) == 1 else columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def to_pandas(self) -> Any:
        """Return a pandas data frame with one row per record and seed."""
        import pandas as pd  # type: ignore[import-untyped]

        return pd.DataFrame(list(self._rows))

    def __repr__(self) -> str:
        return f"RunMetrics({len(self)} metrics of {len(self._records)} records)"


def _records_of(rows: Rows) -> list[dict[float, Mapping[str, float]]]:
    """Return the rows of each record by seed; a record has at most one row for every seed, in order."""
    records: list[dict[float, Mapping[str, float]]] = []
    for row in rows:
        seed = row["seed"]
        if not records or seed <= max(records[-1]):
            records.append({})
        records[-1][seed] = row
    return records


class Evaluation:
    """Returns and lengths of greedy episodes: `[episode]`, or `[seed, episode]` of several seeds.

    A host environment may fail: `returns` of several seeds have NaN, and `lengths` have 0, for episodes left out.
    """

    def __init__(self, results: Sequence[EvaluateMetric]) -> None:
        returns = [np.asarray(result.episode_returns) for result in results]
        lengths = [np.asarray(result.episode_lengths) for result in results]
        num_episodes = max(map(len, returns))
        self.returns = np.full((len(results), num_episodes), np.nan, returns[0].dtype)
        self.lengths = np.zeros((len(results), num_episodes), lengths[0].dtype)
        for index, played in enumerate(returns):
            self.returns[index, : len(played)], self.lengths[index, : len(played)] = played, lengths[index]
        if len(results) == 1:
            self.returns, self.lengths = self.returns[0], self.lengths[0]

    @property
    def mean(self) -> float:
        """The mean return; NaN without a finished episode."""
        return float(self._played.mean()) if self._played.size else float("nan")

    @property
    def std(self) -> float:
        """The standard deviation of the return; NaN without a finished episode."""
        return float(self._played.std()) if self._played.size else float("nan")

    @property
    def _played(self) -> np.ndarray:
        return self.returns[self.lengths > 0]

    def __repr__(self) -> str:
        return f"Evaluation(mean return {self.mean:.2f}, std {self.std:.2f}, {self._played.size:,} episodes)"


class Run:
    """A run of a method: what `rookery.train` returns, or `rookery.open_run` for a run directory."""

    def __init__(
        self,
        config: Mapping[str, Any],
        workflow: Workflow | None = None,
        state: TrainingState | None = None,
        rows: Rows = (),
        best: Best | None = None,
        is_trusted: bool = True,
        has_other_env: bool = False,
    ) -> None:
        self.config = dict(config)
        """The resolved config."""
        self._workflow = workflow
        self._state = state
        self._rows = rows
        self._best = best
        self._is_trusted = is_trusted
        self._has_other_env = has_other_env
        self._evaluator: TeamEvaluator | None = None

    @property
    def path(self) -> Path | None:
        """The run directory; None if there is none."""
        run_dir = self.config.get("run_dir")
        return None if run_dir is None else Path(run_dir)

    @property
    def workflow(self) -> Workflow:
        """The parts of the run: agent, environments and programs. Those of a run directory are built on first use."""
        if self._workflow is None:
            with self._trust():
                self._workflow = build_workflow(self.config, evaluation_episodes=1)
        return self._workflow

    @property
    def state(self) -> TrainingState:
        """The last training state; of a run directory, that of its last checkpoint."""
        if self._state is None:
            self._state = self.workflow.restore()
        return self._state

    @property
    def metrics(self) -> RunMetrics:
        """The metrics of all records by name, as NumPy arrays."""
        return RunMetrics(self._records())

    @property
    def policy(self) -> Policy:
        """The trained policy; of several seeds, that of the first."""
        return self.policy_of()

    @property
    def best_policy(self) -> Policy:
        """The policy with the best evaluation."""
        return self.policy_of(best=True)

    def policy_of(
        self, policy: str | None = None, seed: int | None = None, individual: str | None = None, best: bool = False
    ) -> Policy:
        """Return one of several policies or seeds, the fittest individual of evolution, or the best of the run."""
        if self.path is not None:
            return load(self.path, best=best, policy=policy, seed=seed, individual=individual, trust=self._is_trusted)
        if best and self._best is None:
            raise InvalidInputError(
                "the run has no best policy: it made no evaluation, or did not keep it (checkpoint.keep_best)."
            )
        parts = self._best.policies if best and self._best is not None else self._parts()
        return policy_in(parts, self.workflow.agent, PolicyName(policy, seed, individual))

    def evaluate(self, episodes: int = 100, seed: int = 0) -> Evaluation:
        """Play greedy episodes with the trained policy; `seed` decides which episodes."""
        check_count("episodes", episodes)
        with self._evaluation(episodes) as (evaluator, teams):
            return Evaluation([evaluator.evaluate(team, make_key(seed), episodes) for team in teams])

    def video(self, path: str | os.PathLike[str], seed: int = 0) -> Path:
        """Play one greedy episode and write it as an animation: .gif, .webp or .png."""
        with self._evaluation(episodes=1) as (evaluator, teams):
            write_video(Path(path), evaluator.frames(teams[0], make_key(seed)))
        return Path(path)

    def report(self, path: str | os.PathLike[str] = "report.html") -> Path:
        """Write the report, a self-contained HTML page."""
        with self._directory() as run:
            return write_report([run], Path(path))

    def resume(
        self,
        total_timesteps: int | None = None,
        on_record: Hooks | None = None,
        step: int | None = None,
        discard_later: bool = False,
        **settings: Any,
    ) -> "Run":
        """Continue the run, with a larger budget or other settings; return the whole run.

        A run directory goes on from its last checkpoint, or from the one at `step`; then `discard_later` deletes those
        after it. `agent=MyWorkflow` and `network=MyEncoder` name own classes of the run again, and
        `ray={"address": "auto"}` its cluster.
        """
        changes = settings if total_timesteps is None else {"total_timesteps": total_timesteps, **settings}
        changes, ray = split_values(changes)
        saved, changes = named_again(self._config_now(), changes)
        if self.path is not None and not discard_later:
            checkpoints = Checkpoints(RunDirectory(self.path).checkpoints_path)
            checkpoints.check_going_back(step, f"step={step}", "pass discard_later=True")
        with self._trust():
            workflow = build_workflow(resumed_config(saved, changes), ray=ray)
        if self.path is not None:
            return train_to_the_end(workflow, partial(self._resume_checkpoint, workflow, step), on_record)
        if step is not None:
            raise InvalidInputError(f"step={step}: a run without a run_dir has no checkpoints.")
        state = workflow.with_hyperparameters(self.state)
        rows, best = list(self._records()), self._best
        return train_to_the_end(workflow, lambda hooks: workflow.learn(state, hooks), on_record, rows, best)

    def _resume_checkpoint(self, workflow: Workflow, step: int | None, hooks: list[Hook]) -> TrainingState:
        if self._has_other_env:
            training, team = workflow.training, self._teams()[0]
            for name, _, spaces in by_policy(training.agent_shape(), training.spaces):
                policy = next(iter(team.values())) if name is None else team[name]
                check_spaces(workflow.settings.train.env, policy, spaces)
        with self._trust():
            return workflow.resume(step, hooks)

    def __repr__(self) -> str:
        rows, where = self._records(), "in memory" if self.path is None else str(self.path)
        returns = [row["eval/mean_reward"] for row in rows if "eval/mean_reward" in row]
        evaluation = f", evaluation {returns[-1]:.2f}" if returns and self.config.get("num_seeds") == 1 else ""
        steps = f"{int(rows[-1]['time/total_timesteps']):,} env steps" if rows else "no records"
        return f"Run({self._title}, {steps}{evaluation}, {where})"

    def _repr_html_(self) -> str:
        with self._directory() as run:
            return learning_curve_frame(run)

    @property
    def _title(self) -> str:
        return f"{self.config['agent']['name']} on {self.config['env']['name']}"

    def _config_now(self) -> dict[str, Any]:
        """Return the config, which another resumption may have changed on disk."""
        if self.path is None:
            return self.config
        config = RunDirectory.open(self.path).config | {"run_dir": str(self.path)}
        return config | {"env": self.config["env"]} if self._has_other_env else config

    def _records(self) -> Rows:
        on_disk = [] if self.path is None else RunDirectory(self.path).read_metrics()
        return on_disk or self._rows

    def _parts(self) -> list[PolicyPart]:
        """Return the policies of the last state."""
        training, state = self.workflow.training, self.state
        agents, env_steps = gather(training.individuals(state)), gather(state.env_steps)
        return list(policy_parts(self.workflow.settings, training, agents, env_steps))

    def _teams(self) -> list[Team]:
        """Return the trained policies of each seed: those of the last state, or of the last checkpoint."""
        if self._state is None:
            assert self.path is not None, "a run in memory has its state"
            return list(read_teams(RunDirectory.open(self.path))[1].values())
        parts = [part for part in self._parts() if part.name.individual is None]
        teams: dict[int | None, dict[str, Policy]] = {}
        for name in (part.name for part in parts):
            teams.setdefault(name.seed, {})[str(name.policy)] = policy_in(parts, self.workflow.agent, name)
        return list(teams.values())

    @contextlib.contextmanager
    def _evaluation(self, episodes: int) -> Iterator[tuple[TeamEvaluator, list[Team]]]:
        """Return what plays episodes, which is made once, and the policies of each seed; close the environments."""
        with self._trust():
            teams = self._teams()
            if self._evaluator is None:
                env = evaluated_env(self.config)
                self._evaluator = TeamEvaluator(env, teams[0], num_envs_of(self.config, env), episodes)
            with contextlib.closing(self._evaluator):
                yield self._evaluator, teams

    def _trust(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._is_trusted else strangers_config()

    @contextlib.contextmanager
    def _directory(self) -> Iterator[RunDirectory]:
        """Return the run directory; of a run in memory, a temporary one."""
        if self.path is not None:
            yield RunDirectory.open(self.path)
            return
        with tempfile.TemporaryDirectory() as folder:
            run = RunDirectory.create(Path(folder) / self._title.replace("/", "-").replace(" ", "-"), self.config)
            run.metrics_path.write_bytes(b"".join(map(encode_row, self._records())))
            if populations := self.workflow.training.populations(self.state):
                run.population_path.write_text(json.dumps(populations))
            yield run


def open_run(path: str | os.PathLike[str], *, env: Any = None, trust: bool = False) -> Run:
    """Open a run directory. Its config is not changed by moving it.

    Nothing is built and no module that the run names is imported, until its environments are used. `trust` allows them
    to be modules of the run's own. `env` replaces the environment in evaluations, videos and more training: the name of
    another one with the same spaces, or a class, a function or an object, as for `rookery.train`.
    """
    run = RunDirectory.open(path)
    config = run.config | {"run_dir": str(run.path)}
    if env is None:
        return Run(config, is_trusted=trust)
    return Run(config | {"env": _replaced_env(config, env)}, is_trusted=trust, has_other_env=True)


def _replaced_env(config: Mapping[str, Any], env: Any) -> Mapping[str, Any]:
    """Return the config of another environment; one that a program passes again keeps the settings of the run."""
    if isinstance(env, str):
        replaced: Mapping[str, Any] = compose([f"env={env}"])["env"]
        return replaced
    name = name_own_env(env)
    settings = config["env"] if is_own(str(config["env"]["name"])) else compose([f"env={name}"])["env"]
    return {**settings, "name": name}


def train_to_the_end(
    workflow: Workflow,
    learn_fn: Callable[[list[Hook]], TrainingState],
    on_record: Hooks | None,
    rows: Rows = (),
    best: Best | None = None,
) -> Run:
    """Train with hooks and return the run; an interrupt carries the run so far.

    `rows` and `best` are the records and the best policies of a run in memory that goes on.
    """
    rows, config, metric = list(rows), workflow.settings.to_mapping(), workflow.settings.train.checkpoint.best_metric

    def remember(event: RecordEvent) -> None:
        nonlocal best
        rows.extend(event.rows)
        is_in_memory = workflow.settings.train.run_dir is None
        if is_in_memory and event.is_best and (best is None or event.metrics[metric] > best.value):
            best = Best(event.metrics[metric], event.policies())

    try:
        state = learn_fn([remember, *as_hooks(on_record)])
    except Interrupted as stopped:
        stopped.run = Run(config, workflow, stopped.state, rows, best)
        raise
    finally:
        workflow.close()
    return Run(config, workflow, state, rows, best)
