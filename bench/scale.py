"""The CPU time of one env step with few and with many environments, or individuals, on one core.

The sizes take turns in one process. Time that grows faster than the number of environments gives a ratio below 1.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bench.processes import measure
from bench.table import Row

NUM_ENVS = (2_048, 16_384, 65_536)
POPULATION_SIZES = (1_024, 8_192, 32_768)
PPO_ROLLOUT_LENGTH = 16
EPISODE_LENGTH = 200
NUM_ROUNDS = 3


def rows() -> Iterator[Row]:
    cores = sorted(os.sched_getaffinity(0))[:1]
    for name, function, sizes, unit in (
        ("rollout", "rollout", NUM_ENVS, "envs"),
        ("PPO", "ppo", NUM_ENVS, "envs"),
        ("OpenES", "evolution", POPULATION_SIZES, "individuals"),
    ):
        nanoseconds = measure("bench.scale", function, cores=cores)
        smallest = nanoseconds[str(sizes[0])]
        for size in sizes[1:]:
            ours = nanoseconds[str(size)]
            other = f"{sizes[0]:,} {unit} {smallest:,.0f} ns"
            yield Row(f"{name}, {size:,} {unit}", f"{ours:,.0f} ns a step", other, smallest / ours)


# Functions that run in the processes; they return nanoseconds per env step by size.


def rollout() -> dict[str, float]:
    """Roll out a random agent on CartPole."""
    from bench.rollout import ROLLOUT_LENGTH, our_rollout

    return nanoseconds_of({size: our_rollout(size) for size in NUM_ENVS}, ROLLOUT_LENGTH)


def ppo() -> dict[str, float]:
    """Train PPO on CartPole for one iteration."""
    from rookery.algorithms.ppo import PPOWorkflow

    def iteration(num_envs: int) -> Callable[[], Any]:
        agent = {"num_envs": num_envs, "rollout_length": PPO_ROLLOUT_LENGTH}
        return first_iteration(PPOWorkflow, {"agent": agent, "env": {"name": "classic/cartpole"}})

    return nanoseconds_of({size: iteration(size) for size in NUM_ENVS}, PPO_ROLLOUT_LENGTH)


def evolution() -> dict[str, float]:
    """Evolve one generation by OpenES on Pendulum, whose episodes all have the same length."""
    from rookery.algorithms.evolution.open_es import OpenESWorkflow

    def generation(population_size: int) -> Callable[[], Any]:
        env = {"name": "classic/pendulum", "episode_length": EPISODE_LENGTH}
        return first_iteration(OpenESWorkflow, {"agent": {"population_size": population_size}, "env": env})

    return nanoseconds_of({size: generation(size) for size in POPULATION_SIZES}, EPISODE_LENGTH)


def first_iteration(workflow_class: Any, config: dict[str, Any]) -> Callable[[], Any]:
    workflow = workflow_class.build_from_config(config)
    state = workflow.init(workflow.make_key())
    return lambda: workflow.step(state)


def nanoseconds_of(contenders: dict[int, Callable[[], Any]], steps_per_env: int) -> dict[str, float]:
    from bench.timing import cpu_seconds

    seconds = cpu_seconds({str(size): run for size, run in contenders.items()}, NUM_ROUNDS)
    return {size: 1e9 * value / (int(size) * steps_per_env) for size, value in seconds.items()}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
