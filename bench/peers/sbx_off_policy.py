"""SBX's SAC, TD3 and DQN, those of Stable-Baselines3 in JAX, on Gymnasium's Pendulum and CartPole."""

from typing import Any

import gymnasium
from sbx import DQN, SAC, TD3

from bench.peers import off_policy_sizes as sizes

METHODS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "sac": (SAC, "Pendulum-v1", {}),
    "td3": (TD3, "Pendulum-v1", {}),
    "dqn": (DQN, "CartPole-v1", {"train_freq": 1, "target_update_interval": 1}),
}


class SBXOffPolicy:
    """The same sizes as ours; the rest is SBX's own."""

    def __init__(self, method: str, seed: int = 0, **changes: Any) -> None:
        algorithm, env, updates = METHODS[method]
        settings: dict[str, Any] = {
            "learning_starts": sizes.WARMUP_STEPS,
            "batch_size": sizes.BATCH_SIZES[method],
            "buffer_size": sizes.BUFFER_CAPACITY,
            "tau": sizes.TARGET_UPDATE_RATE,
            "policy_kwargs": {"net_arch": list(sizes.HIDDEN_SIZES)},
            **updates,
        }
        self.model = algorithm("MlpPolicy", gymnasium.make(env), seed=seed, **(settings | changes))

    def train(self, num_steps: int) -> None:
        """Take steps, with one update for each after the warm-up."""
        self.model.learn(num_steps, reset_num_timesteps=False)
