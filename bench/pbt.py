"""A population of PPO learners against the same learners without the population, on CartPole.

The population plays greedy episodes after every round and exchanges what was learned. The learners alone do neither:
they train one after the other by the same compiled program. Every call trains from the same states.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from bench.table import Row
from bench.timing import cpu_seconds
from rookery.learning.counter import Counter
from rookery.registry import build_workflow

POPULATION_SIZE, ITERATIONS, NUM_ROUNDS = 8, 16, 2
MEMBER = {"num_envs": 16, "rollout_length": 64}
STEPS = POPULATION_SIZE * ITERATIONS * NUM_ROUNDS * MEMBER["num_envs"] * MEMBER["rollout_length"]


def rows() -> Iterator[Row]:
    alone = members_alone()
    for name, side_by_side in (("one after the other", False), ("side by side", True)):
        seconds = cpu_seconds({"rookery": population(side_by_side), "alone": alone})
        yield Row(
            name=f"PBT, {POPULATION_SIZE} members of PPO, {name}",
            ours=f"{STEPS / seconds['rookery'] / 1e3:.0f} k steps/s",
            other=f"the members alone {STEPS / seconds['alone'] / 1e3:.0f} k steps/s",
            ratio=seconds["alone"] / seconds["rookery"],
        )


def population(side_by_side: bool) -> Callable[[], Any]:
    agent = {"name": "pbt", "population_size": POPULATION_SIZE, "member": MEMBER, "iterations_per_round": ITERATIONS}
    return training(agent | {"members_side_by_side": side_by_side}, NUM_ROUNDS)


def members_alone() -> Callable[[], Any]:
    train = training({"name": "ppo", **MEMBER}, NUM_ROUNDS * ITERATIONS)
    return lambda: [train() for _ in range(POPULATION_SIZE)]


def training(agent: dict[str, Any], num_iterations: int) -> Callable[[], Any]:
    """Return what trains from the first state in one call of the compiled program."""
    workflow = build_workflow({"agent": agent, "env": {"name": "classic/cartpole"}, "recorders": []})
    first, until = workflow.init(workflow.make_key()), jax.tree.map(np.asarray, Counter.of(10**9))
    program = workflow.training

    def train() -> Any:
        state = jax.tree.map(jax.numpy.copy, first)  # the program overwrites its state
        return program.advance(state, program.no_metrics(state), np.int32(num_iterations), until)

    return train
