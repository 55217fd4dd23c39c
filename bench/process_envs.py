"""Environments in processes that are slow at times: wall time of the runner against what the envs allow.

Eight envs sleep 1 ms in every step. In turn their resets take 0.3 s (episodes of 20 to 50 steps), one step in 50 takes
0.15 s, and one env hangs until its `step_timeout`. The runner collects fragments of 512 steps per env with a random
policy. What the envs allow is the sum of their rates if nobody waits for another.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from bench.processes import measure
from bench.table import Row

NUM_ENVS = 8
STEP, RESET, SLOW_STEP = 0.001, 0.3, 0.15
LENGTHS = (20, 51)
"""The range of the length of episodes, without the upper end."""
STEPS_PER_SLOW = 50
FRAGMENT, SHORT_FRAGMENT = 512, 32
HANG_SECONDS = 20
CARTPOLE_STEPS, NUM_ROUNDS = 500, 5
OURS = {"one per process": 1, "two per process": 2, "four per process": 4, "eight per process": 8}


def rows() -> Iterator[Row]:
    cores = sorted(os.sched_getaffinity(0))
    mean_length = sum(LENGTHS) // 2
    with_resets = NUM_ENVS * mean_length / (mean_length * STEP + RESET)
    with_slow_steps = NUM_ENVS * STEPS_PER_SLOW / ((STEPS_PER_SLOW - 1) * STEP + SLOW_STEP)
    for name, function, allowed in (
        ("resets of 0.3 s", "rate_with_slow_resets", with_resets),
        ("one step in 50 takes 0.15 s", "rate_with_slow_steps", with_slow_steps),
    ):
        rate = measure("bench.process_envs", function, cores=cores)["rate"]
        figure = f"{rate:.0f} steps/s"
        yield Row(f"{NUM_ENVS} process envs, {name}", figure, f"their sum {allowed:.0f} steps/s", rate / allowed)
    rates = measure("bench.process_envs", "sleeping_rates", cores=cores)
    yield Row(
        f"{NUM_ENVS} process envs, 1 ms per step",
        f"{rates['rookery']:.0f} steps/s",
        f"their sum {rates['sum']:.0f} steps/s",
        rates["rookery"] / rates["sum"],
    )
    rates = measure("bench.process_envs", "cartpole_rates", cores=cores)
    ours = {name: rate for name, rate in rates.items() if name in OURS}
    for name, rate in ours.items():
        for peer in rates.keys() - ours.keys():
            figures = f"{rate:.0f} steps/s", f"{peer} {rates[peer]:.0f} steps/s"
            yield Row(f"{NUM_ENVS} CartPoles, {name}", *figures, rate / rates[peer])
    rates = measure("bench.process_envs", "rates_while_one_hangs", cores=cores)
    yield Row(
        f"{NUM_ENVS - 1} process envs while another hangs {HANG_SECONDS} s",
        f"{rates['others']:.0f} steps/s",
        f"before {rates['before']:.0f} steps/s",
        rates["others"] / rates["before"],
    )


# Functions that run in the processes.


class SleepingEnv(gymnasium.Env):
    """Sleeps in every step; its episodes have random lengths."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reset_seconds: float, steps_per_slow: int, hangs_at: int | None = None) -> None:
        self._reset_seconds = reset_seconds
        self._steps_per_slow = steps_per_slow
        self._hangs_at = hangs_at
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._steps_left = int(self.np_random.integers(*LENGTHS))
        time.sleep(self._reset_seconds)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._steps_left -= 1
        self._num_steps += 1
        is_slow = self._steps_per_slow and self._num_steps % self._steps_per_slow == 0
        time.sleep(3600 if self._num_steps == self._hangs_at else SLOW_STEP if is_slow else STEP)
        return np.zeros(4, np.float32), 1.0, self._steps_left == 0, False, {}


def make_runner(fragment: int, step_timeout: float = 60.0, hangs_at: int | None = None, **env: Any) -> Any:
    import jax

    from rookery.agent import RandomAgent
    from rookery.runners.envs.conversion import to_base_env
    from rookery.runners.runner import EnvRunner
    from rookery.runners.sampling import RunnerConfig

    def make_env(index: int) -> gymnasium.Env:
        return SleepingEnv(**env, hangs_at=hangs_at if index == 0 else None)

    base_env = to_base_env(make_env=make_env, num_envs=NUM_ENVS, processes=True, step_timeout=step_timeout)
    agent = RandomAgent()
    runner = EnvRunner(base_env, agent, config=RunnerConfig(rollout_fragment_length=fragment))
    runner.set_agent_states(agent.init(*runner.spaces_of(), jax.random.key(0)))
    return runner


