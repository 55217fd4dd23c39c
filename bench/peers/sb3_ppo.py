"""Stable-Baselines3's PPO on Gymnasium's CartPole, on CPU."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from bench.peers import sizes


class StableBaselines3PPO:
    """The same sizes as `PlainPPO`; the networks of its default policy are 64x64 tanh, separate.

    The environments are stepped in this process: for CartPole that is faster than a process each.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_steps = num_envs * sizes.ROLLOUT_LENGTH
        self.model = PPO(
            "MlpPolicy",
            make_vec_env("CartPole-v1", n_envs=num_envs),
            n_steps=sizes.ROLLOUT_LENGTH,
            batch_size=self.num_steps // sizes.NUM_MINIBATCHES,
            n_epochs=sizes.NUM_EPOCHS,
            learning_rate=sizes.LEARNING_RATE,
            ent_coef=sizes.ENTROPY_COEFFICIENT,
            device="cpu",
        )

    def iterate(self) -> None:
        """Train for one iteration."""
        self.model.learn(self.num_steps, reset_num_timesteps=False)
