"""What the benchmarks of SAC, TD3 and DQN share: one environment, one update per step, the same sizes for all.

Every measurement runs in its own process on one core, by CPU time, without compilation.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.peers import off_policy_sizes as sizes
from bench.processes import measure
from bench.table import Row

STEPS_PER_CALL = 500
NUM_ROUNDS = 5
INSTALL = "pip install -c constraints.txt -e '.[bench]'"


def rows_against_peers(method: str) -> Iterator[Row]:
    for capacity in (sizes.SMALL_CAPACITY, sizes.BUFFER_CAPACITY):
        yield compare(method, capacity, "rejax", speeds("steps_per_second_against_rejax", method, capacity))
    capacity = sizes.BUFFER_CAPACITY
    yield compare(method, capacity, "SBX", speeds("steps_per_second_against_sbx", method, capacity))


def rows_by_capacity(method: str, small: int, *larger: int) -> Iterator[Row]:
    """Compare larger buffers with the smallest; all are full and take turns."""
    by_capacity = speeds("steps_per_second_by_capacity", method, small, *larger)
    for capacity in larger:
        speed = {"rookery": by_capacity[f"{capacity}"], f"replay of {small:,}": by_capacity[f"{small}"]}
        yield compare(method, capacity, f"replay of {small:,}", speed)


def speeds(function: str, *args: int | str) -> dict[str, float]:
    """Call one of the functions below in a process on the first core."""
    return measure("bench.off_policy", function, *args, cores=sorted(os.sched_getaffinity(0))[:1])


def compare(method: str, capacity: int, peer: str, speeds: dict[str, float]) -> Row:
    name, ours = f"{method.upper()}, replay of {capacity:,}", f"{speeds['rookery']:,.0f} steps/s"
    if peer not in speeds:
        return Row(name, ours, f"{peer}: {INSTALL}")
    return Row(name, ours, f"{peer} {speeds[peer]:,.0f} steps/s", speeds["rookery"] / speeds[peer])


# Functions that run in the processes.


def steps_per_second_against_rejax(method: str, capacity: int) -> dict[str, float]:
    contenders = {"rookery": rookery_training(method, capacity)}
    if importlib.util.find_spec("rejax"):
        contenders["rejax"] = rejax_training(method, capacity)
    return speeds_of(contenders)


def steps_per_second_against_sbx(method: str, capacity: int) -> dict[str, float]:
    contenders: dict[str, Callable[[], Any]] = {"rookery": rookery_training(method, capacity)}
    if importlib.util.find_spec("sbx"):
        from bench.peers.sbx_off_policy import SBXOffPolicy

        peer = SBXOffPolicy(method, buffer_size=capacity)
        peer.train(sizes.WARMUP_STEPS)
        contenders["SBX"] = lambda: peer.train(STEPS_PER_CALL)
    return speeds_of(contenders)


def steps_per_second_by_capacity(method: str, *capacities: int) -> dict[str, float]:
    """Measure with full buffers."""
    return speeds_of({str(size): rookery_training(method, size, warmup_steps=size) for size in capacities})


def rookery_training(method: str, capacity: int, warmup_steps: int = sizes.WARMUP_STEPS) -> Callable[[], Any]:
    """The program that `learn` runs between two records, with metrics; each call continues from the last."""
    import numpy as np

    from rookery.algorithms.dqn import DQNWorkflow
    from rookery.algorithms.sac import SACWorkflow
    from rookery.algorithms.td3 import TD3Workflow
    from rookery.learning.counter import Counter

    workflow_class, env = {
        "sac": (SACWorkflow, "classic/pendulum"),
        "td3": (TD3Workflow, "classic/pendulum"),
        "dqn": (DQNWorkflow, "classic/cartpole"),
    }[method]
    agent = {
        "num_envs": 1,
        "updates_per_step": 1,
        "batch_size": sizes.BATCH_SIZES[method],
        "buffer_capacity": capacity,
        "warmup_steps": warmup_steps,
        "target_update_rate": sizes.TARGET_UPDATE_RATE,
        "network": {"hidden_sizes": list(sizes.HIDDEN_SIZES), "activation": "relu"},
    }
    config = {"agent": agent, "env": {"name": env}, "total_timesteps": 10**7}
    workflow = workflow_class.build_from_config(config)
    state = workflow.init(workflow.make_key())
    carried, until = (state, workflow.training.no_metrics(state)), Counter.of(10**12)

    def run() -> Any:
        nonlocal carried
        carried = workflow.training.advance(*carried, np.int32(STEPS_PER_CALL), until)
        return carried

    return run


def rejax_training(method: str, capacity: int) -> Callable[[], Any]:
    """Iterations of rejax as one program with donated buffers; each call continues from the last."""
    import jax

    from bench.peers.rejax_off_policy import RejaxOffPolicy

    peer = RejaxOffPolicy(method, buffer_size=capacity)
    state = jax.jit(peer.init)(jax.random.key(0))

    def advance(state: Any, num_steps: int) -> Any:
        num_iterations = num_steps // peer.steps_per_iteration
        return jax.lax.fori_loop(0, num_iterations, lambda _, state: peer.iterate(state), state)

    program = jax.jit(advance, static_argnums=1, donate_argnums=0)
    state = program(state, sizes.WARMUP_STEPS + 2)  # after these steps it updates at every step

    def run() -> Any:
        nonlocal state
        state = program(state, STEPS_PER_CALL)
        return state

    return run


def speeds_of(contenders: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Env steps per CPU second."""
    from bench.timing import best_seconds

    seconds = best_seconds(contenders, time.process_time, NUM_ROUNDS)
    return {name: STEPS_PER_CALL / value for name, value in seconds.items()}


if __name__ == "__main__":
    function, method, *capacities = sys.argv[1:]
    print(json.dumps(globals()[function](method, *map(int, capacities))))
