"""Hybrids on host environments play the same episodes for any number of devices, each of which learns from its own."""

import os
import subprocess
import sys
from pathlib import Path

import rookery

PROGRAM = """
import jax

jax.config.update("jax_num_cpu_devices", 2)
import numpy as np

from rookery.registry import build_workflow
from rookery.workflows.evolution.hybrids import hybrid_of


def trained(name, devices, **agent):
    learner = {"batch_size": 8, "network": {"hidden_sizes": [8]}}
    agent = {"name": name, "population_size": 4, "warmup_steps": 10, "normalize_obs": True, "learner": learner, **agent}
    config = {"agent": agent, "env": {"name": "gymnasium/Pendulum-v1", "episode_length": 8}, "devices": devices}
    workflow = build_workflow({**config, "total_timesteps": 200, "recorders": []})
    state = workflow.init(workflow.make_key())
    for _ in range(3):
        metrics, state = workflow.step(state)
    workflow.close()
    return metrics, state


(of_one, one), (of_two, two) = (trained("erl", devices, learner_episodes=2, update_ratio=0.0) for devices in (1, 2))
for left, right in zip(jax.tree.leaves(one.agent_state), jax.tree.leaves(two.agent_state), strict=True):
    np.testing.assert_array_equal(left, right)
assert float(of_one["hybrid/rl_fitness"]) == float(of_two["hybrid/rl_fitness"])
assert float(of_one["buffer/size"]) == float(of_two["buffer/size"]) == int(two.env_steps)
buffers = [hybrid_of(state).gradient.buffer_state for state in (one, two)]
assert buffers[0].num_rows.tolist() == [3 * 8 * 6]
assert buffers[1].num_rows.tolist() == [3 * 8 * 3] * 2
alone, shares = (np.asarray(buffer.storage["float32"]) for buffer in buffers)
of_agents = alone[0, : 8 * 6].reshape(6, 8, -1)  # four individuals, then two that explore
np.testing.assert_array_equal(shares[0, : 8 * 3].reshape(3, 8, -1), of_agents[[0, 1, 4]])
np.testing.assert_array_equal(shares[1, : 8 * 3].reshape(3, 8, -1), of_agents[[2, 3, 5]])

metrics, state = trained("cem_rl", 2, gradient="sac")
assert int(state.num_updates) == 2 * 8 * 4
for leaf in jax.tree.leaves(state.learner.gradient.agent_state.params):
    copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
    np.testing.assert_array_equal(copies[0], copies[1])
print("done")
"""


def test_devices_learn_from_the_episodes_of_their_share_of_the_agents() -> None:
    root = Path(rookery.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=root,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"]
