"""SBX's SAC, that of Stable-Baselines3 in JAX, on Gymnasium's Pendulum."""

from typing import Any

import gymnasium
from sbx import SAC

from bench.peers import sac_sizes


class SBXSAC:
    """The same sizes as ours; the rest is SBX's own."""

    def __init__(self, seed: int = 0, **changes: Any) -> None:
        settings: dict[str, Any] = {
            "learning_starts": sac_sizes.WARMUP_STEPS,
            "batch_size": sac_sizes.BATCH_SIZE,
            "buffer_size": sac_sizes.BUFFER_CAPACITY,
            "tau": sac_sizes.TARGET_UPDATE_RATE,
            "policy_kwargs": {"net_arch": list(sac_sizes.HIDDEN_SIZES)},
        }
        self.model = SAC("MlpPolicy", gymnasium.make("Pendulum-v1"), seed=seed, **(settings | changes))

    def train(self, num_steps: int) -> None:
        """Take steps, with one update for each after the warm-up."""
        self.model.learn(num_steps, reset_num_timesteps=False)
