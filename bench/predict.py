"""`policy.predict` of a 64x64 policy against one jitted call of its network, by CPU time."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import rookery
from bench.table import Row
from bench.timing import cpu_seconds

BATCH_SIZES = (1, 64)
NUM_ROUNDS = 15


def trained_policy() -> rookery.Policy:
    """Return a policy of PPO on CartPole with a 64x64 network."""
    sizes = {"agent.network.hidden_sizes": [64, 64]}
    return rookery.train("ppo", "classic/cartpole", total_timesteps=2048, recorders=[], config=sizes).policy


def rows() -> Iterator[Row]:
    # Programs run in the calling thread, as in `rookery train` on host environments.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    policy = trained_policy()
    network = policy.agent_state.extra_state.network
    params = jax.device_put(policy.agent_state.params)
    leaves, treedef = jax.tree.flatten(params)

    def act(params: Any, obs: Any) -> Any:
        distribution, _ = network(params, obs)
        return distribution.action(distribution.mode())

    call = jax.jit(act)
    tuned = jax.jit(lambda leaves, obs: act(jax.tree.unflatten(treedef, leaves), obs))
    for size in BATCH_SIZES:
        batch = np.zeros((size, 4), np.float32)
        obs = batch if size > 1 else batch[0]
        contenders = {
            "predict": lambda obs=obs: policy.predict(obs),
            "jitted network": lambda batch=batch: call(params, batch),
            "the same with flat parameters": lambda batch=batch: tuned(leaves, batch),
        }
        ours, *others = cpu_seconds(contenders, NUM_ROUNDS).items()
        for name, seconds in others:
            yield Row(
                name=f"predict, {size} observation{'s' * (size > 1)}",
                ours=f"{1e6 * ours[1]:.0f} us",
                other=f"{name} {1e6 * seconds:.0f} us",
                ratio=seconds / ours[1],
            )
