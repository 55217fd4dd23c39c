"""rejax's PPO on gymnax's CartPole."""

from typing import Any

import jax
import rejax

from bench.peers import sizes
from bench.peers.rejax_envs import OneDoneCartPole


class RejaxPPO:
    """The same sizes as `PlainPPO`; the rest is rejax's own."""

    def __init__(self, num_envs: int) -> None:
        self.algorithm = rejax.PPO.create(
            env=OneDoneCartPole(),
            num_envs=num_envs,
            num_steps=sizes.ROLLOUT_LENGTH,
            num_epochs=sizes.NUM_EPOCHS,
            num_minibatches=sizes.NUM_MINIBATCHES,
            learning_rate=sizes.LEARNING_RATE,
            max_grad_norm=sizes.MAX_GRAD_NORM,
            agent_kwargs={"hidden_layer_sizes": sizes.HIDDEN_SIZES, "activation": "tanh"},
        )

    def init(self, key: jax.Array) -> Any:
        return self.algorithm.init_state(key)

    def iterate(self, state: Any) -> Any:
        """Train for one iteration."""
        return self.algorithm.train_iteration(state)
