"""A population of PPO learners against the same learners without the exchange, on CartPole.

With `search=none`, the same members train in one program and play greedy episodes after every round, but none takes
over from another: the ratio is the cost of the search. The members alone do not play greedy episodes either. They train
one after the other, and each starts a program of its own. Every call trains from the same states.
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
        searches = {search: population(search, side_by_side) for search in ("truncation", "none")}
        seconds = cpu_seconds({**searches, "alone": alone})
        speeds = {of: f"{STEPS / own / 1e3:.0f} k steps/s" for of, own in seconds.items()}
        yield Row(
            name=f"PBT, {POPULATION_SIZE} members of PPO, {name}",
            ours=speeds["truncation"],
            other=f"search=none {speeds['none']}, the members alone {speeds['alone']}",
            ratio=seconds["none"] / seconds["truncation"],
        )


def population(search: str, side_by_side: bool) -> Callable[[], Any]:
    agent = {"name": "pbt", "population_size": POPULATION_SIZE, "member": MEMBER, "iterations_per_round": ITERATIONS}
    return training(agent | {"search": search, "members_side_by_side": side_by_side}, NUM_ROUNDS)


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
