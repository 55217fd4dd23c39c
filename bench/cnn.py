"""Training PPO with a convolutional network on MinAtar Breakout against a plain JAX PPO with the same sizes.

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
    steps = measure("bench.cnn", "steps_per_second", cores=sorted(os.sched_getaffinity(0))[:1])
    yield ppo.compare(f"PPO with a CNN, MinAtar Breakout, {NUM_ENVS} envs, 1 core", steps, ("plain JAX",))


def steps_per_second() -> dict[str, float]:
    from bench.peers.plain_ppo import ConvolutionalActorCritic, PlainPPO

    workflow = ppo.rookery_workflow(NUM_ENVS, env="gymnax/Breakout-MinAtar", network={"shared": True})
    contenders = {
        "rookery": ppo.training_of(workflow, 1),
        "plain JAX": ppo.peer_training(PlainPPO(NUM_ENVS, "Breakout-MinAtar", ConvolutionalActorCritic), 1),
    }
    return ppo.speeds_of(contenders, NUM_ENVS * sizes.ROLLOUT_LENGTH, num_rounds=3)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
