"""A run in hand: its policy, its metrics, and what can be done with it."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rookery.agent import AgentState
from rookery.api.loading import load
from rookery.configs import named_again, resumed_config
from rookery.errors import InvalidInputError, check_count, unknown_name
from rookery.policy import Policy
from rookery.recorders.jsonl import encode_row
from rookery.registry import build_workflow
from rookery.report import learning_curve_frame, write_report, write_video
from rookery.runners.envs.own import name_own_env
from rookery.runs.directory import RunDirectory
from rookery.runs.interruption import Interrupted
from rookery.runs.policy_files import PolicyName
from rookery.trust import strangers_config
from rookery.types import make_key
from rookery.workflows.hooks import Hook, Hooks, RecordEvent, as_hooks
from rookery.workflows.programs import gather
from rookery.workflows.saved_policies import PolicyPart, policy_in, policy_parts
from rookery.workflows.training import TrainingState
from rookery.workflows.workflow import Workflow

Rows = Sequence[Mapping[str, float]]


class RunMetrics(Mapping[str, np.ndarray]):
    """The metrics of a run by name: one value per record, or `[record, seed]`; NaN where a metric is absent."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._num_seeds = len({row["seed"] for row in rows})
        self._names = list(dict.fromkeys(name for row in rows for name in row if name != "seed"))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(str(unknown_name("metric", name, self._names)))
        values = np.array([row.get(name, np.nan) for row in self._rows], np.float64)
        return values if self._num_seeds == 1 else values.reshape(-1, self._num_seeds)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def to_pandas(self) -> Any:
        """Return a pandas data frame with one row per record and seed."""
        import pandas as pd  # type: ignore[import-untyped]

        return pd.DataFrame(list(self._rows))

    def __repr__(self) -> str:
        return f"RunMetrics({len(self)} metrics of {len(self._rows) // max(self._num_seeds, 1)} records)"


class Evaluation:
    """Returns and lengths of greedy episodes: `[episode]`, or `[seed, episode]` of several seeds."""

    def __init__(self, returns: np.ndarray, lengths: np.ndarray) -> None:
        self.returns = returns
        self.lengths = lengths

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the return."""
        return float(self.returns.std())

    def __repr__(self) -> str:
        return f"Evaluation(mean return {self.mean:.2f}, std {self.std:.2f}, {self.returns.size:,} episodes)"


class Run:
    """A run of a method: what `rookery.train` returns, or `rookery.open_run` for a run directory."""

    def __init__(
        self,
        config: Mapping[str, Any],
        workflow: Workflow | None = None,
        state: TrainingState | None = None,
        rows: Rows | None = None,
        best: Sequence[PolicyPart] = (),
        is_trusted: bool = True,
    ) -> None:
        self.config = dict(config)
        """The resolved config."""
        self._workflow = workflow
        self._state = state
        self._rows = rows
        self._best = best
        self._is_trusted = is_trusted

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
            return load(self.path, best=best, policy=policy, seed=seed, individual=individual)
        workflow, name = self.workflow, PolicyName(policy, seed, individual)
        if best and not self._best:
            raise InvalidInputError("the run has no best policy: it made no evaluation.")
        training, state = workflow.training, self.state
        current = policy_parts(workflow.settings, training, gather(training.agents(state)), gather(state.env_steps))
        return policy_in(self._best if best else current, training.agent, name)

    def evaluate(self, episodes: int = 100, seed: int = 0) -> Evaluation:
        """Play greedy episodes with the trained policy; `seed` decides which episodes."""
        check_count("episodes", episodes)
        with contextlib.closing(self.workflow.evaluator) as evaluator:
            results = [evaluator.evaluate(agent, make_key(seed), episodes) for agent in self._agents()]
        returns, lengths = (
            np.stack([np.asarray(getattr(result, name)) for result in results])
            for name in ("episode_returns", "episode_lengths")
        )
        return Evaluation(returns, lengths) if len(results) > 1 else Evaluation(returns[0], lengths[0])

    def video(self, path: str | os.PathLike[str], seed: int = 0) -> Path:
        """Play one greedy episode and write it as an animation: .gif, .webp or .png."""
        with contextlib.closing(self.workflow.evaluator) as evaluator:
            frames = evaluator.frames(self._agents()[0], make_key(seed), evaluator.max_episode_steps)
            write_video(Path(path), frames)
        return Path(path)

    def report(self, path: str | os.PathLike[str] = "report.html") -> Path:
        """Write the report, a self-contained HTML page."""
        with self._directory() as run:
            return write_report([run], Path(path))

    def resume(
        self, total_timesteps: int | None = None, on_record: Hooks = (), step: int | None = None, **settings: Any
    ) -> "Run":
        """Continue the run, with a larger budget or other settings; return the whole run.

        A run directory goes on from its last checkpoint, or from the one at `step`. `agent=MyWorkflow` and
        `network=MyEncoder` name own classes of the run again.
        """
        changes = settings if total_timesteps is None else {"total_timesteps": total_timesteps, **settings}
        saved, changes = named_again(self.config, changes)
        with self._trust():
            workflow = build_workflow(resumed_config(saved, changes))
        if self.path is not None:
            changed_from = saved if changes else None
            return train_to_the_end(workflow, lambda hooks: workflow.resume(step, changed_from, hooks), on_record)
        if step is not None:
            raise InvalidInputError(f"step={step}: a run without a run_dir has no checkpoints.")
        state = workflow.with_hyperparameters(self.state)
        rows, best = list(self._records()), self._best
        return train_to_the_end(workflow, lambda hooks: workflow.learn(state, hooks), on_record, rows, best)

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

    def _records(self) -> Rows:
        if self._rows is None:
            assert self.path is not None, "a run in memory has its rows"
            return RunDirectory(self.path).read_metrics()
        return self._rows

    def _agents(self) -> list[AgentState]:
        """Return the agent state of each seed on the host."""
        return self.workflow.layout.seeds_of(self.state.agent_state)

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
    to be modules of the run's own. `env` is what was passed to `rookery.train`, if the environment has no name.
    """
    run = RunDirectory.open(path)
    config = run.config | {"run_dir": str(run.path)}
    if env is not None:
        config["env"] = {**config["env"], "name": env if isinstance(env, str) else name_own_env(env)}
    return Run(config, is_trusted=trust)


def train_to_the_end(
    workflow: Workflow,
    learn_fn: Callable[[list[Hook]], TrainingState],
    on_record: Hooks,
    rows: list[Mapping[str, float]] | None = None,
    best: Sequence[PolicyPart] = (),
) -> Run:
    """Train with hooks and return the run; an interrupt carries the run so far."""
    rows = [] if rows is None else rows
    config = workflow.settings.to_mapping()

    def remember(event: RecordEvent) -> None:
        nonlocal best
        rows.extend(event.rows)
        if event.is_best and workflow.settings.train.run_dir is None:
            best = event.policies()

    try:
        state = learn_fn([remember, *as_hooks(on_record)])
    except Interrupted as stopped:
        stopped.run = Run(config, workflow, stopped.state, rows, best)
        raise
    finally:
        workflow.close()
    return Run(config, workflow, state, rows, best)
