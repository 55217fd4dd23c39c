"""Train every method on its tasks with many seeds: `python -m bench.learning`, or `... ppo/classic` for some.

On the device all seeds train in parallel, on the host one after the other. It prints a table and plots the learning
curves into `docs/images/learning`. The return of a seed is the mean over the episodes of the final greedy policy.
"""

import argparse
import shlex
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.learning_curves import draw_returns
from rookery.configs import compose
from rookery.envs.libraries import is_on_host
from rookery.registry import build_workflow
from rookery.report.curves import read_series
from rookery.report.formatting import format_duration, format_number
from rookery.report.loaded_run import EVALUATION_RETURN, LoadedRun, load_runs
from rookery.runs.directory import RunDirectory

PICTURES = Path(__file__).parent.parent / "docs/images/learning"


@dataclass(frozen=True)
class Study:
    """A method on a task, with its preset; `variant` distinguishes studies of the same pair."""

    agent: str
    env: str
    num_seeds: int = 16
    overrides: tuple[str, ...] = ()
    variant: str = ""

    @property
    def name(self) -> str:
        return f"{self.agent}/{self.env}{self.variant}"

    @property
    def runs(self) -> list[list[str]]:
        """The arguments of `rookery train` for each run: one run with all seeds, or on the host one run per seed."""
        common = [f"agent={self.agent}", f"env={self.env}", *self.overrides]
        if is_on_host(self.env):
            return [[*common, f"seed={seed}"] for seed in range(self.num_seeds)]
        return [[*common, f"num_seeds={self.num_seeds}"]]


SPRING = ("env.kwargs.backend=spring",)
STUDIES = (
    *(Study("ppo", f"classic/{task}") for task in ("cartpole", "acrobot", "mountain_car", "mountain_car_continuous")),
    Study("ppo", "classic/pendulum"),
    Study("ppo", "brax/inverted_pendulum", 4, SPRING),
    Study("ppo", "brax/hopper", 2, SPRING),
    Study("ppo", "gymnax/Breakout-MinAtar", 1),
    Study("ppo", "gymnasium/LunarLander-v3", 4),
    Study("a2c", "classic/cartpole"),
    Study("a2c", "classic/acrobot"),
    Study("impala", "classic/cartpole"),
    Study("impala", "classic/cartpole", overrides=("agent.actor_lag=4",), variant="-lag"),
    Study("impala", "classic/acrobot"),
    Study("impala", "classic/pendulum"),
    Study("dqn", "classic/cartpole", 8),
    Study("dqn", "gymnax/Breakout-MinAtar", 1),
    *(Study(method, "classic/pendulum", 8) for method in ("ddpg", "td3", "sac")),
    *(Study(method, "brax/inverted_pendulum", 8, SPRING) for method in ("td3", "sac")),
    *(Study(method, "classic/cartpole", 10) for method in ("openes", "ars", "cmaes", "sepcem", "ga")),
    *(Study(method, "classic/pendulum", 4) for method in ("openes", "ars")),
    *(Study(method, "brax/inverted_pendulum", 4, SPRING) for method in ("openes", "ars")),
)


def train(arguments: list[str], folder: Path) -> RunDirectory:
    """Train, with ten evaluations."""
    print(f"rookery train {shlex.join(arguments)}", file=sys.stderr, flush=True)
    config = compose([*arguments, f"run_dir={folder}", "recorders=[jsonl]"])
    config["checkpoint"]["interval"] = config["total_timesteps"]
    workflow = build_workflow(config)
    workflow.learn(workflow.init(workflow.make_key()))
    workflow.close()
    return RunDirectory.open(folder)


def run(study: Study) -> tuple[LoadedRun, float]:
    """Train all seeds; return their records as those of one run, and the seconds of training."""
    with tempfile.TemporaryDirectory() as folder:
        directories = [train(arguments, Path(folder, str(number))) for number, arguments in enumerate(study.runs)]
        runs = load_runs(directories)
        rows = [row for directory in directories for row in directory.read_metrics()]
    return replace(runs[0], series=read_series(rows)), sum(loaded.seconds or 0.0 for loaded in runs)


def cells(study: Study, loaded: LoadedRun, seconds: float) -> list[str]:
    """Return the row of a study in the table."""
    last, final = loaded.series[EVALUATION_RETURN].values[:, -1], loaded.final_return()
    assert final is not None, "the last iteration is always evaluated"
    return [
        study.name,
        f"{loaded.env_steps:,}",
        str(study.num_seeds),
        f"{format_number(final.value)} [{format_number(final.low)}, {format_number(final.high)}]",
        format_number(float(np.mean(last))),
        format_number(float(np.min(last))),
        format_duration(seconds),
    ]


def main(names: list[str]) -> None:
    """Run the studies whose names contain one of `names`."""
    table = Table("study", "env steps", "seeds", "IQM [95 % interval]", "mean", "worst seed", "time of all seeds")
    for column in table.columns[1:]:
        column.justify = "right"
    PICTURES.mkdir(parents=True, exist_ok=True)
    for study in STUDIES:
        if any(name in study.name for name in names):
            loaded, seconds = run(study)
            picture = draw_returns(study.name, loaded.series[EVALUATION_RETURN])
            (PICTURES / f"{study.name.replace('/', '-')}.svg").write_text(picture, encoding="utf-8")
            table.add_row(*cells(study, loaded, seconds))
    console = Console()
    Console(width=console.width if console.is_terminal else 120).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    parser.add_argument("names", nargs="*", default=[""], help="parts of the names of studies; default: all")
    main(parser.parse_args().names)
