"""ERL and CEM-RL on Pendulum against TD3 alone, and ERL with DQN on CartPole: returns, and the CPU time of training.

Each seed is a run in a process of its own. A return is the mean over 128 greedy episodes; of CEM-RL it is the lowest of
the last three evaluations. The column of others has the bar of each task, which is the same on two devices. There, the
learner explores in two episodes, and four individuals climb, because these numbers must divide.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from bench.processes import measure
from bench.table import Row
from rookery.configs import compose
from rookery.recorders import Position, Recorder, RunDescription
from rookery.registry import build_workflow

NUM_SEEDS = 4
COMMON = ("env=classic/pendulum", "evaluation.num_episodes=128", "recorders=[]")
GENERATION = 2_000
CPU_SECONDS = "cpu_seconds"


@dataclass(frozen=True)
class Task:
    """A hybrid, its budget, and the least returns that count, by the prefix of their metric."""

    name: str
    overrides: tuple[str, ...]
    bars: Mapping[str, float]
    num_evaluations: int = 1
    num_devices: int = 1


CEM_RL = ("agent=cem_rl", f"evaluation.interval={GENERATION}", f"record_interval={GENERATION}")
BARS_OF_CEM_RL = {"eval/rl_": -185.0, "eval/": -300.0}
TASKS = (
    Task("TD3, 20k steps", ("agent=td3", "total_timesteps=20_000"), {"eval/": -181.0}),
    Task("ERL, 24k steps", ("agent=erl", "total_timesteps=24_000"), {"eval/rl_": -180.0}),
    Task("CEM-RL, 20k steps", CEM_RL, BARS_OF_CEM_RL, num_evaluations=3),
    Task("ERL with DQN, CartPole, 50k steps", ("agent=erl", "env=classic/cartpole"), {"eval/": 475.0}),
    Task(
        "ERL, 24k steps, 2 devices",
        ("agent=erl", "total_timesteps=24_000", "agent.learner_episodes=2"),
        {"eval/rl_": -180.0},
        num_devices=2,
    ),
    Task(
        "CEM-RL, 20k steps, 2 devices",
        (*CEM_RL, "agent.num_improved=4"),
        BARS_OF_CEM_RL,
        num_evaluations=3,
        num_devices=2,
    ),
)


def rows() -> Iterator[Row]:
    of_first, cores = None, sorted(os.sched_getaffinity(0))
    for number, task in enumerate(TASKS):
        trained = [measure("bench.hybrids", "train", number, seed, cores=cores) for seed in range(NUM_SEEDS)]
        seconds = np.mean([own[CPU_SECONDS] for own in trained])
        of_first = of_first or seconds
        shown = [
            f"{prefix.removeprefix('eval/') or 'center_'}: " + ", ".join(f"{own[prefix]:.1f}" for own in trained)
            for prefix in task.bars
        ]
        yield Row(
            name=f"{task.name}, {seconds:.1f} CPU-s per seed, {seconds / of_first:.1f} x TD3",
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


# In a process of its own.


def train(number: int, seed: int) -> dict[str, float]:
    """Train one seed of a task; return the returns by prefix, and the CPU seconds with compiling."""
    task = TASKS[number]
    jax.config.update("jax_num_cpu_devices", task.num_devices)
    devices = f"devices={task.num_devices}"
    workflow = build_workflow(compose([*COMMON, *task.overrides, devices, f"seed={seed}"]))
    evaluations = Evaluations()
    workflow.recorders = [evaluations]
    start = time.process_time()
    workflow.learn(workflow.init(workflow.make_key()))
    seconds = time.process_time() - start
    evaluated = [row for row in evaluations.rows if "eval/mean_reward" in row][-task.num_evaluations :]
    returns = {prefix: min(row[f"{prefix}mean_reward"] for row in evaluated) for prefix in task.bars}
    return returns | {CPU_SECONDS: seconds}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
