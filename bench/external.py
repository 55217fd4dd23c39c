"""Actions for simulators in control: threads that ask an `ExternalEnv`, answered by a runner with a 64x64 policy."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator

from bench.processes import measure
from bench.table import Row

NUM_SIMULATORS = (1, 16, 128)
NUM_STEPS = 4096
"""Steps of one measurement; the best of several counts."""
NUM_ROUNDS = 5
EPISODE_LENGTH = 200


def rows() -> Iterator[Row]:
    for num_simulators in NUM_SIMULATORS:
        found = measure("bench.external", "actions_per_second", num_simulators, cores=sorted(os.sched_getaffinity(0)))
        yield Row(
            f"actions for {num_simulators} simulators in threads, per CPU second",
            f"{found['external'] / 1e3:.1f} k",
            f"as many environments that are stepped {found['stepped'] / 1e3:.1f} k",
            found["external"] / found["stepped"],
        )


# Functions that run in the process.


def actions_per_second(num_simulators: int) -> dict[str, float]:
    """Return the actions per CPU second for simulators in threads, and for environments that are stepped."""
    import gymnasium
    import jax
    import numpy as np

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as in training

    from rookery.agents.policy import PolicyAgent
    from rookery.errors import RookeryError
    from rookery.runners import EnvRunner, ExternalEnv, RunnerConfig, to_base_env
    from rookery.runners.envs.base_env import BaseEnv
    from rookery.testing.misbehaving_envs import CountingEnv

    class Simulators(ExternalEnv):
        """Each of its threads plays episodes without any work of its own."""

        def run(self) -> None:
            threads = [threading.Thread(target=self.play, daemon=True) for _ in range(num_simulators)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        def play(self) -> None:
            obs = np.zeros(1, np.float32)
            try:
                while True:
                    episode = self.start_episode()
                    for _ in range(EPISODE_LENGTH):
                        self.get_action(episode, obs)
                        self.log_returns(episode, 1.0)
                    self.end_episode(episode, obs)
            except RookeryError:  # it was closed
                return

    def runner_of(base_env: BaseEnv) -> EnvRunner:
        agent = PolicyAgent()
        runner = EnvRunner(base_env, agent, config=RunnerConfig())
        runner.set_agent_states(agent.init(*runner.spaces_of(), jax.random.key(0)))
        return runner

    spaces = CountingEnv(EPISODE_LENGTH)
    simulators = Simulators(spaces.observation_space, gymnasium.spaces.Discrete(2), num_simulators)
    stepped = to_base_env(make_env=lambda index: CountingEnv(EPISODE_LENGTH), num_envs=num_simulators)
    runners = {"external": runner_of(to_base_env(simulators)), "stepped": runner_of(stepped)}
    best = dict.fromkeys(runners, float("inf"))
    for _ in range(NUM_ROUNDS):
        for name, runner in runners.items():
            start = time.process_time()
            runner.sample(num_steps=NUM_STEPS)
            best[name] = min(best[name], time.process_time() - start)
    for runner in runners.values():
        runner.close()
    return {name: NUM_STEPS / seconds for name, seconds in best.items()}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*map(int, sys.argv[2:]))))
