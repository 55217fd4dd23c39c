"""ERL and CEM-RL on Pendulum against TD3 alone, and ERL with DQN on CartPole: returns, and the CPU time of training.

Each seed is a run of its own. A return is the mean over 128 greedy episodes; of CEM-RL it is the lowest of the last
three evaluations. The column of others has the bar of each task.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.table import Row
from rookery.configs import compose
from rookery.recorders import Position, Recorder, RunDescription
from rookery.registry import build_workflow

NUM_SEEDS = 4
COMMON = ("env=classic/pendulum", "evaluation.num_episodes=128", "recorders=[]")
GENERATION = 2_000


@dataclass(frozen=True)
class Task:
    """A hybrid, its budget, and the least returns that count, by the prefix of their metric."""

    name: str
    overrides: tuple[str, ...]
    bars: Mapping[str, float]
    num_evaluations: int = 1


TASKS = (
    Task("TD3, 20k steps", ("agent=td3", "total_timesteps=20_000"), {"eval/": -181.0}),
    Task("ERL, 24k steps", ("agent=erl", "total_timesteps=24_000"), {"eval/rl_": -180.0}),
    Task(
        "CEM-RL, 20k steps",
        ("agent=cem_rl", f"evaluation.interval={GENERATION}", f"record_interval={GENERATION}"),
        {"eval/rl_": -185.0, "eval/": -300.0},
        num_evaluations=3,
    ),
    Task(
        "ERL with DQN, CartPole, 50k steps",
        ("agent=erl", "env=classic/cartpole"),
        {"eval/": 475.0},
    ),
)


def rows() -> Iterator[Row]:
    of_first = None
    for task in TASKS:
        returns, seconds = zip(*(train(task, seed) for seed in range(NUM_SEEDS)), strict=True)
        of_first = of_first or np.mean(seconds)
        shown = [
            f"{prefix.removeprefix('eval/') or 'center_'}: " + ", ".join(f"{own[prefix]:.1f}" for own in returns)
            for prefix in task.bars
        ]
        yield Row(
            name=f"{task.name}, {np.mean(seconds):.1f} CPU-s per seed, {np.mean(seconds) / of_first:.1f} x TD3",
            ours="; ".join(shown),
            other="bar " + ", ".join(f"{bar:g}" for bar in task.bars.values()),
        )


class Evaluations(Recorder):
    """Keeps the records of a run."""

    def open(self, run: RunDescription, resumed_from: Position | None = None) -> None:
        self.rows: list[Mapping[str, float]] = []

    def record(self, rows: Sequence[Mapping[str, float]]) -> None:
        self.rows += rows

    def close(self) -> None:
        pass


def train(task: Task, seed: int) -> tuple[dict[str, float], float]:
    """Train one seed; return the returns by prefix, and the CPU seconds with compiling."""
    workflow = build_workflow(compose([*COMMON, *task.overrides, f"seed={seed}"]))
    evaluations = Evaluations()
    workflow.recorders = [evaluations]
    start = time.process_time()
    workflow.learn(workflow.init(workflow.make_key()))
    seconds = time.process_time() - start
    evaluated = [row for row in evaluations.rows if "eval/mean_reward" in row][-task.num_evaluations :]
    return {prefix: min(row[f"{prefix}mean_reward"] for row in evaluated) for prefix in task.bars}, seconds
