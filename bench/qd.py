"""Quality diversity on Pendulum against QDax, whose figures are from the same problem on another day.

64 individuals play 100 generations of one episode. The archive is a grid of 32 x 32 cells over the mean cosine of the
angle and the mean torque; networks have two layers of 64 units. Programs are compiled before their time is taken.
"""

import time
from collections.abc import Iterator
from typing import Any

import jax

from bench.table import Row
from rookery.configs import compose
from rookery.registry import build_workflow

GENERATIONS = 100
ARCHIVE = {"descriptors": "[mean:obs.0,mean:action]", "low": "[-1,-2]", "high": "[1,2]", "archive": "grid"}
ARCHIVE |= {"cells": "[32,32]", "qd_offset": "3256", "iso_std": "0.005", "line_std": "0.05"}
MAP_ELITES = [f"agent.{name}={value}" for name, value in ARCHIVE.items()]
PGA_ME = [f"agent.strategy.{name}={value}" for name, value in ARCHIVE.items()]
PGA_ME += ["agent.num_random=64", "agent.num_lanes=64", "agent.num_climbing_steps=50", "agent.learner.batch_size=100"]


def rows() -> Iterator[Row]:
    qdax = "QDax HEAD 1,262,139, 60.1 %, 1.0 CPU-s"
    map_elites = [*MAP_ELITES, "agent.network.hidden_sizes=[64,64]"]
    for seed in range(4):
        yield row("MAP-Elites", "map_elites", map_elites, qdax, 1.0, seed)
    qdax = "QDax HEAD 1,681,711, 72.4 %, 27.2 CPU-s"
    pga_me = [*PGA_ME, "agent.learner.network.hidden_sizes=[64,64]"]
    for seed in range(3):
        yield row("PGA-MAP-Elites", "pga_me", pga_me, qdax, 27.2, seed)


def row(name: str, method: str, options: list[str], other: str, other_seconds: float, seed: int) -> Row:
    """Train one seed; return its score, coverage and CPU seconds next to those of QDax."""
    score, coverage, seconds = train(method, options, seed)
    return Row(
        name=f"{name}, Pendulum, seed {seed}",
        ours=f"{score:,.0f}, {coverage:.1%}, {seconds:.1f} CPU-s",
        other=other,
        ratio=other_seconds / seconds,
    )


def train(method: str, options: list[str], seed: int) -> tuple[float, float, float]:
    """Return the QD score, the coverage and the CPU seconds of a run."""
    sizes = ["env=classic/pendulum", "agent.population_size=64", f"seed={seed}", "devices=1", "recorders=[]"]
    workflow: Any = build_workflow(compose([f"agent={method}", *sizes, *options, "total_timesteps=1280000"]))
    first = workflow.init(workflow.make_key())
    jax.block_until_ready(workflow.step(first))
    start, state = time.process_time(), first
    for _ in range(GENERATIONS):
        _, state = workflow.step(state)
    jax.block_until_ready(state)
    seconds = time.process_time() - start
    report = workflow.training.optimizer.report(state.learner.evo_state)
    return float(report["qd_score"]), float(report["coverage"]), seconds
