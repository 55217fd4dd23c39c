"""Training PPO on an environment of Brax against Brax's own PPO with the same sizes.

Runs in its own process on one core, by CPU time, without compilation.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench import ppo
from bench.processes import measure
from bench.table import Row

ENVS = ("inverted_pendulum", "hopper")
NUM_ENVS = 256
ROLLOUT_LENGTH = 32
NUM_ROUNDS = 5


def rows() -> Iterator[Row]:
    for index, env in enumerate(ENVS):
        steps = measure("bench.brax", "steps_per_second", index, cores=sorted(os.sched_getaffinity(0))[:1])
        yield ppo.compare(f"PPO, Brax {env}, {NUM_ENVS} envs, 1 core", steps, ("Brax",))


def steps_per_second(env_index: int) -> dict[str, float]:
    """Brax trains; after each of its iterations, Rookery trains for one as well."""
    import jax

    env = ENVS[env_index]
    changes = {"rollout_length": ROLLOUT_LENGTH, "normalize_obs": True}
    train_ours = ppo.training_of(ppo.rookery_workflow(NUM_ENVS, env=f"brax/{env}", **changes), 1)
    seconds: dict[str, list[float]] = {"rookery": [], "Brax": []}
    start = time.process_time()

    def take_turns(_step: int, _metrics: Any) -> None:
        nonlocal start
        middle = time.process_time()
        jax.block_until_ready(train_ours())
        end = time.process_time()
        seconds["Brax"].append(middle - start)
        seconds["rookery"].append(end - middle)
        start = time.process_time()

    train_with_brax(env, take_turns)
    # The first round compiles.
    return {name: NUM_ENVS * ROLLOUT_LENGTH / min(times[1:]) for name, times in seconds.items()}


def train_with_brax(env: str, after_each_iteration: Any) -> None:
    import functools

    import brax.envs
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    from brax.training.agents.ppo.networks import make_ppo_networks
    from brax.training.agents.ppo.train import train

    from bench.peers import sizes

    def on_every_device(tree: Any, devices: list) -> Any:
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * len(devices)), tree)

    jax.device_put_replicated = on_every_device  # Brax 0.14.2 needs it; JAX 0.10 has removed it
    train(
        brax.envs.get_environment(env),
        num_timesteps=NUM_ENVS * ROLLOUT_LENGTH * NUM_ROUNDS,
        num_evals=NUM_ROUNDS + 1,
        run_evals=False,
        progress_fn=after_each_iteration,
        episode_length=1000,
        num_envs=NUM_ENVS,
        unroll_length=ROLLOUT_LENGTH,
        batch_size=NUM_ENVS // sizes.NUM_MINIBATCHES,
        num_minibatches=sizes.NUM_MINIBATCHES,
        num_updates_per_batch=sizes.NUM_EPOCHS,
        normalize_observations=True,
        learning_rate=sizes.LEARNING_RATE,
        max_grad_norm=sizes.MAX_GRAD_NORM,
        discounting=sizes.DISCOUNT,
        gae_lambda=sizes.GAE_LAMBDA,
        clipping_epsilon=sizes.CLIP_RATIO,
        vf_loss_coefficient=sizes.VALUE_COEFFICIENT,
        entropy_cost=sizes.ENTROPY_COEFFICIENT,
        network_factory=functools.partial(
            make_ppo_networks,
            policy_hidden_layer_sizes=sizes.HIDDEN_SIZES,
            value_hidden_layer_sizes=sizes.HIDDEN_SIZES,
            activation=nn.tanh,
        ),
    )


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
