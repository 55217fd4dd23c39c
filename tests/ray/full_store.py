"""A program: two runners whose fragments do not fit into the object store, and a learner that lets them wait.

It prints the largest number of queued fragments of a runner, and how many batches were right.
"""

from unittest import mock

import numpy as np

from rookery.envs.config import EnvConfig
from rookery.runners.acting.roles import TRAIN
from rookery.runners.envs.own import name_own_env
from rookery.runners.groups.group import EnvSpec, RunnerSpec
from rookery.runners.ray import cluster
from rookery.runners.ray.settings import RaySettings
from rookery.testing.misbehaving_envs import CountingEnv
from rookery.workflows.host.collector import FIELDS, RoundSettings
from rookery.workflows.host.single_agent_collector import SingleAgentCollector
from tests.runner_envs import ParityAgent

STORE_BYTES, FRAGMENT_BYTES = 80 * 2**20, 28 * 10**6
NUM_STEPS, NUM_RUNNERS, MAX_STALENESS = 8, 2, 4
OBS_SIZE = FRAGMENT_BYTES // (NUM_STEPS * 2 * 4)
"""Each row has an observation and its successor, in float32."""
LENGTH = 10
NUM_ROUNDS = 2


class LargeEnv(CountingEnv):
    """Observes the number of steps, many times."""

    def __init__(self) -> None:
        super().__init__(LENGTH)
        self.observation_space = type(self.observation_space)(0.0, np.inf, (OBS_SIZE,), np.float32)

    def _obs(self) -> np.ndarray:
        return np.full(OBS_SIZE, self.num_steps, np.float32)


def main() -> None:
    env = EnvConfig(name_own_env(LargeEnv))
    spec = RunnerSpec(EnvSpec(env, 1), NUM_STEPS, seed=0, fields=FIELDS)
    with mock.patch.object(cluster, "STORE_BYTES", STORE_BYTES), cluster.connect(RaySettings(), NUM_RUNNERS):
        from rookery.runners.ray.group import RayRunners

        group = RayRunners(spec, NUM_RUNNERS, RaySettings())
        settings = RoundSettings(max_staleness=MAX_STALENESS)
        collector = SingleAgentCollector(group, env, ParityAgent(), NUM_RUNNERS, NUM_STEPS, settings)
        state = ParityAgent().init(collector.obs_space, collector.action_space, None)  # type: ignore[arg-type]
        num_queued, num_right = 0, 0
        for number in range(NUM_ROUNDS):
            collector.publish(TRAIN, state)
            collector.ask()
            while collector.is_waiting:  # the learner takes its time
                collector.receive(1.0)
                collector.ask()
            num_queued = max(num_queued, collector.num_steps_queued // (NUM_STEPS * NUM_RUNNERS))
            batch = collector.take()
            assert batch is not None
            first = number * NUM_STEPS
            expected = np.arange(first, first + NUM_STEPS, dtype=np.float32) % LENGTH
            obs = batch[0].trajectory.obs  # type: ignore[union-attr]
            num_right += bool((obs == expected[:, None, None]).all())
        group.close()
    print(num_queued, num_right)
