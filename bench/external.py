"""Actions for simulators in control: threads that ask an `ExternalEnv`, answered by a runner with a 64x64 policy."""

import json
import os
import sys
import time
from collections.abc import Iterator

from bench.processes import measure
from bench.table import Row

NUM_SIMULATORS = (1, 16, 128)
NUM_STEPS = 4096
"""Steps of one measurement; the best of several counts."""
NUM_ROUNDS = 5


def rows() -> Iterator[Row]:
    for num_simulators in NUM_SIMULATORS:
        found = measure("bench.external", "actions_per_second", num_simulators, cores=sorted(os.sched_getaffinity(0)))
        yield Row(
            f"actions for {num_simulators} simulators in threads",
            f"{found['external'] / 1e3:.1f} k per CPU second",
            f"as many environments in a runner {found['runner'] / 1e3:.1f} k",
            found["external"] / found["runner"],
        )


# Functions that run in the process.


def actions_per_second(num_simulators: int) -> dict[str, float]:
    """Return the actions per CPU second for simulators in threads, and for the same environments in lockstep."""
    import gymnasium
    import jax
    import numpy as np

    from rookery.agents.policy import PolicyAgent
    from rookery.runners import EnvRunner, ExternalEnv, RunnerConfig, to_base_env
    from rookery.runners.envs.base_env import BaseEnv
    from rookery.runners.envs.external import play_in_threads
    from rookery.testing.misbehaving_envs import CountingEnv

    class Simulators(ExternalEnv):
        """Each plays episodes of 200 steps."""

        def run(self) -> None:
            play_in_threads(self.play, num_simulators)

        def play(self) -> None:
            obs = np.zeros(4, np.float32)
            while True:
                episode = self.start_episode()
                for _ in range(200):
                    self.get_action(episode, obs)
                    self.log_returns(episode, 1.0)
                self.end_episode(episode, obs)

    def runner_of(base_env: BaseEnv) -> EnvRunner:
        agent = PolicyAgent()
        runner = EnvRunner(base_env, agent, config=RunnerConfig())
        runner.set_agent_states(agent.init(*runner.spaces_of(), jax.random.key(0)))
        return runner
