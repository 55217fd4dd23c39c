"""rejax's SAC and TD3 on gymnax's Pendulum, and its DQN on gymnax's CartPole."""

from typing import Any

import jax
import rejax

from bench.peers import off_policy_sizes as sizes
from bench.peers.rejax_envs import OneDoneCartPole, OneDonePendulum

RELU = {"activation": "relu"}  # the layers of TD3 and DQN have 64 units in any case
METHODS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sac": (rejax.SAC, OneDonePendulum, {"agent_kwargs": {**RELU, "hidden_layer_sizes": sizes.HIDDEN_SIZES}}),
    "td3": (rejax.TD3, OneDonePendulum, {"actor_kwargs": RELU, "critic_kwargs": RELU}),
    "dqn": (rejax.DQN, OneDoneCartPole, {"agent_kwargs": RELU}),
}


class RejaxOffPolicy:
    """The same sizes as ours; the rest is rejax's own."""

    def __init__(self, method: str, **changes: Any) -> None:
        algorithm, env, networks = METHODS[method]
        settings: dict[str, Any] = {
            "num_envs": 1,
            "num_epochs": 1,
            "batch_size": sizes.BATCH_SIZES[method],
            "buffer_size": sizes.BUFFER_CAPACITY,
            "fill_buffer": sizes.WARMUP_STEPS,
            "polyak": 1.0 - sizes.TARGET_UPDATE_RATE,
            **{name: dict(kwargs) for name, kwargs in networks.items()},  # rejax changes them
        }
        self.algorithm = algorithm.create(env=env(), **(settings | changes))

    @property
    def steps_per_iteration(self) -> int:
        """An iteration of TD3 has one update of the policy, and a step with an update of the critics before each."""
        return getattr(self.algorithm, "policy_delay", 1)

    def init(self, key: jax.Array) -> Any:
        return self.algorithm.init_state(key)

    def iterate(self, state: Any) -> Any:
        """Take `steps_per_iteration` steps of the environment, with one update for each."""
        return self.algorithm.train_iteration(state)
