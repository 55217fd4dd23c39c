"""Training recurrent PPO on CartPole against a plain JAX PPO with the same sizes.

Runs in its own process on one core, by CPU time, without compilation.
"""

import json
import os
import sys
from collections.abc import Iterator

from bench import ppo
from bench.peers import sizes
from bench.processes import measure
from bench.table import Row

NUM_ENVS = 64


def rows() -> Iterator[Row]:
    steps = measure("bench.gru", "steps_per_second", cores=sorted(os.sched_getaffinity(0))[:1])
    yield ppo.compare(f"PPO with a GRU, CartPole, {NUM_ENVS} envs, 1 core", steps, ("plain JAX",))


def steps_per_second() -> dict[str, float]:
    from bench.peers.plain_gru_ppo import PlainGRUPPO

    core = {"shared": True, "core": "gru", "core_size": sizes.CORE_SIZE}
    contenders = {
        "rookery": ppo.training_of(ppo.rookery_workflow(NUM_ENVS, network=core), 1),
        "plain JAX": ppo.peer_training(PlainGRUPPO(NUM_ENVS), 1),
    }
    return ppo.speeds_of(contenders, NUM_ENVS * sizes.ROLLOUT_LENGTH)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
