"""Training SAC on Pendulum against other implementations with the same sizes: one environment, one update per step.

Every measurement runs in its own process on one core, by CPU time, without compilation.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.peers import sac_sizes
from bench.processes import measure
from bench.table import Row

STEPS_PER_CALL = 500
NUM_ROUNDS = 5
INSTALL = "pip install -c constraints.txt -e '.[bench]'"


def rows() -> Iterator[Row]:
    cores = sorted(os.sched_getaffinity(0))[:1]
    for capacity in (sac_sizes.SMALL_CAPACITY, sac_sizes.BUFFER_CAPACITY):
        speeds = measure("bench.sac", "steps_per_second_against_rejax", capacity, cores=cores)
        yield compare(f"SAC, replay of {capacity:,}", "rejax", speeds)
    speeds = measure("bench.sac", "steps_per_second_against_sbx", cores=cores)
    yield compare(f"SAC, replay of {sac_sizes.BUFFER_CAPACITY:,}", "SBX", speeds)
    small, large = 10_000, 1_000_000
    speeds = measure("bench.sac", "steps_per_second_by_capacity", small, large, cores=cores)
    yield compare(f"SAC, replay of {large:,}", f"replay of {small:,}", speeds)


def compare(name: str, peer: str, speeds: dict[str, float]) -> Row:
    ours = f"{speeds['rookery']:,.0f} steps/s"
    if peer not in speeds:
        return Row(name, ours, f"{peer}: {INSTALL}")
    return Row(name, ours, f"{peer} {speeds[peer]:,.0f} steps/s", speeds["rookery"] / speeds[peer])


# Functions that run in the processes.


def steps_per_second_against_rejax(capacity: int) -> dict[str, float]:
    contenders = {"rookery": rookery_training(capacity)}
    if importlib.util.find_spec("rejax"):
        contenders["rejax"] = rejax_training(capacity)
    return speeds_of(contenders)


def steps_per_second_against_sbx() -> dict[str, float]:
    contenders: dict[str, Callable[[], Any]] = {"rookery": rookery_training()}
    if importlib.util.find_spec("sbx"):
        from bench.peers.sbx_sac import SBXSAC

        peer = SBXSAC()
        peer.train(sac_sizes.WARMUP_STEPS)
        contenders["SBX"] = lambda: peer.train(STEPS_PER_CALL)
    return speeds_of(contenders)


def steps_per_second_by_capacity(small: int, large: int) -> dict[str, float]:
    """Measure with full buffers."""
    contenders = {"rookery": large, f"replay of {small:,}": small}
    return speeds_of({name: rookery_training(size, warmup_steps=size) for name, size in contenders.items()})


def rookery_training(
    capacity: int = sac_sizes.BUFFER_CAPACITY, warmup_steps: int = sac_sizes.WARMUP_STEPS
) -> Callable[[], Any]:
    """The program that `learn` runs between two records, with metrics; each call continues from the last."""
    import numpy as np

    from rookery.algorithms.sac import SACWorkflow
    from rookery.learning.counter import Counter

    agent = {
        "batch_size": sac_sizes.BATCH_SIZE,
        "buffer_capacity": capacity,
        "warmup_steps": warmup_steps,
        "target_update_rate": sac_sizes.TARGET_UPDATE_RATE,
        "network": {"hidden_sizes": list(sac_sizes.HIDDEN_SIZES), "activation": "relu"},
    }
    config = {"agent": agent, "env": {"name": "classic/pendulum"}, "total_timesteps": 10**7}
    workflow = SACWorkflow.build_from_config(config)
    state = workflow.init(workflow.make_key())
    carried, until = (state, workflow._no_metrics(state)), Counter.of(10**12)

    def run() -> Any:
        nonlocal carried
        carried = workflow.training.advance(*carried, np.int32(STEPS_PER_CALL), until)
        return carried

    return run


def rejax_training(capacity: int) -> Callable[[], Any]:
    """Iterations of rejax as one program with donated buffers; each call continues from the last."""
    import jax

    from bench.peers.rejax_sac import RejaxSAC

    peer = RejaxSAC(buffer_size=capacity)
    state = jax.jit(peer.init)(jax.random.key(0))

    def advance(state: Any, num_steps: int) -> Any:
        return jax.lax.fori_loop(0, num_steps, lambda _, state: peer.iterate(state), state)

    program = jax.jit(advance, static_argnums=1, donate_argnums=0)
    state = program(state, sac_sizes.WARMUP_STEPS + 1)  # after these steps it updates at every step

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
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
