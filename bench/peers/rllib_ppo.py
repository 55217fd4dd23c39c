"""PPO of RLlib on environments that sleep. It runs in a Python environment with RLlib and without Rookery."""

import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np

STEP_SECONDS = 0.002
ENVS_PER_RUNNER, FRAGMENT = 4, 32


class SleepingEnv(gymnasium.Env):
    """Sleeps in every step; its episodes have 100 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    step_seconds = STEP_SECONDS

    def __init__(self, config: Any = None) -> None:
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._num_steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        time.sleep(self.step_seconds)
        self._num_steps += 1
        return np.zeros(4, np.float32), 1.0, False, self._num_steps >= 100, {}


def rate(num_runners: int, warm_up: float, seconds: float) -> float:
    """Train with the batch and the network of `bench.ray`; return steps per second."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(num_cpus=num_runners + 1, include_dashboard=False, log_to_driver=False)
    batch_size = num_runners * ENVS_PER_RUNNER * FRAGMENT
    config = (
        PPOConfig()
        .environment(SleepingEnv)
        .env_runners(
            num_env_runners=num_runners, num_envs_per_env_runner=ENVS_PER_RUNNER, rollout_fragment_length=FRAGMENT
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .training(train_batch_size_per_learner=batch_size, minibatch_size=batch_size // 4, num_epochs=4)
    )
    algorithm = config.build_algo()
    end = time.perf_counter() + warm_up
    while time.perf_counter() < end:
        algorithm.train()
    start, num_iterations = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        algorithm.train()
        num_iterations += 1
    measured = num_iterations * batch_size / (time.perf_counter() - start)
    algorithm.stop()
    ray.shutdown()
    return measured


if __name__ == "__main__":
    print(json.dumps({"rate": rate(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))}))
