"""Methods learn from simulators that are in control, in threads of this process."""

import threading

import gymnasium
import numpy as np
import pytest

import rookery
from rookery.policy import Policy
from rookery.runners import ExternalEnv
from rookery.runners.envs.external import ExternalEnvClosedError

pytestmark = pytest.mark.usefixtures("fast_programs")


class CartPoles(ExternalEnv):
    """CartPole in threads."""

    def __init__(self, num_threads: int) -> None:
        env = gymnasium.make("CartPole-v1")
        super().__init__(env.observation_space, env.action_space, num_threads)

    def run(self) -> None:
        threads = [threading.Thread(target=self.play, args=(k,), daemon=True) for k in range(self.max_episodes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def play(self, seed: int) -> None:
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=seed)
        try:
            while True:
                self.play_episode(env)
        except ExternalEnvClosedError:
            return

    def play_episode(self, env: gymnasium.Env) -> None:
        episode, (obs, _) = self.start_episode(), env.reset()
        is_terminated = is_truncated = False
        while not (is_terminated or is_truncated):
            obs, reward, is_terminated, is_truncated, _ = env.step(self.get_action(episode, obs))
            self.log_returns(episode, float(reward))
        self.end_episode(episode, obs, truncated=not is_terminated)


def mean_return(policy: Policy, num_episodes: int = 20) -> float:
    """Play greedy episodes of CartPole."""
    env = gymnasium.make_vec("CartPole-v1", num_envs=num_episodes)
    obs, _ = env.reset(seed=1)
    lengths, is_over = np.zeros(num_episodes), np.zeros(num_episodes, bool)
    while not is_over.all():
        obs, _, terminated, truncated, _ = env.step(policy.predict(obs)[0])
        lengths += ~is_over
        is_over |= terminated | truncated
    return float(lengths.mean())


def test_ppo_solves_cartpole_that_threads_play() -> None:
    sizes = {"num_envs": 16, "rollout_length": 64, "num_epochs": 10, "learning_rate": {"start": 1e-3, "end": 0}}
    run = rookery.train("ppo", CartPoles(num_threads=16), total_timesteps=60_000, **sizes)
    assert mean_return(run.policy) >= 450.0
