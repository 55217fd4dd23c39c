"""The memory of a process whose runner takes a million steps in short episodes, with failing environments."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.processes import measure
from bench.table import Row

NUM_ENVS = 64
LOOK_AFTER = (50_000, 250_000, 1_000_000)
"""Env steps at which memory is measured. Programs for few envs compile after the first, when faults leave few envs."""


def rows() -> Iterator[Row]:
    sizes = measure("bench.runner_memory", "megabytes", cores=sorted(os.sched_getaffinity(0))[:1])
    *before, last = LOOK_AFTER
    yield Row(
        f"memory of a runner after {last:,} steps",
        f"{sizes[str(last)]:.0f} MB",
        ", ".join(f"after {num_steps:,} {sizes[str(num_steps)]:.0f} MB" for num_steps in before),
    )


# Functions that run in the process.


def megabytes() -> dict[str, float]:
    """Return the resident memory by the number of steps, and the number of episodes and faults."""
    import jax

    from rookery.agent import RandomAgent
    from rookery.runners.envs.conversion import to_base_env
    from rookery.runners.runner import EnvRunner
    from rookery.runners.sampling import RunnerConfig
    from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv, raise_error

    def make_env(index: int) -> CountingEnv:
        """Episodes of 5 to 17 steps; every eighth env raises in one of 200 steps."""
        length = 5 + index % 13
        return CountingEnv(length) if index % 8 else FaultyEnv(raise_error, probability=0.005, length=length)

    agent = RandomAgent()
    base_env = to_base_env(make_env=make_env, num_envs=NUM_ENVS)
    runner = EnvRunner(base_env, agent, config=RunnerConfig(rollout_fragment_length=100))
    runner.set_agent_states(agent.init(*runner.spaces_of(), jax.random.key(0)))
    sizes, num_episodes, num_faults = {}, 0, 0
    for num_steps in LOOK_AFTER:
        while runner.ledger.env_steps.taken < num_steps:
            sample = runner.sample()
            num_episodes += len(sample.episodes)
            num_faults += len(sample.faults)
        sizes[str(num_steps)] = resident_megabytes()
    return {**sizes, "episodes": num_episodes, "faults": num_faults}


def resident_megabytes() -> float:
    num_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