def cartpole_rates() -> dict[str, float]:
    """Measure the runner and the vector envs of others with the same agent, in turns, by wall time."""
    from bench.runner import bare_loop, best_rates
    from bench.runner import make_runner as make_runner_of
    from rookery.runners.envs.libraries import make_host_env

    contenders: dict[str, Callable[[], int]] = {}
    for name, envs_per_process in OURS.items():
        options = {"processes": True, "envs_per_process": envs_per_process}
        runner = make_runner_of(make_host_env("gymnasium/CartPole-v1", NUM_ENVS, **options), CARTPOLE_STEPS)
        contenders[name] = lambda runner=runner: runner.sample().env_steps
    contenders["AsyncVectorEnv"] = bare_loop(NUM_ENVS, CARTPOLE_STEPS, is_tuned=True, mode="async")
    if importlib.util.find_spec("stable_baselines3") is not None:
        contenders["SubprocVecEnv"] = subproc_loop()
    return best_rates(contenders, NUM_ROUNDS, time.perf_counter)


def subproc_loop() -> Callable[[], int]:
    """Stable-Baselines3's vector env in processes, with the same agent."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from bench.runner import loop_over

    class AsGymnasium:
        """Its methods under the names of Gymnasium; it resets an env in the step that ends its episode."""

        num_envs = NUM_ENVS

        def __init__(self) -> None:
            self._envs = SubprocVecEnv([lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS)
            self.single_observation_space = self._envs.observation_space
            self.single_action_space = self._envs.action_space

        def reset(self, seed: int) -> tuple[Any, dict]:
            return self._envs.reset(), {}

        def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
            obs, rewards, dones, infos = self._envs.step(actions)
            return obs, rewards, np.zeros_like(dones), np.zeros_like(dones), infos

    return loop_over(AsGymnasium(), CARTPOLE_STEPS, is_tuned=True)


def sleeping_rates() -> dict[str, float]:
    """Measure envs that sleep 1 ms in every step; what they allow is the rate of one env in a bare loop, times 8."""
    from bench.runner import best_rates

    env, num_steps = SleepingEnv(0.0, 0), 500
    env.reset(seed=0)

    def loop() -> int:
        for _ in range(num_steps):
            env.step(0)
        return NUM_ENVS * num_steps

    runner = make_runner(FRAGMENT, reset_seconds=0.0, steps_per_slow=0)
    contenders = {"rookery": lambda: runner.sample().env_steps, "sum": loop}
    return best_rates(contenders, NUM_ROUNDS, time.perf_counter)


def rate_with_slow_resets() -> dict[str, float]:
    return {"rate": rate_of(make_runner(FRAGMENT, reset_seconds=RESET, steps_per_slow=0), num_samples=3)}


def rate_with_slow_steps() -> dict[str, float]:
    return {"rate": rate_of(make_runner(FRAGMENT, reset_seconds=0.0, steps_per_slow=STEPS_PER_SLOW), num_samples=3)}


def rate_of(runner: Any, num_samples: int) -> float:
    """Return the env steps per second, without the first sample."""
    runner.sample()
    start = time.perf_counter()
    num_steps = sum(runner.sample().env_steps for _ in range(num_samples))
    seconds = time.perf_counter() - start
    runner.close()
    return num_steps / seconds


def rates_while_one_hangs() -> dict[str, float]:
    """Return the rate of the envs that do not hang: before, and from the hang on until it is a fault."""
    num_samples_before = 40
    hangs_at = SHORT_FRAGMENT * (num_samples_before + 1) + 1
    runner = make_runner(SHORT_FRAGMENT, HANG_SECONDS, hangs_at, reset_seconds=0.0, steps_per_slow=0)
    runner.sample()
    start = time.perf_counter()
    for _ in range(num_samples_before):
        runner.sample()
    before = num_samples_before * SHORT_FRAGMENT * (NUM_ENVS - 1) / (time.perf_counter() - start)
    start, num_steps, faults = time.perf_counter(), 0, []
    while not faults:
        sample = runner.sample()
        num_steps, faults = num_steps + sample.env_steps, sample.faults
    seconds = time.perf_counter() - start
    runner.close()
    return {"before": before, "others": num_steps / seconds}


if __name__ == "__main__":
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
